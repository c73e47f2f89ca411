import type { ModelShape } from '../model/index.js';
import { Arena, ErrorSlot, Struct } from './abi.js';
import type { Library, ModelHandle, SessionHandle } from './abi.js';
import type { CallQueue } from './call-queue.js';
import type {
  EngineSession,
  EvalRequest,
  EvalResult,
  SessionOptions,
  SessionSizes,
} from './engine-session.js';
import { readTaps, tapMask } from './taps.js';

/** Most candidates that one call returns without a buffer of its own. */
const usualCandidates = 1024;

/** What a session needs of its engine. */
export interface SessionOwner {
  readonly native: Library;
  readonly shape: ModelShape;
  readonly calls: CallQueue;
  readonly onClose: (session: NativeSession) => void;
}

/** A session of the native library. */
export class NativeSession implements EngineSession {
  readonly #owner: SessionOwner;
  #handle: SessionHandle | undefined;
  readonly #arena: Arena;
  readonly #error: ErrorSlot;
  readonly #args: Struct<'ds4_eval_args'>;
  readonly #result: Struct<'ds4_eval_result'>;
  readonly #tokens: number;
  readonly #candidateIds: number;
  readonly #candidateLogits: number;
  readonly #reached: number;
  #position = 0;

  readonly context: number;
  readonly prefillChunk: number;

