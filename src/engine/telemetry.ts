import { Arena, ErrorSlot, viewWords } from './abi.js';
import type { Library, TelemetryHandle } from './abi.js';
import { loadStepOf } from './errors.js';
import type { LoadStep } from './errors.js';

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
  loadStep: 39,
} as const;

const expertWords = {
  lookups: 8,
  deviceHits: 9,
  hostHits: 10,
  inFlightHits: 11,
  misses: 12,
  evictions: 13,
  promotions: 14,
  demotions: 15,
  transit: 16,
  busReadBytes: 17,
  layerLoads: 18,
  slots: 32,
  slotsUsed: 33,
  hostPlaces: 34,
  hostPlacesUsed: 35,
  seeded: 36,
  foreseen: 37,
  evictedBytes: 50,
  hostAdmissions: 51,
  hostAdmittedBytes: 52,
  layerLoadBytes: 53,
} as const;

const fileWords = {
  reads: 19,
  readBytes: 20,
  readNs: 21,
  directBytes: 22,
  shortReads: 23,
  retries: 24,
  uploadBytes: 25,
  uploadWaitNs: 26,
  directRefused: 38,
  errors: 54,
  uploads: 55,
  pinWaitNs: 56,
} as const;

const pageWords = { loads: 27, hits: 28, prefetched: 29, late: 30, bytes: 31 } as const;

const deviceWords = { leastFreeBytes: 57 } as const;

const simulationWords = {
  toDeviceBytes: 40,
  fromDeviceBytes: 41,
  mappedReadBytes: 42,
  diskBytes: 43,
  allocations: 44,
  allocatedBytes: 45,
  peakBytes: 46,
  pinnedBytes: 47,
  calls: 48,
  ns: 49,
} as const;

/** The words of one group by name, as numbers. */
export type Counters<Words> = Readonly<Record<keyof Words, number>>;
const wordCount = 64;

export interface TelemetrySnapshot {
  readonly phase: 'idle' | 'load' | 'eval';
  readonly bytesDone: number;
  readonly bytesTotal: number;
  readonly layer: number;
  readonly layerCount: number;
  readonly tokensDone: number;
  readonly evals: number;
  /** Routed experts: how often each place had one, and the places. lookups = all hits + misses. */
  readonly experts: Counters<typeof expertWords>;
  /** What was read from the model's files, and what went into device memory. */
  readonly files: Counters<typeof fileWords>;
  /** Weights outside the experts that take turns. */
  readonly pages: Counters<typeof pageWords>;
  /** Free memory of the device as it was at its least; 0 where nobody knows, and on a host. */
  readonly device: Counters<typeof deviceWords>;
  /** The ledger of a simulated device; all zero for others. */
  readonly simulation: Counters<typeof simulationWords>;
}

function added<Name extends string>(
  groups: readonly [Readonly<Record<Name, number>>, ...Readonly<Record<Name, number>>[]],
): Record<Name, number> {
  const [first, ...others] = groups;
  const sums: Record<Name, number> = { ...first };
  for (const other of others) {
    for (const name in other) {
      sums[name] += other[name];
    }
  }
  return sums;
}

/** Of those that know. */
function least(values: readonly number[]): number {
  const known = values.filter((value) => value > 0);
  return known.length === 0 ? 0 : Math.min(...known);
}

/**
 * One snapshot of several engines that compute one model together, in the order of its layers: sums of bytes and
 * counters, the least of what was free on a device, the phase and layer of the one that is active. A token counts when it has passed the last of them.
 */
export function addSnapshots(
  parts: readonly [TelemetrySnapshot, ...TelemetrySnapshot[]],
  active: number,
): TelemetrySnapshot {
  const [first, ...others] = parts;
  const now = parts[active] ?? first;
  const last = others.at(-1) ?? first;
  const all = <Name extends 'experts' | 'files' | 'pages' | 'simulation'>(
    name: Name,
  ): [TelemetrySnapshot[Name], ...TelemetrySnapshot[Name][]] => [
    first[name],
    ...others.map((part) => part[name]),
  ];
  return {
    phase: now.phase,
    layer: now.layer,
    layerCount: now.layerCount,
    bytesDone: parts.reduce((sum, { bytesDone }) => sum + bytesDone, 0),
    bytesTotal: parts.reduce((sum, { bytesTotal }) => sum + bytesTotal, 0),
    tokensDone: last.tokensDone,
    evals: last.evals,
    experts: added(all('experts')),
    files: added(all('files')),
    pages: added(all('pages')),
    device: { leastFreeBytes: least(parts.map(({ device }) => device.leastFreeBytes)) },
    simulation: added(all('simulation')),
  };
}

