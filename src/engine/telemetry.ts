import { Arena, ErrorSlot, viewWords } from './abi.js';
import type { Library, TelemetryHandle } from './abi.js';

/** `DS4_WORD_*` of native/include/ds4.h. */
const Word = {
  cancel: 0,
  phase: 1,
  bytesDone: 2,
  bytesTotal: 3,
  layer: 4,
  layerCount: 5,
  tokensDone: 6,
  evals: 7,
} as const;
const wordCount = 32;

export interface TelemetrySnapshot {
  readonly phase: 'idle' | 'load' | 'eval';
  readonly bytesDone: number;
  readonly bytesTotal: number;
  readonly layer: number;
  readonly layerCount: number;
  readonly tokensDone: number;
  readonly evals: number;
}

/**
 * Words that native code writes while a call runs. Reading them and setting the cancel word needs no call,
 * so progress bars and Ctrl+C work while the engine is busy.
 */
export class Telemetry {
  readonly #library: Library;
  #words: BigUint64Array | undefined;
  readonly handle: TelemetryHandle;

  constructor(library: Library) {
    this.#library = library;
    const arena = new Arena(64 + ErrorSlot.bytes);
    try {
      const error = new ErrorSlot(arena);
      const out = arena.take(8);
      error.check('ds4_telemetry_open', library.telemetryOpen(arena.address(out), error.address));
      this.handle = arena.handle('telemetry', out);
      this.#words = viewWords(library.telemetryWords(this.handle), wordCount);
    } finally {
      arena.free();
    }
  }

  #read(word: number): number {
    return this.#words === undefined ? 0 : Number(Atomics.load(this.#words, word));
  }

  read(): TelemetrySnapshot {
    const phases = ['idle', 'load', 'eval'] as const;
    return {
      phase: phases[this.#read(Word.phase)] ?? 'idle',
      bytesDone: this.#read(Word.bytesDone),
      bytesTotal: this.#read(Word.bytesTotal),
      layer: this.#read(Word.layer),
      layerCount: this.#read(Word.layerCount),
      tokensDone: this.#read(Word.tokensDone),
      evals: this.#read(Word.evals),
    };
  }

  /** Asks the running call, or the next one, to stop soon. Stays set until cleared. */
  setCancel(cancelled: boolean): void {
    if (this.#words !== undefined) {
      Atomics.store(this.#words, Word.cancel, cancelled ? 1n : 0n);
    }
  }

  close(): void {
    if (this.#words !== undefined) {
      this.#words = undefined;
      this.#library.telemetryClose(this.handle);
    }
  }
}
