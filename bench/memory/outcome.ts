import { median } from '../gpu/rounds.js';
import type { Case, Mode } from './cases.js';
import { ledgerFaults } from './decode.js';
import type { BenchRun } from './decode.js';
import { evenlyMissed, limitRatio, linkLimit } from './limits.js';

/** Rates of the ways to weights outside device memory, in bytes per second; undefined where none was measured. */
export type LinkRates = Readonly<Record<Exclude<Mode, 'whole'>, number | undefined>>;

/** What the measuring program prints, in GB/s; 0 stands for what it could not measure. */
export type MeasuredLinks = Readonly<Record<string, number | string>>;

export function linkRates(links: MeasuredLinks): LinkRates {
  const best = (...names: string[]): number | undefined => {
    const rates = names.map((name) => Number(links[name] ?? 0)).filter((rate) => rate > 0);
    return rates.length === 0 ? undefined : 1e9 * Math.max(...rates);
  };
  const drive = best('direct_read_2mib_gbs', 'direct_read_7mib_gbs', 'direct_read_32mib_gbs');
  const copies = best('host_to_device_gbs', 'host_to_device_2mib_gbs');
  return {
    // Kernels read the pinned mapping of the file, whatever the driver's own memory would allow.
    overflow: best('mapped_file_read_gbs') ?? best('mapped_read_gbs'),
    streaming: drive === undefined ? undefined : Math.min(drive, copies ?? Infinity),
    copies,
  };
}

/** A case in all rounds, beside whole residency of the same file in the same rounds. */
export interface Outcome {
  readonly mode: Mode;
  readonly layers: number;
  readonly wanted: string;
  readonly budgetGib: number | undefined;
  readonly share: number;
  /** Bytes of experts that the share is. */
  readonly residentBytes: number;
  /** Tokens per second of each round. */
  readonly rates: readonly number[];
  readonly rate: number;
  /** Of the rate with everything in device memory. */
  readonly ratio: number;
  readonly hitRate: number;
  /** Of one token. */
  readonly missedBytes: number;
  readonly promotedBytes: number;
  /** Tokens per second that the link allows with the bytes that were missed. */
  readonly limit: number | undefined;
  readonly faults: readonly string[];
}

/** Of the experts, those that have slots in the end: what the plan came to. */
export function slotShare({ mode, model }: Case, { stats }: Pick<BenchRun, 'stats'>): number {
  return mode === 'whole' ? 1 : (stats.experts?.slots ?? 0) / model.experts;
}

/** @param runs of the case, one a round; at least one. */
export function outcomeOf(
  one: Case,
  runs: readonly BenchRun[],
  wholeRate: number,
  links: LinkRates,
): Outcome {
  const { mode, model, wanted, budgetGib } = one;
  const share = median(runs.map((run) => slotShare(one, run)));
  const rates = runs.map(({ tokensPerSecond }) => tokensPerSecond);
  const missedBytes = median(runs.map((run) => run.missedBytes));
  const link = mode === 'whole' ? undefined : links[mode];
  const rate = median(rates);
  return {
    mode,
    layers: model.layers,
    wanted,
    budgetGib,
    share,
    residentBytes: share * model.routedBytes,
    rates,
    rate,
    ratio: rate / wholeRate,
    hitRate: median(runs.map((run) => run.hitRate)),
    missedBytes,
    promotedBytes: median(runs.map((run) => run.promotedBytes)),
    limit: link === undefined ? undefined : linkLimit(1 / wholeRate, missedBytes, link),
    faults: [...new Set(runs.flatMap(({ windows }) => ledgerFaults(mode, windows)))],
  };
}

/** Speed that a link allows at growing shares when experts are chosen evenly: [share, ratio to whole residency]. */
export function limitCurve(
  tokenBytes: number,
  wholeRate: number,
  bytesPerSecond: number,
): [share: number, ratio: number][] {
  return Array.from({ length: 51 }, (_, index) => {
    const share = index / 50;
    return [share, limitRatio(1 / wholeRate, evenlyMissed(tokenBytes, share), bytesPerSecond)];
  });
}
