import { printable } from './printable.js';

export type IntegerType = 'u8' | 'i8' | 'u16' | 'i16' | 'u32' | 'i32' | 'u64' | 'i64';
export type FloatType = 'f32' | 'f64';
export type NumberType = IntegerType | FloatType;

/** One value as it stands in the file. Arrays stay undecoded bytes until somebody asks for them. */
export type MetadataValue =
  | { readonly kind: 'integer'; readonly type: IntegerType; readonly value: bigint }
  | { readonly kind: 'float'; readonly type: FloatType; readonly value: number }
  | { readonly kind: 'boolean'; readonly value: boolean }
  | { readonly kind: 'string'; readonly value: string }
  | { readonly kind: 'strings'; readonly count: number; readonly decode: () => readonly string[] }
  | {
      readonly kind: 'numbers';
      readonly type: NumberType;
      readonly count: number;
      /** Little-endian values, `count` times the size of `type`. */
      readonly bytes: Uint8Array;
    }
  | { readonly kind: 'booleans'; readonly count: number }
  | { readonly kind: 'arrays'; readonly count: number };

/** Numbers of an array value: a typed array of the width in the file, or `number[]` for 64-bit integers. */
export type NumberList = ArrayLike<number> & Iterable<number>;

function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

/** A typed array over a copy, because the bytes in the header have no alignment. GGUF and our hosts are little-endian. */
function decodeNumbers(type: NumberType, bytes: Uint8Array): NumberList | undefined {
  const copy = new Uint8Array(bytes).buffer;
  switch (type) {
    case 'u8':
      return new Uint8Array(copy);
    case 'i8':
      return new Int8Array(copy);
    case 'u16':
      return new Uint16Array(copy);
    case 'i16':
      return new Int16Array(copy);
    case 'u32':
      return new Uint32Array(copy);
    case 'i32':
      return new Int32Array(copy);
    case 'f32':
      return new Float32Array(copy);
    case 'f64':
      return new Float64Array(copy);
    case 'u64':
      return exactNumbers(new BigUint64Array(copy));
    case 'i64':
      return exactNumbers(new BigInt64Array(copy));
    default:
      return type satisfies never;
  }
}

/** `undefined` when one of the values has no exact `number`. */
function exactNumbers(values: BigUint64Array | BigInt64Array): readonly number[] | undefined {
  const numbers: number[] = [];
  for (const value of values) {
    const number = exactNumber(value);
    if (number === undefined) {
      return undefined;
    }
    numbers.push(number);
  }
  return numbers;
}

function exactNumber(value: bigint): number | undefined {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : undefined;
}

/** The fewest digits that still mean this 32-bit float: `0.000001`, not `9.999999974752427e-7`. */
function shortestSingle(value: number): string {
  for (let digits = 1; digits <= 9; digits += 1) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) {
      return String(rounded);
    }
  }
  return String(value);
}

/**
 * The key/value pairs of a GGUF file. A getter answers `undefined` when the key is missing or holds another kind of
 * value; `describe` tells the two apart. Writers disagree about widths, so every getter takes every width.
 */
export class Metadata {
  readonly #values: ReadonlyMap<string, MetadataValue>;
  readonly #decoded = new Map<string, readonly string[]>();

  constructor(values: ReadonlyMap<string, MetadataValue>) {
    this.#values = values;
  }

  has(key: string): boolean {
    return this.#values.has(key);
  }

  /** In file order. */
  keys(): string[] {
    return [...this.#values.keys()];
  }

  string(key: string): string | undefined {
    const value = this.#values.get(key);
    return value?.kind === 'string' ? value.value : undefined;
  }

  /** `undefined` also for a 64-bit value that has no exact `number`: it is never rounded. */
  integer(key: string): number | undefined {
    const value = this.#values.get(key);
    return value?.kind === 'integer' ? exactNumber(value.value) : undefined;
  }

  /** Takes integers too. */
  float(key: string): number | undefined {
    const value = this.#values.get(key);
    return value?.kind === 'float' ? value.value : this.integer(key);
  }

  /** Takes the integers 0 and 1 too. */
  boolean(key: string): boolean | undefined {
    const value = this.#values.get(key);
    if (value?.kind === 'boolean') {
      return value.value;
    }
    const integer = this.integer(key);
    return integer === 0 || integer === 1 ? integer === 1 : undefined;
  }

  /** Decoded at the first call: a vocabulary costs nothing to those who only look at the tensors. */
  strings(key: string): readonly string[] | undefined {
    const value = this.#values.get(key);
    if (value?.kind !== 'strings') {
      return undefined;
    }
    let decoded = this.#decoded.get(key);
    if (decoded === undefined) {
      decoded = value.decode();
      this.#decoded.set(key, decoded);
    }
    return decoded;
  }

  /** `undefined` also when a 64-bit value has no exact `number`. */
  integers(key: string): NumberList | undefined {
    const value = this.#values.get(key);
    return value?.kind === 'numbers' && value.type !== 'f32' && value.type !== 'f64'
      ? decodeNumbers(value.type, value.bytes)
      : undefined;
  }

  /** Takes arrays of integers too. */
  floats(key: string): NumberList | undefined {
    const value = this.#values.get(key);
    return value?.kind === 'numbers' ? decodeNumbers(value.type, value.bytes) : undefined;
  }

  /** Elements of an array, without decoding it. */
  count(key: string): number | undefined {
    const value = this.#values.get(key);
    return value !== undefined && 'count' in value ? value.count : undefined;
  }

  /** What the key holds, in a few words that are safe to print: `u32 43`, `string 'yarn'`, `array of 44 i32`. */
  describe(key: string): string | undefined {
    const value = this.#values.get(key);
    if (value === undefined) {
      return undefined;
    }
    switch (value.kind) {
      case 'integer':
        return `${value.type} ${value.value.toString()}`;
      case 'float':
        return `${value.type} ${value.type === 'f32' ? shortestSingle(value.value) : String(value.value)}`;
      case 'boolean':
        return `bool ${value.value}`;
      case 'string':
        return `string '${printable(value.value)}'`;
      case 'strings':
        return `array of ${plural(value.count, 'string')}`;
      case 'numbers':
        return `array of ${value.count} ${value.type}`;
      case 'booleans':
        return `array of ${value.count} bool`;
      case 'arrays':
        return `array of ${plural(value.count, 'array')}`;
      default:
        return value satisfies never;
    }
  }
}
