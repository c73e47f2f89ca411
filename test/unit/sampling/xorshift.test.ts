import { describe, expect, it } from 'vitest';
import { Xorshift64Star } from '../../../src/sampling/index.js';

function floats(seed: bigint, count = 4): number[] {
  const generator = new Xorshift64Star(seed);
  return Array.from({ length: count }, () => generator.nextFloat());
}

describe('Xorshift64Star', () => {
  it.each([
    [1n, [0.28083503246307373, 0.6711372137069702, 0.7258461117744446, 0.3035292625427246]],
    [42n, [0.3390852212905884, 0.7822558283805847, 0.790136992931366, 0.9440426230430603]],
    [123456789n, [0.9287225604057312, 0.4944298267364502, 0.2839183211326599, 0.1275457739830017]],
  ])('gives the known floats for seed %d', (seed, expected) => {
    expect(floats(seed)).toEqual(expected);
  });

  it('replaces a zero seed by the golden ratio constant', () => {
    expect(floats(0n)).toEqual(floats(0x9e3779b97f4a7c15n));
  });

  it('takes all 64 bits of a seed, and no more', () => {
    expect(floats(1n << 63n)).not.toEqual(floats(0n));
    expect(floats((1n << 64n) + 42n)).toEqual(floats(42n));
    expect(floats(2n ** 64n - 1n)).toEqual(floats(-1n));
  });

  it('stays in [0, 1) and is exact in float32', () => {
    for (const value of floats(7n, 2000)) {
      expect(value).toBeGreaterThanOrEqual(0);
      expect(value).toBeLessThan(1);
      expect(Math.fround(value)).toBe(value);
    }
  });
});
