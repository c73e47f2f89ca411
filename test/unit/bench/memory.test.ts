import { expect, test } from 'vitest';
import { decodeOf, ledgerFaults } from '../../../bench/memory/decode.js';
import type { BenchRun, BenchWindow } from '../../../bench/memory/decode.js';
import type { Case } from '../../../bench/memory/cases.js';
import { evenlyMissed, limitRatio, linkLimit } from '../../../bench/memory/limits.js';
import type { ModelFacts } from '../../../bench/memory/model-facts.js';
import { limitCurve, linkRates, outcomeOf } from '../../../bench/memory/outcome.js';
import { shareChart } from '../../../bench/memory/pictures.js';
import { nearestBudget, parseShares } from '../../../bench/memory/shares.js';
import { outcomeTable, windowTable } from '../../../bench/memory/table.js';
import { evenTokens, topicTokens } from '../../../bench/memory/workload.js';

const quiet: BenchWindow = {
  gen_tokens: 10,
  gen_tps: 10,
  expert_lookups: 0,
  expert_slot_hits: 0,
  expert_promotions: 0,
  file_read_bytes: 0,
  upload_bytes: 0,
  bus_read_bytes: 0,
};

/** 100 experts of 1 GB, of which a token needs 4. */
const model = {
  path: 'x.gguf',
  layers: 2,
  experts: 100,
  used: 2,
  routedBytes: 100e9,
  tokenBytes: 4e9,
} as ModelFacts;

const overflow: Case = {
  mode: 'overflow',
  model,
  wanted: '50 %',
  budgetGib: 60,
  share: 0.49,
  promptTokens: 8,
  options: [],
};

function run(mode: Case['mode'], windows: readonly BenchWindow[], slots?: number): BenchRun {
  return {
    ...decodeOf(mode, windows),
    file: { machine: {}, weights: { place: '' }, rows: [] },
    stats: slots === undefined ? {} : { experts: { slots } },
  };
}

test('a link allows what remains when its bytes are added to the time of a token', () => {
  // 0.1 s, and 5 GB at 50 GB/s are another 0.1 s.
  expect(linkLimit(0.1, 5e9, 50e9)).toBeCloseTo(5, 9);
  expect(limitRatio(0.1, 5e9, 50e9)).toBeCloseTo(0.5, 9);
  expect(limitRatio(0.1, 0, 50e9)).toBe(1);
});

test('choices that are even miss the share that is not there', () => {
  expect(evenlyMissed(8e9, 0.75)).toBe(2e9);
  expect(evenlyMissed(8e9, 1)).toBe(0);
  expect(evenlyMissed(8e9, 1.5)).toBe(0);
});

test('the limit grows with the share, up to whole residency', () => {
  const curve = limitCurve(4e9, 10, 40e9);
  const ratios = curve.map(([, ratio]) => ratio);
  expect(curve[0]).toEqual([0, 0.5]);
  expect(curve.at(-1)).toEqual([1, 1]);
  expect(ratios).toEqual([...ratios].sort((a, b) => a - b));
});

test('shares are percent of the experts, or GiB of the card', () => {
  expect(parseShares('100%, 37.5%,38')).toEqual([
    { kind: 'share', share: 1, text: '100 %' },
    { kind: 'share', share: 0.375, text: '37.5 %' },
    { kind: 'budget', gib: 38, text: '38 GiB' },
  ]);
});

test.each(['', '101%', '38.5', '0', '-1%', 'all', '50%%', '38,,40'])(
  'what is neither is refused: %j',
  (list) => {
    expect(() => parseShares(list)).toThrow('--gib');
  },
);

test('the nearest budget is taken among those that work', () => {
  const slots = (gib: number): number | undefined => (gib < 3 ? undefined : 10 * (gib - 3));
  expect(nearestBudget([1, 2, 3, 4, 5, 6], slots, 19)).toEqual({ gib: 5, slots: 20 });
  expect(nearestBudget([1, 2], slots, 19)).toBeUndefined();
});

test('windows of different lengths count by their tokens, not alike', () => {
  const decode = decodeOf('overflow', [
    { ...quiet, gen_tokens: 30, gen_tps: 10, expert_lookups: 30, expert_slot_hits: 15 },
    {
      ...quiet,
      gen_tokens: 10,
      gen_tps: 10 / 7,
      expert_lookups: 10,
      expert_slot_hits: 9,
      bus_read_bytes: 80,
      upload_bytes: 40,
      file_read_bytes: 7,
    },
  ]);
  expect(decode.tokensPerSecond).toBeCloseTo(4, 9);
  expect(decode).toMatchObject({ hitRate: 0.6, missedBytes: 2, promotedBytes: 1 });
});

test('what streaming misses comes from the file', () => {
  const windows = [{ ...quiet, file_read_bytes: 50, upload_bytes: 50, bus_read_bytes: 10 }];
  expect(decodeOf('streaming', windows)).toMatchObject({ missedBytes: 5, promotedBytes: 0 });
});

