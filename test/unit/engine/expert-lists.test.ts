import { describe, expect, it } from 'vitest';
import { mergeExpertLists } from '../../../src/engine/expert-lists.js';
import type { ExpertUse } from '../../../src/engine/index.js';

function use(layer: number, expert: number, uses: number, isKept: boolean): ExpertUse {
  return { layer, expert, uses, isKept };
}

describe('the expert lists of several parts of a model', () => {
  it('are one list: what is kept by its rank in its own part, then the rest by its uses', () => {
    const first = [
      use(0, 0, 1, true),
      use(0, 1, 9, true),
      use(0, 2, 5, false),
      use(0, 3, 1, false),
    ];
    const second = [...[4, 5, 6, 7].map((expert) => use(1, expert, 0, true)), use(1, 0, 3, false)];

    const merged = mergeExpertLists([first, second]).map(({ layer, expert }) => [layer, expert]);

    expect(merged).toEqual([
      [1, 4],
      [0, 0],
      [1, 5],
      [1, 6],
      [0, 1],
      [1, 7],
      [0, 2],
      [1, 0],
      [0, 3],
    ]);
  });

  it('of one part are its list, and of none are empty', () => {
    const only = [use(2, 1, 4, true), use(2, 2, 8, true), use(3, 3, 2, false)];

    expect(mergeExpertLists([only])).toEqual(only);
    expect(mergeExpertLists([[], []])).toEqual([]);
  });
});
