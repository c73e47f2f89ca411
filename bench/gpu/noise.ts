/** A generator that is fast and good enough for weights and workloads: xorshift, the same numbers for the same seed. */
export class Noise {
  #state: number;
  constructor(seed: number) {
    this.#state = Math.imul(seed + 1, 0x9e3779b1) | 1;
  }
  bits(): number {
    let s = this.#state;
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    this.#state = s;
    return s >>> 0;
  }
  /** About normal: the sum of four uniform numbers. */
  normal(): number {
    let sum = 0;
    for (let i = 0; i < 4; i += 1) sum += this.bits() / 2 ** 32;
    return (sum - 2) * Math.sqrt(3);
  }
}
