import { chartText } from './chart.js';
import type { Axis, Line } from './chart.js';
import type { BenchWindow } from './decode.js';
import { limitCurve } from './outcome.js';
import type { LinkRates, Outcome } from './outcome.js';
import { percent } from './table.js';

const looks = {
  overflow: { name: 'rest in main memory', colour: '#0b6bcb' },
  streaming: { name: 'rest in the file', colour: '#c2410c' },
} as const;

/** Whole residency of the file that a mode was measured with. */
export interface Whole {
  readonly rate: number;
  readonly tokenBytes: number;
}

/** Decode speed over the share of the experts in slots, each mode with what its link allows when choices are even. */
export function shareChart(
  title: string,
  outcomes: readonly Outcome[],
  wholes: Readonly<Partial<Record<keyof typeof looks, Whole>>>,
  links: LinkRates,
): string {
  const lines: Line[] = (['overflow', 'streaming'] as const).flatMap((mode) => {
    const whole = wholes[mode];
    const link = links[mode];
    const points = outcomes
      .filter((outcome) => outcome.mode === mode)
      .map(({ share, ratio }) => [share, ratio] as const)
      .sort(([a], [b]) => a - b);
    if (points.length === 0 || whole === undefined) {
      return [];
    }
    const { name, colour } = looks[mode];
    // All in slots is whole residency for overflow, which has no other form of it.
    const measured = mode === 'overflow' ? [...points, [1, 1] as const] : points;
    return [
      { name, colour, kind: 'measured' as const, points: measured },
      ...(link === undefined
        ? []
        : [
            {
              name: `its limit at ${(link / 1e9).toFixed(1)} GB/s, choices even`,
              colour,
              kind: 'limit' as const,
              points: limitCurve(whole.tokenBytes, whole.rate, link),
            },
          ]),
    ];
  });
  const share = (name: string, most: number): Axis => ({
    name,
    most,
    ticks: 4,
    text: (value) => percent(value),
  });
  const most = Math.max(1, ...outcomes.map(({ ratio }) => ratio));
  return chartText(
    title,
    share('experts in device memory', 1),
    share('decode speed, of all in device memory', most),
    lines,
  );
}

/** Decode speed over a long text that stays with its topic. */
export function topicChart(title: string, windows: readonly BenchWindow[], whole: number): string {
  let tokens = 0;
  const points = windows.map((window) => {
    tokens += window.gen_tokens;
    return [tokens, window.gen_tps / whole] as const;
  });
  let wanted = 0;
  const hits = windows.flatMap(({ gen_tokens, expert_slot_hits, expert_lookups }) => {
    wanted += gen_tokens;
    return expert_lookups === 0 ? [] : [[wanted, expert_slot_hits / expert_lookups] as const];
  });
  return chartText(
    title,
    { name: 'tokens', most: tokens, ticks: 4, text: (value) => value.toFixed(0) },
    {
      name: 'share',
      most: Math.max(1, ...points.map(([, ratio]) => ratio)),
      ticks: 4,
      text: (value) => percent(value),
    },
    [
      {
        name: 'decode speed, of all in device memory',
        colour: looks.overflow.colour,
        kind: 'measured',
        points,
      },
      { name: 'experts found in slots', colour: '#15803d', kind: 'measured', points: hits },
    ],
  );
}
