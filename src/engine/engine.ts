import type { ModelDescription } from '../model/index.js';
import { Arena, ErrorSlot, loadLibrary, Struct } from './abi.js';
import type { Library, ModelHandle } from './abi.js';
import { CallQueue } from './call-queue.js';
import type { SessionOptions } from './engine-session.js';
import { listExperts, seedExperts } from './expert-lists.js';
import type { ExpertId, ExpertUse } from './expert-lists.js';
import { NativeError } from './errors.js';
import type { BackendName } from './library.js';
import { instructionSets, wholeModel, writeModelArguments } from './model-arguments.js';
import type {
  InstructionSet,
  LayerSlice,
  Placement,
  Source,
  Upload,
  WeightOptions,
} from './model-arguments.js';
import type { EngineInfo, ModelEngine } from './model-engine.js';
import { NativeSession } from './native-session.js';
import { Telemetry } from './telemetry.js';
import type { TelemetrySnapshot } from './telemetry.js';

export interface EngineOptions {
  readonly description: ModelDescription;
  readonly backend: BackendName;
  /** Index of the device, as `listDevices` has it; the first by default. */
  readonly device?: number;
  /** GPU backends only, and needed there. */
  readonly placement?: Placement;
  readonly upload?: Upload;
  /** Folder of the native libraries; the program's own by default. */
  readonly libraryDirectory?: string;
  /** 0 or absent: as many as the process may use. */
  readonly threads?: number;
  readonly arithmetic?: 'fast' | 'exact';
  /** The mapping by default on the CPU, reads into pinned buffers on a GPU. */
  readonly source?: Source;
  readonly weights?: WeightOptions;
  /** Touch every weight page before `load` ends. */
  readonly warm?: boolean;
  /** Overrides what the model's file says about its FP8/FP4 round trips. */
  readonly roundTrips?: boolean;
  readonly instructionSet?: InstructionSet;
  /** All layers with embedding and head by default. */
  readonly slice?: LayerSlice;
}

/**
 * One model in one native library. Create it, `load()` it, open sessions, `close()` it.
 * Calls are queued: native code never sees two at once.
 */
export class Engine implements ModelEngine {
  readonly #library: Library;
  readonly #options: EngineOptions;
  readonly #telemetry: Telemetry;
  readonly slice: LayerSlice;
  #model: ModelHandle | undefined;
  #info: EngineInfo | undefined;
  readonly #calls = new CallQueue();
  readonly #sessions = new Set<NativeSession>();
  #closing: Promise<void> | undefined;

  /**
   * Loads the native library, nothing of the model.
   *
   * @throws LibraryError when the backend's library is missing or does not fit.
   */
  constructor(options: EngineOptions) {
    this.#options = options;
    this.#library = loadLibrary(options.backend, options.libraryDirectory);
    this.#telemetry = new Telemetry(this.#library);
    this.slice = options.slice ?? wholeModel(options.description);
  }

  get description(): ModelDescription {
    return this.#options.description;
  }

  get info(): EngineInfo {
    if (this.#info === undefined) {
      throw new Error('the model is not loaded');
    }
    return this.#info;
  }

  telemetry(): TelemetrySnapshot {
    return this.#telemetry.read();
  }

  cancel(): void {
    this.#telemetry.setCancel(true);
  }

  clearCancel(): void {
    this.#telemetry.setCancel(false);
  }

  load(): Promise<void> {
    return this.#calls.run(async () => {
      if (this.#model !== undefined) {
        throw new Error('the model is loaded already');
      }
      const options = this.#options;
      const { arena, args, error, handleOffset } = writeModelArguments({
        description: options.description,
        slice: this.slice,
        device: options.device ?? 0,
        placement: options.placement ?? 'auto',
        upload: options.upload ?? {},
        threads: options.threads ?? 0,
        arithmetic: options.arithmetic ?? 'fast',
        source: options.source ?? (options.backend === 'cpu' ? 'mmap' : 'read'),
        weights: options.weights ?? {},
        warm: options.warm ?? false,
        roundTrips: options.roundTrips ?? options.description.shape.roundTrips,
        instructionSet: options.instructionSet ?? 'auto',
        telemetry: this.#telemetry.handle,
      });
      try {
        const status = await this.#library.modelOpen(
          args.address,
          arena.address(handleOffset),
          error.address,
        );
        error.check('ds4_model_open', status);
        this.#model = arena.handle('model', handleOffset);
      } catch (thrown) {
        throw this.#withStep(thrown);
      } finally {
        arena.free();
      }
      this.#info = this.#describe(this.#model);
    });
  }

  #withStep(thrown: unknown): unknown {
    if (thrown instanceof NativeError) {
      thrown.loadStep = this.#telemetry.loadStep();
    }
    return thrown;
  }

  #describe(model: ModelHandle): EngineInfo {
    const arena = new Arena(ErrorSlot.bytes + 256);
    try {
      const error = new ErrorSlot(arena);
      const info = new Struct(arena, 'ds4_model_info');
      error.check(
        'ds4_model_describe',
        this.#library.modelDescribe(model, info.address, error.address),
      );
      return {
        threads: info.u32('thread_count'),
        instructionSet: instructionSets[info.u32('instruction_set')] ?? 'auto',
        weightBytes: info.u64('weight_bytes'),
        mappedBytes: info.u64('mapped_bytes'),
        deviceBytes: info.u64('device_bytes'),
        lockedBytes: info.u64('locked_bytes'),
      };
    } finally {
      arena.free();
    }
  }

  #loaded(): ModelHandle {
    if (this.#model === undefined) {
      throw new Error('the model is not loaded');
    }
    return this.#model;
  }

  seedExperts(experts: readonly ExpertId[]): Promise<number> {
    return this.#calls.run(async () => {
      try {
        return await seedExperts(this.#library, this.#loaded(), experts);
      } catch (thrown) {
        throw this.#withStep(thrown);
      }
    });
  }

  listExperts(): Promise<ExpertUse[]> {
    const layers = this.slice.last - this.slice.first + 1;
    const most = layers * this.description.shape.expertCount;
    return this.#calls.run(() => Promise.resolve(listExperts(this.#library, this.#loaded(), most)));
  }

  async openSession(options: SessionOptions): Promise<NativeSession> {
    const session = await this.#calls.run(() => {
      const model = this.#loaded();
      return NativeSession.open(
        {
          native: this.#library,
          shape: this.description.shape,
          calls: this.#calls,
          onClose: (session) => {
            this.#sessions.delete(session);
          },
        },
        model,
        options,
      );
    });
    this.#sessions.add(session);
    return session;
  }

  close(): Promise<void> {
    this.#closing ??= this.#release();
    return this.#closing;
  }

  async #release(): Promise<void> {
    this.cancel();
    for (const session of [...this.#sessions]) {
      await session.close();
    }
    await this.#calls.run(() => {
      if (this.#model !== undefined) {
        this.#library.modelClose(this.#model);
        this.#model = undefined;
      }
      this.#telemetry.close();
      return Promise.resolve();
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
