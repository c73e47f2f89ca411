import { expect } from 'vitest';

/** A group of counters of `--stats-json`. */
export type Counters = Readonly<Record<string, number>>;

/** The line of `--stats-json` on stderr; docs/json-output.md describes it. */
export interface StatsLine {
  readonly source: string;
  readonly version: number;
  readonly tokens: number;
  readonly evaluations: number;
  readonly experts?: Counters;
  readonly files?: Counters;
  readonly pages?: Counters;
  readonly device?: Counters;
  readonly simulation?: Counters;
}

export function parseStats(stderr: string): StatsLine {
  const lines = stderr.split('\n').filter((line) => line.startsWith('{'));
  expect(lines, stderr).toHaveLength(1);
  return JSON.parse(lines[0] ?? '') as StatsLine;
}

/** What holds in every mode: nothing is counted twice or not at all, and nothing is used that is not there. */
export function expectConsistent({ experts = {}, files = {}, simulation = {} }: StatsLine): void {
  const count = (group: Counters, name: string): number => group[name] ?? 0;
  const hits = ['deviceHits', 'hostHits', 'inFlightHits'].reduce(
    (sum, name) => sum + count(experts, name),
    0,
  );
  expect(hits + count(experts, 'misses')).toBe(count(experts, 'lookups'));
  expect(count(experts, 'transit')).toBeLessThanOrEqual(count(experts, 'misses'));
  expect(count(experts, 'slotsUsed')).toBeLessThanOrEqual(count(experts, 'slots'));
  expect(count(experts, 'hostPlacesUsed')).toBeLessThanOrEqual(count(experts, 'hostPlaces'));
  expect(count(experts, 'demotions')).toBeLessThanOrEqual(
    count(experts, 'promotions') + count(experts, 'slots'),
  );
  expect(count(files, 'directBytes')).toBeLessThanOrEqual(count(files, 'readBytes'));
  expect(count(simulation, 'allocatedBytes')).toBeLessThanOrEqual(count(simulation, 'peakBytes'));
}
