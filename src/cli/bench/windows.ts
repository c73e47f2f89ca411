import type { TelemetrySnapshot } from '../../engine/index.js';

/** What was asked of the places where weights are. Experts are counted as in `TelemetrySnapshot`. */
export interface Traffic {
  readonly lookups: number;
  readonly slotHits: number;
  readonly hostHits: number;
  readonly inFlightHits: number;
  readonly misses: number;
  readonly promotions: number;
  readonly fileReadBytes: number;
  readonly uploadBytes: number;
  readonly busReadBytes: number;
}

/** Since the model was opened. */
export function trafficOf({
  experts,
  files,
}: Pick<TelemetrySnapshot, 'experts' | 'files'>): Traffic {
  return {
    lookups: experts.lookups,
    slotHits: experts.deviceHits,
    hostHits: experts.hostHits,
    inFlightHits: experts.inFlightHits,
    misses: experts.misses,
    promotions: experts.promotions,
    fileReadBytes: files.readBytes,
    uploadBytes: files.uploadBytes,
    busReadBytes: experts.busReadBytes,
  };
}

function difference(now: Traffic, before: Traffic): Traffic {
  return {
    lookups: now.lookups - before.lookups,
    slotHits: now.slotHits - before.slotHits,
    hostHits: now.hostHits - before.hostHits,
    inFlightHits: now.inFlightHits - before.inFlightHits,
    misses: now.misses - before.misses,
    promotions: now.promotions - before.promotions,
    fileReadBytes: now.fileReadBytes - before.fileReadBytes,
    uploadBytes: now.uploadBytes - before.uploadBytes,
    busReadBytes: now.busReadBytes - before.busReadBytes,
  };
}

/** Some tokens that were decoded one after the other. */
export interface Window {
  readonly tokens: number;
  readonly ms: number;
  readonly traffic: Traffic;
}

/** Cuts a decode into windows of `length` tokens, so that a cache can be seen learning. The last one may be shorter. */
export class Windows {
  readonly #length: number;
  readonly #traffic: () => Traffic;
  readonly #closed: Window[] = [];
  #before: Traffic;
  #tokens = 0;
  #ms = 0;

  constructor(length: number, traffic: () => Traffic) {
    this.#length = length;
    this.#traffic = traffic;
    this.#before = traffic();
  }

  /** One more token, which took `ms`. */
  add(ms: number): void {
    this.#tokens += 1;
    this.#ms += ms;
    if (this.#tokens === this.#length) {
      this.#close();
    }
  }

  #close(): void {
    const now = this.#traffic();
    this.#closed.push({
      tokens: this.#tokens,
      ms: this.#ms,
      traffic: difference(now, this.#before),
    });
    this.#before = now;
    this.#tokens = 0;
    this.#ms = 0;
  }

  finish(): readonly Window[] {
    if (this.#tokens > 0) {
      this.#close();
    }
    return this.#closed;
  }
}