test.each([
  ['whole', 'file_read_bytes', 1],
  ['whole', 'upload_bytes', 1],
  ['whole', 'bus_read_bytes', 1],
  ['overflow', 'file_read_bytes', 1],
  ['overflow', 'upload_bytes', 0],
  ['overflow', 'bus_read_bytes', 0],
  ['streaming', 'bus_read_bytes', 1],
  ['streaming', 'file_read_bytes', 0],
  ['copies', 'upload_bytes', 0],
] as const)('the ledger of %s with %s has %i faults', (mode, field, faults) => {
  expect(ledgerFaults(mode, [quiet, { ...quiet, [field]: 5 }])).toHaveLength(faults);
});

test('links that were not measured give no limit', () => {
  expect(linkRates({})).toEqual({ overflow: undefined, streaming: undefined, copies: undefined });
  expect(
    linkRates({ card: 'x', mapped_read_gbs: 50, mapped_file_read_gbs: 0, direct_read_7mib_gbs: 0 }),
  ).toEqual({ overflow: 50e9, streaming: undefined, copies: undefined });
  expect(
    linkRates({
      mapped_read_gbs: 50,
      mapped_file_read_gbs: 40,
      host_to_device_gbs: 6,
      direct_read_7mib_gbs: 5,
      direct_read_32mib_gbs: 7,
    }),
  ).toEqual({ overflow: 40e9, streaming: 6e9, copies: 6e9 });
});

test('an outcome is a median of rounds beside whole residency and its link', () => {
  const window = { ...quiet, expert_lookups: 4, expert_slot_hits: 2, bus_read_bytes: 20e9 };
  const rates = [4, 5, 1];
  const runs = rates.map((rate) => run('overflow', [{ ...window, gen_tps: rate }], 50));
  const outcome = outcomeOf(overflow, runs, 10, linkRates({ mapped_read_gbs: 20 }));
  expect(outcome).toMatchObject({
    rate: 4,
    ratio: 0.4,
    hitRate: 0.5,
    missedBytes: 2e9,
    share: 0.5,
  });
  // 0.1 s and 2 GB at 20 GB/s.
  expect(outcome.limit).toBeCloseTo(5, 9);
  expect(outcome.faults).toEqual([]);

  const cells = outcomeTable([outcome])
    .split('\n')[2]
    ?.split('|')
    .map((cell) => cell.trim());
  expect(cells).toEqual([
    '',
    'rest in main memory',
    '2',
    '50 %',
    '60 GiB',
    '50.0 %, 46.57 GiB',
    '4.00',
    '0.400',
    '50.0 %',
    '1.86 GiB',
    '0.00 KiB',
    '5.00',
    '80 %',
    '4.00 5.00 1.00',
    '',
  ]);
});

test('the table has a row for each case, all as wide as its head', () => {
  const whole = outcomeOf(
    { ...overflow, mode: 'whole' },
    [run('whole', [quiet])],
    10,
    linkRates({}),
  );
  expect(whole).toMatchObject({ share: 1, ratio: 1, hitRate: 1, limit: undefined });
  const widths = outcomeTable([whole, whole])
    .trim()
    .split('\n')
    .map((line) => line.split('|').length);
  expect(widths).toHaveLength(4);
  expect(new Set(widths).size).toBe(1);
});

test('windows add up to the tokens so far', () => {
  const table = windowTable(
    [
      { ...quiet, expert_lookups: 8, expert_slot_hits: 2, expert_promotions: 3 },
      { ...quiet, gen_tokens: 4, gen_tps: 20 },
    ],
    20,
  );
  expect(table.split('\n').slice(2, 4)).toEqual([
    '| to 10 | 10.00 | 0.500 | 25.0 % | 3 |',
    '| to 14 | 20.00 | 1.000 |  | 0 |',
  ]);
});

test('the picture has what was measured, and the limit only where a link was', () => {
  const outcome = outcomeOf(overflow, [run('overflow', [quiet], 50)], 10, linkRates({}));
  const wholes = { overflow: { rate: 10, tokenBytes: 4e9 } };
  const draw = (links: Record<string, number>): string =>
    shareChart('a < b', [outcome], wholes, linkRates(links));
  expect(draw({})).toMatch(/^<svg [^]*a &#60; b[^]*<\/svg>\n$/);
  expect(draw({}).match(/<polyline/g)).toHaveLength(1);
  // The measured point and whole residency.
  expect(draw({}).match(/<circle/g)).toHaveLength(2);
  expect(draw({ mapped_read_gbs: 50 })).toContain('its limit at 50.0 GB/s');
  expect(draw({ mapped_read_gbs: 50 }).match(/<polyline/g)).toHaveLength(2);
});

test('a topic has few tokens, an even text many, the same in every run', () => {
  const topic = topicTokens(500, 1000, 16, 2);
  expect(topic).toHaveLength(500);
  expect(new Set(topic).size).toBeLessThanOrEqual(16);
  expect(new Set(topic).size).toBeGreaterThan(8);
  expect(topic).toEqual(topicTokens(500, 1000, 16, 2));
  const even = evenTokens(5000, 1000, 1);
  expect(Math.max(...even)).toBeLessThan(1000);
  expect(new Set(even).size).toBeGreaterThan(900);
});
