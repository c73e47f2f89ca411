import { describe, expect, it } from 'vitest';
import { PieceCache } from '../../../src/tokenizer/piece-cache.js';

const ids = Int32Array.of(1, 2);

function fill(cache: PieceCache, count: number, from = 0): void {
  for (let index = from; index < from + count; index++) {
    cache.set(`piece ${index}`, ids);
  }
}

describe('PieceCache', () => {
  it('forgets the oldest pieces when two generations are full', () => {
    const cache = new PieceCache();
    cache.set('old', ids);

    fill(cache, 70_000);

    expect(cache.get('old')).toBeUndefined();
    expect(cache.get('piece 0')).toBeUndefined();
    expect(cache.get('piece 69999')).toBe(ids);
  });

  it('keeps a piece that is asked for in every generation', () => {
    const cache = new PieceCache();
    cache.set('often', ids);

    for (let round = 0; round < 8; round++) {
      fill(cache, 20_000, round * 20_000);
      expect(cache.get('often')).toBe(ids);
    }
  });

  it('does not take long pieces', () => {
    const cache = new PieceCache();

    cache.set('x'.repeat(65), ids);

    expect(cache.get('x'.repeat(65))).toBeUndefined();
  });
});
