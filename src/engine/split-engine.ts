import type { ModelDescription } from '../model/index.js';
import { CallQueue } from './call-queue.js';
import type { Engine } from './engine.js';
import type { EngineSession, SessionOptions } from './engine-session.js';
import { mergeExpertLists } from './expert-lists.js';
import type { ExpertId, ExpertUse } from './expert-lists.js';
import { belongsTo } from './model-arguments.js';
import type { EngineInfo, ModelEngine } from './model-engine.js';
import { SplitSession } from './split-session.js';
import { addSnapshots } from './telemetry.js';
import type { TelemetrySnapshot } from './telemetry.js';

function weightBytes({ description, slice }: Engine): number {
  return description.tensors
    .filter((tensor) => belongsTo(slice, tensor))
    .reduce((bytes, { tensor }) => bytes + tensor.bytes, 0);
}

/**
 * One model in several engines of this process, each with some of its layers on a device of its own. To its users it is
 * one engine.
 */
export class SplitEngine implements ModelEngine {
  readonly #parts: readonly [Engine, ...Engine[]];
  readonly #calls = new CallQueue();
  readonly #sessions = new Set<SplitSession>();
  #active = 0;
  #isLoading = false;
  #closing: Promise<void> | undefined;

  /**
   * @param parts none of them loaded, whose slices follow each other from the embedding to the head
   * @throws RangeError when they do not
   */
  constructor(parts: readonly Engine[]) {
    const [first, ...others] = parts;
    if (first === undefined) {
      throw new RangeError('a split engine needs at least one part');
    }
    let end = -1;
    for (const { slice } of parts) {
      if (slice.first !== end + 1 || slice.embedding !== (slice.first === 0)) {
        throw new RangeError(`a part begins at layer ${slice.first} after layer ${end}`);
      }
      end = slice.last;
    }
    const last = first.description.shape.layerCount - 1;
    if (end !== last || parts.some(({ slice }) => slice.head !== (slice.last === last))) {
      throw new RangeError(`the parts end at layer ${end}, and not with the head after ${last}`);
    }
    this.#parts = [first, ...others];
  }

  get description(): ModelDescription {
    return this.#parts[0].description;
  }

  /** Index of the part that computes or loads, or did so last. */
  get activePart(): number {
    return this.#active;
  }

  /** Of each part, in the order of the layers. */
  get partInfos(): readonly EngineInfo[] {
    return this.#parts.map(({ info }) => info);
  }

  get info(): EngineInfo {
    const infos = this.partInfos;
    const sum = (pick: (info: EngineInfo) => number): number =>
      infos.reduce((bytes, info) => bytes + pick(info), 0);
    return {
      threads: Math.max(...infos.map(({ threads }) => threads)),
      // Only a part that the processor computes knows one; it is the last.
      instructionSet: infos.at(-1)?.instructionSet ?? 'auto',
      weightBytes: sum((info) => info.weightBytes),
      mappedBytes: sum((info) => info.mappedBytes),
      deviceBytes: sum((info) => info.deviceBytes),
      lockedBytes: sum((info) => info.lockedBytes),
    };
  }

  telemetry(): TelemetrySnapshot {
    const [first, ...others] = this.#parts;
    const waiting = others.map((part, index) => {
      const snapshot = part.telemetry();
      // So that the sum to load is known before the last part begins.
      return this.#isLoading && index + 1 > this.#active
        ? { ...snapshot, bytesTotal: weightBytes(part) }
        : snapshot;
    });
    return addSnapshots([first.telemetry(), ...waiting], this.#active);
  }

  cancel(): void {
    for (const part of this.#parts) {
      part.cancel();
    }
  }

  clearCancel(): void {
    for (const part of this.#parts) {
      part.clearCancel();
    }
  }

  /** Loads one part after another. `onLoaded` hears of each. After a failure `activePart` is the one that failed. */
  load(onLoaded: (part: number) => void = () => undefined): Promise<void> {
    return this.#calls.run(async () => {
      this.#isLoading = true;
      try {
        for (const [index, part] of this.#parts.entries()) {
          this.#active = index;
          await part.load();
          onLoaded(index);
        }
      } finally {
        this.#isLoading = false;
      }
    });
  }

  seedExperts(experts: readonly ExpertId[]): Promise<number> {
    return this.#calls.run(async () => {
      let seeded = 0;
      for (const [index, part] of this.#parts.entries()) {
        this.#active = index;
        const { first, last } = part.slice;
        seeded += await part.seedExperts(
          experts.filter(({ layer }) => layer >= first && layer <= last),
        );
      }
      return seeded;
    });
  }

  listExperts(): Promise<ExpertUse[]> {
    return this.#calls.run(async () => {
      const lists = await Promise.all(this.#parts.map((part) => part.listExperts()));
      return mergeExpertLists(lists);
    });
  }

  openSession(options: SessionOptions): Promise<EngineSession> {
    return this.#calls.run(async () => {
      const [first, ...others] = this.#parts;
      const opened: [EngineSession, ...EngineSession[]] = [await first.openSession(options)];
      try {
        for (const part of others) {
          opened.push(await part.openSession(options));
        }
      } catch (thrown) {
        for (const session of opened) {
          await session.close();
        }
        throw thrown;
      }
      const session = new SplitSession(
        {
          calls: this.#calls,
          onPart: (index) => {
            this.#active = index;
          },
          onClose: (closed) => {
            this.#sessions.delete(closed);
          },
        },
        opened,
      );
      this.#sessions.add(session);
      return session;
    });
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
    await this.#calls.run(async () => {
      for (const part of this.#parts) {
        await part.close();
      }
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
