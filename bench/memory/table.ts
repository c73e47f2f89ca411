import { formatBytes } from '../../src/cli/bytes.js';
import type { Mode } from './cases.js';
import type { BenchWindow } from './decode.js';
import type { Outcome } from './outcome.js';

const names: Readonly<Record<Mode, string>> = {
  whole: 'all in device memory',
  overflow: 'rest in main memory',
  streaming: 'rest in the file',
  copies: 'copied at each use',
};

export function percent(part: number, digits = 0): string {
  return `${(100 * part).toFixed(digits)} %`;
}

function markdown(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const rule = head.map((_, column) => (column === 0 ? '---' : '---:'));
  return [head, rule, ...rows].map((cells) => `| ${cells.join(' | ')} |\n`).join('');
}

function row(outcome: Outcome): string[] {
  const { mode, layers, wanted, budgetGib, share, residentBytes, rates, limit } = outcome;
  return [
    names[mode],
    String(layers),
    wanted,
    budgetGib === undefined ? '' : `${Number(budgetGib.toFixed(2))} GiB`,
    `${percent(share, 1)}, ${formatBytes(residentBytes)}`,
    outcome.rate.toFixed(2),
    outcome.ratio.toFixed(3),
    percent(outcome.hitRate, 1),
    formatBytes(outcome.missedBytes),
    mode === 'overflow' ? formatBytes(outcome.promotedBytes) : '',
    limit === undefined ? '' : limit.toFixed(2),
    limit === undefined ? '' : percent(outcome.rate / limit),
    rates.map((rate) => rate.toFixed(2)).join(' '),
  ];
}

export function outcomeTable(outcomes: readonly Outcome[]): string {
  return markdown(
    [
      'experts',
      'layers',
      'asked for',
      'of memory',
      'in slots',
      'tokens/s',
      'of whole',
      'hits',
      'missed a token',
      'promoted a token',
      'link allows',
      'of that',
      'rounds',
    ],
    outcomes.map(row),
  );
}

/** A long decode, window by window. `wholeRate`: tokens per second with everything in device memory. */
export function windowTable(windows: readonly BenchWindow[], wholeRate: number): string {
  let tokens = 0;
  return markdown(
    ['tokens', 'tokens/s', 'of whole', 'hits', 'promotions'],
    windows.map((window) => {
      tokens += window.gen_tokens;
      return [
        `to ${tokens}`,
        window.gen_tps.toFixed(2),
        (window.gen_tps / wholeRate).toFixed(3),
        window.expert_lookups === 0
          ? ''
          : percent(window.expert_slot_hits / window.expert_lookups, 1),
        String(window.expert_promotions),
      ];
    }),
  );
}
