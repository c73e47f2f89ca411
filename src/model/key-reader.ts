import type { Metadata } from '../gguf/index.js';

/** Where a number may lie, both ends included. */
export interface Range {
  readonly least: number;
  readonly most: number;
}

/** The array in the file may be far longer than what is used of it. */
function firstOf(values: ArrayLike<number>, count: number): number[] {
  return Array.from({ length: count }, (_, index) => values[index] ?? 0);
}

/** Values that keep arithmetic going after a problem was noted. They never reach a `ModelShape`. */
const absentInteger = 0;
const absentFloat = 0;

/**
 * Reads typed, range-checked values and notes each problem instead of stopping, so that the user learns everything
 * that is wrong with a file at once.
 */
export class KeyReader {
  readonly problems: string[] = [];

  constructor(
    readonly metadata: Metadata,
    readonly prefix: string,
  ) {}

  #missing(key: string): void {
    this.problems.push(`required metadata key is missing: ${key}`);
  }

  #wrong(key: string, expected: string): void {
    this.problems.push(
      `metadata key ${key} is ${this.metadata.describe(key) ?? 'missing'}, must be ${expected}`,
    );
  }

  has(key: string): boolean {
    return this.metadata.has(this.prefix + key);
  }

  integer(key: string, range: Range, fallback?: number): number {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      if (fallback === undefined) {
        this.#missing(full);
      }
      return fallback ?? absentInteger;
    }
    const value = this.metadata.integer(full);
    if (value === undefined || value < range.least || value > range.most) {
      this.#wrong(full, `a whole number from ${range.least} to ${range.most}`);
      return absentInteger;
    }
    return value;
  }

  /** A value that has to be this one where the key exists at all. */
  fixed(key: string, accepted: readonly number[], why: string): void {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      return;
    }
    const value = this.metadata.integer(full);
    if (value === undefined || !accepted.includes(value)) {
      this.#wrong(full, `${accepted.join(' or ')}: ${why}`);
    }
  }

  text(key: string, accepted: string, why: string): void {
    const full = this.prefix + key;
    if (this.metadata.has(full) && this.metadata.string(full) !== accepted) {
      this.#wrong(full, `'${accepted}': ${why}`);
    }
  }

  boolean(key: string, fallback?: boolean): boolean {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      if (fallback === undefined) {
        this.#missing(full);
      }
      return fallback ?? false;
    }
    const value = this.metadata.boolean(full);
    if (value === undefined) {
      this.#wrong(full, 'true or false');
    }
    return value ?? false;
  }

  /** A finite number, greater than `above`. */
  float(key: string, above: number, fallback?: number): number {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      if (fallback === undefined) {
        this.#missing(full);
      }
      return fallback ?? absentFloat;
    }
    const value = this.metadata.float(full);
    // As the engine sees it: a 64-bit value may have no place in 32 bits.
    if (
      value === undefined ||
      !Number.isFinite(Math.fround(value)) ||
      !(Math.fround(value) > above)
    ) {
      this.#wrong(full, `a finite number above ${above}`);
      return absentFloat;
    }
    return value;
  }

  /** One whole number per layer. The array may be longer: blocks of a draft model have entries too. */
  integerPerLayer(key: string, layers: number, range: Range): readonly number[] {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      this.#missing(full);
      return [];
    }
    const values = this.metadata.integers(full);
    if (values === undefined || values.length < layers) {
      this.#wrong(full, `an array of at least ${layers} whole numbers, one per layer`);
      return [];
    }
    const kept = firstOf(values, layers);
    const layer = kept.findIndex((value) => value < range.least || value > range.most);
    if (layer >= 0) {
      this.problems.push(
        `metadata key ${full} has ${kept[layer] ?? ''} for layer ${layer}, must be ${range.least} to ${range.most}`,
      );
      return [];
    }
    return kept;
  }

  /** One limit above 0 per layer (infinity is a limit: none), from an array or from one number for all layers. */
  limitPerLayer(key: string, layers: number): readonly number[] {
    const full = this.prefix + key;
    if (!this.metadata.has(full)) {
      this.#missing(full);
      return [];
    }
    const single = this.metadata.float(full);
    const values =
      single === undefined ? this.metadata.floats(full) : new Float32Array(layers).fill(single);
    if (values === undefined || values.length < layers) {
      this.#wrong(full, `a number, or an array of at least ${layers}, one per layer`);
      return [];
    }
    const kept = firstOf(values, layers);
    const layer = kept.findIndex((value) => !(Math.fround(value) > 0));
    if (layer >= 0) {
      this.problems.push(
        `metadata key ${full} has ${kept[layer] ?? ''} for layer ${layer}, must be above 0`,
      );
      return [];
    }
    return kept;
  }
}