/**
 * Words that native code writes while a call runs. Reading them and setting the cancel word needs no call,
 * so progress bars and Ctrl+C work while the engine is busy.
 */
export class Telemetry {
  readonly #library: Library;
  /** Native memory until closed, then a copy of what it held last. */
  #words: BigUint64Array;
  #open = true;
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

  readonly #read = (word: number): number => Number(Atomics.load(this.#words, word));

  #experts(): TelemetrySnapshot['experts'] {
    const [words, read] = [expertWords, this.#read];
    return {
      lookups: read(words.lookups),
      deviceHits: read(words.deviceHits),
      hostHits: read(words.hostHits),
      inFlightHits: read(words.inFlightHits),
      misses: read(words.misses),
      evictions: read(words.evictions),
      promotions: read(words.promotions),
      demotions: read(words.demotions),
      transit: read(words.transit),
      busReadBytes: read(words.busReadBytes),
      layerLoads: read(words.layerLoads),
      slots: read(words.slots),
      slotsUsed: read(words.slotsUsed),
      hostPlaces: read(words.hostPlaces),
      hostPlacesUsed: read(words.hostPlacesUsed),
      seeded: read(words.seeded),
      foreseen: read(words.foreseen),
      evictedBytes: read(words.evictedBytes),
      hostAdmissions: read(words.hostAdmissions),
      hostAdmittedBytes: read(words.hostAdmittedBytes),
      layerLoadBytes: read(words.layerLoadBytes),
    };
  }

  #files(): TelemetrySnapshot['files'] {
    const [words, read] = [fileWords, this.#read];
    return {
      reads: read(words.reads),
      readBytes: read(words.readBytes),
      readNs: read(words.readNs),
      directBytes: read(words.directBytes),
      shortReads: read(words.shortReads),
      retries: read(words.retries),
      uploadBytes: read(words.uploadBytes),
      uploadWaitNs: read(words.uploadWaitNs),
      directRefused: read(words.directRefused),
      errors: read(words.errors),
      uploads: read(words.uploads),
      pinWaitNs: read(words.pinWaitNs),
    };
  }

  #pages(): TelemetrySnapshot['pages'] {
    const [words, read] = [pageWords, this.#read];
    return {
      loads: read(words.loads),
      hits: read(words.hits),
      prefetched: read(words.prefetched),
      late: read(words.late),
      bytes: read(words.bytes),
    };
  }

  #simulation(): TelemetrySnapshot['simulation'] {
    const [words, read] = [simulationWords, this.#read];
    return {
      toDeviceBytes: read(words.toDeviceBytes),
      fromDeviceBytes: read(words.fromDeviceBytes),
      mappedReadBytes: read(words.mappedReadBytes),
      diskBytes: read(words.diskBytes),
      allocations: read(words.allocations),
      allocatedBytes: read(words.allocatedBytes),
      peakBytes: read(words.peakBytes),
      pinnedBytes: read(words.pinnedBytes),
      calls: read(words.calls),
      ns: read(words.ns),
    };
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
      experts: this.#experts(),
      files: this.#files(),
      pages: this.#pages(),
      device: { leastFreeBytes: this.#read(deviceWords.leastFreeBytes) },
      simulation: this.#simulation(),
    };
  }

  /** What the load is about; after a failure, what of it failed. */
  loadStep(): LoadStep {
    return loadStepOf(this.#read(Word.loadStep));
  }

  /** Asks the running call, or the next one, to stop soon. Stays set until cleared. */
  setCancel(cancelled: boolean): void {
    Atomics.store(this.#words, Word.cancel, cancelled ? 1n : 0n);
  }

  /** What was counted can still be read afterwards. */
  close(): void {
    if (this.#open) {
      this.#open = false;
      this.#words = this.#words.slice();
      this.#library.telemetryClose(this.handle);
    }
  }
}