  private constructor(owner: SessionOwner, options: SessionOptions) {
    this.#owner = owner;
    this.context = options.context;
    this.prefillChunk = options.prefillChunk;
    this.#arena = new Arena(
      ErrorSlot.bytes + 4 * options.prefillChunk + 8 * usualCandidates + 1024,
    );
    this.#error = new ErrorSlot(this.#arena);
    this.#args = new Struct(this.#arena, 'ds4_eval_args');
    this.#result = new Struct(this.#arena, 'ds4_eval_result');
    this.#tokens = this.#arena.take(4 * options.prefillChunk);
    this.#candidateIds = this.#arena.take(4 * usualCandidates);
    this.#candidateLogits = this.#arena.take(4 * usualCandidates);
    this.#reached = this.#arena.take(8);
  }

  static async open(
    owner: SessionOwner,
    model: ModelHandle,
    options: SessionOptions,
  ): Promise<NativeSession> {
    const session = new NativeSession(owner, options);
    const arena = new Arena(256);
    try {
      const args = new Struct(arena, 'ds4_session_args');
      args.setU32('prefill_chunk', options.prefillChunk);
      args.setU64('context', options.context);
      args.setU32('checkpoint_count', options.checkpoints ?? 4);
      const out = arena.take(8);
      const status = await owner.native.sessionOpen(
        model,
        args.address,
        arena.address(out),
        session.#error.address,
      );
      session.#error.check('ds4_session_open', status);
      session.#handle = arena.handle('session', out);
      return session;
    } catch (error) {
      session.#arena.free();
      throw error;
    } finally {
      arena.free();
    }
  }

  get position(): number {
    return this.#position;
  }

  #live(): SessionHandle {
    if (this.#handle === undefined) {
      throw new Error('the session is closed');
    }
    return this.#handle;
  }

  measure(): SessionSizes {
    const arena = new Arena(ErrorSlot.bytes + 256);
    try {
      const error = new ErrorSlot(arena);
      const sizes = new Struct(arena, 'ds4_session_sizes');
      error.check(
        'ds4_session_measure',
        this.#owner.native.sessionMeasure(this.#live(), sizes.address, error.address),
      );
      return {
        kvBytes: sizes.u64('kv_bytes'),
        workspaceBytes: sizes.u64('workspace_bytes'),
        scratchBytes: sizes.u64('scratch_bytes'),
        checkpointBytes: sizes.u64('checkpoint_bytes'),
      };
    } finally {
      arena.free();
    }
  }

  eval(tokens: Int32Array, request: EvalRequest = {}): Promise<EvalResult> {
    return this.#owner.calls.run(() => this.#evalNow(tokens, request));
  }

  async #evalNow(tokens: Int32Array, request: EvalRequest): Promise<EvalResult> {
    const handle = this.#live();
    if (tokens.length === 0 || tokens.length > this.prefillChunk) {
      throw new RangeError(
        `${tokens.length} tokens in one call; 1 to ${this.prefillChunk} are possible`,
      );
    }
    const args = this.#args;
    this.#arena.int32(this.#tokens, tokens.length).set(tokens);
    args.setU32('token_count', tokens.length);
    args.setU64('tokens', this.#arena.address(this.#tokens));
    args.setU64('position', this.#position);

    const big = new BigBuffers(this.#owner.shape, tokens.length, request);
    try {
      big.fill(args, request);
      const count = Math.min(request.candidates ?? 0, this.#owner.shape.vocab);
      args.setU32('candidate_count', count);
      const ids = big.candidateIds ?? { arena: this.#arena, offset: this.#candidateIds };
      const logits = big.candidateLogits ?? { arena: this.#arena, offset: this.#candidateLogits };
      args.setU64('candidate_id', ids.arena.address(ids.offset));
      args.setU64('candidate_logit', logits.arena.address(logits.offset));

      const status = await this.#owner.native.eval(
        handle,
        args.address,
        this.#result.address,
        this.#error.address,
      );
      this.#error.check('ds4_eval', status);
      this.#position = this.#result.u64('position');
      const filled = this.#result.u32('candidate_count');
      return {
        candidates:
          count === 0
            ? undefined
            : {
                ids: ids.arena.int32(ids.offset, filled).slice(),
                logits: logits.arena.float32(logits.offset, filled).slice(),
              },
        ...big.read(this.#result.u64('tap_bytes')),
      };
    } finally {
      big.free();
    }
  }

  checkpoint(): Promise<void> {
    return this.#owner.calls.run(async () => {
      const status = await this.#owner.native.checkpoint(this.#live(), this.#error.address);
      this.#error.check('ds4_checkpoint', status);
    });
  }

  rewind(position: number): Promise<number> {
    return this.#owner.calls.run(async () => {
      const status = await this.#owner.native.rewind(
        this.#live(),
        position,
        this.#arena.address(this.#reached),
        this.#error.address,
      );
      this.#error.check('ds4_rewind', status);
      this.#position = Number(this.#arena.view.getBigUint64(this.#reached, true));
      return this.#position;
    });
  }

  close(): Promise<void> {
    return this.#owner.calls.run(() => {
      if (this.#handle !== undefined) {
        this.#owner.native.sessionClose(this.#handle);
        this.#handle = undefined;
        this.#arena.free();
        this.#owner.onClose(this);
      }
      return Promise.resolve();
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

interface Place {
  readonly arena: Arena;
  readonly offset: number;
}

/** Buffers that few calls need: logits, hidden states, taps, long candidate lists. One arena, freed after the call. */
class BigBuffers {
  readonly #arena: Arena | undefined;
  readonly #logits: number;
  readonly #hidden: number;
  readonly #tapBytes: number;
  readonly #offsets: { logits: number; hiddenIn: number; hiddenOut: number; taps: number };
  readonly candidateIds: Place | undefined;
  readonly candidateLogits: Place | undefined;
  readonly #wantHidden: boolean;

  constructor(shape: ModelShape, tokens: number, request: EvalRequest) {
    this.#logits = (request.logitsRows ?? 0) * shape.vocab;
    this.#hidden = tokens * shape.hcCount * shape.embedding;
    this.#wantHidden = request.wantHidden ?? false;
    this.#tapBytes = request.taps === undefined ? 0 : (request.tapBytes ?? 64 << 20);
    if (request.hidden !== undefined && request.hidden.length !== this.#hidden) {
      throw new RangeError(
        `${request.hidden.length} hidden values for ${tokens} tokens; need ${this.#hidden}`,
      );
    }
    const long = (request.candidates ?? 0) > usualCandidates ? (request.candidates ?? 0) : 0;
    const hiddenIn = request.hidden === undefined ? 0 : this.#hidden;
    const hiddenOut = this.#wantHidden ? this.#hidden : 0;
    const bytes = 4 * (this.#logits + hiddenIn + hiddenOut + 2 * long) + this.#tapBytes;
    this.#offsets = { logits: 0, hiddenIn: 0, hiddenOut: 0, taps: 0 };
    if (bytes > 0) {
      const arena = new Arena(bytes + 64);
      this.#arena = arena;
      this.#offsets = {
        logits: arena.take(4 * this.#logits),
        hiddenIn: arena.take(4 * hiddenIn),
        hiddenOut: arena.take(4 * hiddenOut),
        taps: arena.take(this.#tapBytes),
      };
      if (long > 0) {
        this.candidateIds = { arena, offset: arena.take(4 * long) };
        this.candidateLogits = { arena, offset: arena.take(4 * long) };
      }
    }
  }

  fill(args: Struct<'ds4_eval_args'>, request: EvalRequest): void {
    const arena = this.#arena;
    const address = (present: boolean, offset: number): bigint =>
      present && arena !== undefined ? arena.address(offset) : 0n;
    if (request.hidden !== undefined && arena !== undefined) {
      arena.float32(this.#offsets.hiddenIn, this.#hidden).set(request.hidden);
    }
    args.setU64('hidden_in', address(request.hidden !== undefined, this.#offsets.hiddenIn));
    args.setU64('hidden_out', address(this.#wantHidden, this.#offsets.hiddenOut));
    args.setU64('logits', address(this.#logits > 0, this.#offsets.logits));
    args.setU32('logits_rows', request.logitsRows ?? 0);
    args.setU32('tap_mask', tapMask(request.taps ?? []));
    args.setU64('tap', address(this.#tapBytes > 0, this.#offsets.taps));
    args.setU64('tap_bytes', this.#tapBytes);
  }

  read(tapBytes: number): Omit<EvalResult, 'candidates'> {
    const arena = this.#arena;
    if (arena === undefined) {
      return { logits: undefined, hidden: undefined, taps: [] };
    }
    if (tapBytes > this.#tapBytes) {
      throw new RangeError(`taps need ${tapBytes} bytes, ${this.#tapBytes} were given`);
    }
    return {
      logits:
        this.#logits > 0 ? arena.float32(this.#offsets.logits, this.#logits).slice() : undefined,
      hidden: this.#wantHidden
        ? arena.float32(this.#offsets.hiddenOut, this.#hidden).slice()
        : undefined,
      taps: tapBytes > 0 ? readTaps(arena, this.#offsets.taps, tapBytes) : [],
    };
  }

  free(): void {
    this.#arena?.free();
  }
}
