const mask64 = (1n << 64n) - 1n;
/** xorshift never leaves a zero state, so a zero seed gets this one instead. */
const stateForZeroSeed = 0x9e3779b97f4a7c15n;
const outputMultiplier = 0x2545f4914f6cdd1dn;

/**
 * The xorshift64* generator: the same seed gives the same floats on every machine and in every implementation.
 *
 * The seed is the state itself (modulo 2^64), without mixing. BigInt is slow, but one draw per token is all there is.
 */
export class Xorshift64Star {
  private state: bigint;

  constructor(seed: bigint) {
    const state = seed & mask64;
    this.state = state === 0n ? stateForZeroSeed : state;
  }

  /** Next float in [0, 1), a multiple of 2^-24: exact in float32. */
  nextFloat(): number {
    let x = this.state;
    x ^= x >> 12n;
    x ^= (x << 25n) & mask64;
    x ^= x >> 27n;
    this.state = x;

    const output = (x * outputMultiplier) & mask64;
    return Number(output >> 40n) / 2 ** 24;
  }
}
