// npx tsx tools/expert-trace/replay.ts TRACE [--slots 64,128,...] [--svg FILE]
//
// Replays a file of `ds4 --expert-trace` with caches of several sizes and policies, and prints how often an expert was
// there: of all lookups, and of those of evaluations of one token. LRU and LFRU do what the engine does.
import { readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { lookupsOf, policies } from './caches.js';
import type { Outcome, PolicyName } from './caches.js';
import { chartText } from './chart.js';
import { parseTrace } from './trace.js';

const columns = 16;

/** From a sixteenth of the different experts in the trace to all of them, each twice the one before. */
function usualCapacities(distinct: number): number[] {
  return [...new Set([16, 8, 4, 2, 1].map((part) => Math.max(1, Math.floor(distinct / part))))];
}

function slotList(text: string): number[] {
  const slots = text.split(',').map(Number);
  if (slots.some((count) => !Number.isSafeInteger(count) || count < 1)) {
    throw new Error(`--slots ${text}: it is a list of numbers of slots, such as 64,128`);
  }
  return [...new Set(slots)].sort((left, right) => left - right);
}

function rate(hits: number, lookups: number): string {
  return lookups === 0 ? '-' : `${((100 * hits) / lookups).toFixed(1)}%`;
}

function cell({ hits, lookups, decodeHits, decodeLookups }: Outcome): string {
  return `${rate(hits, lookups)} ${rate(decodeHits, decodeLookups)}`.padStart(columns);
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { slots: { type: 'string' }, svg: { type: 'string' } },
});
const [path] = positionals;
if (path === undefined || positionals.length > 1) {
  throw new Error('usage: replay.ts TRACE [--slots 64,128,...] [--svg FILE]');
}
const trace = parseTrace(readFileSync(path, 'utf8'));
const lookups = lookupsOf(trace);
const distinct = new Set(lookups.map(({ key }) => key)).size;
const tokens = trace.evaluations.reduce((sum, evaluation) => sum + evaluation.tokens, 0);
const capacities = values.slots === undefined ? usualCapacities(distinct) : slotList(values.slots);
const names = Object.keys(policies) as PolicyName[];
const curves = names.map((policy) => ({
  policy,
  outcomes: capacities.map((capacity) => policies[policy](lookups, capacity)),
}));

const summary = `${tokens} tokens in ${trace.evaluations.length} evaluations, ${lookups.length} lookups of ${distinct} experts`;
console.log(`${summary}\nhit rate: of all lookups, and of evaluations of one token`);
console.log('slots'.padStart(8) + names.map((name) => name.padStart(columns)).join(''));
capacities.forEach((capacity, index) => {
  const cells = curves.flatMap(({ outcomes }) => outcomes.slice(index, index + 1).map(cell));
  console.log(String(capacity).padStart(8) + cells.join(''));
});
if (values.svg !== undefined) {
  writeFileSync(
    values.svg,
    chartText(
      `Experts found, of ${lookups.length} lookups`,
      capacities,
      curves.map(({ policy, outcomes }) => ({
        policy,
        rates: outcomes.map(({ hits, lookups: all }) => (all === 0 ? 0 : hits / all)),
      })),
    ),
  );
}
