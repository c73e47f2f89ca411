import { InvalidValue, UsageError } from './errors.js';

// The number grammars of docs/cli.md. Whole-number values take the leading blanks and the plus sign that C's
// strtol takes, because scripts that format numbers with a width rely on it; nothing may follow the number.

const wholeNumber = /^[ \t\n\v\f\r]*\+?([0-9]+)$/;
const largestInteger = 2_147_483_647n;

function whole(text: string, lowest: bigint, highest: bigint): bigint {
  const digits = wholeNumber.exec(text)?.[1];
  const value = digits === undefined ? undefined : BigInt(digits);
  if (value === undefined || value < lowest || value > highest) {
    throw new InvalidValue(text);
  }
  return value;
}

export function integerBetween(lowest: number, highest: number): (text: string) => number {
  return (text) => Number(whole(text, BigInt(lowest), BigInt(highest)));
}

export const positiveInteger = (text: string): number => Number(whole(text, 1n, largestInteger));

export const nonNegativeInteger = (text: string): number => Number(whole(text, 0n, largestInteger));

/** A seed: 1 to 2^64 - 1. Nothing wraps around and nothing saturates. */
export const seedValue = (text: string): bigint => whole(text, 1n, 2n ** 64n - 1n);

const decimalFloat = /^[ \t\n\v\f\r]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)$/;
const hexFloat =
  /^[ \t\n\v\f\r]*([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)(?:[pP]([+-]?[0-9]+))?$/;

function parseFloatText(text: string): number | undefined {
  const decimal = decimalFloat.exec(text)?.[1];
  if (decimal !== undefined) {
    return Number(decimal);
  }
  const hex = hexFloat.exec(text);
  const [, sign = '', integral = '', fraction = '', exponent = '0'] = hex ?? [];
  if (hex === null || integral + fraction === '') {
    return undefined;
  }
  const mantissa = Number(`0x${integral}${fraction}`);
  const value = mantissa * 2 ** (Number(exponent) - 4 * fraction.length);
  return sign === '-' ? -value : value;
}

/** C's float syntax in the C locale, without `nan` and `inf`. */
export function floatBetween(lowest: number, highest: number): (text: string) => number {
  return (text) => {
    const value = parseFloatText(text);
    if (value === undefined || !(value >= lowest && value <= highest)) {
      throw new InvalidValue(text);
    }
    return value;
  };
}

/** Digits alone, as environment variables and descriptions have them: no sign, no blanks. */
export function plainInteger(lowest: number, highest: number): (text: string) => number {
  return (text) => {
    const value = /^[0-9]+$/.test(text) ? Number(text) : NaN;
    if (!(value >= lowest && value <= highest)) {
      throw new InvalidValue(text);
    }
    return value;
  };
}

/** The same with an optional fraction: `4`, `4.5`, `.5`. */
export function plainDecimal(lowest: number, highest: number): (text: string) => number {
  return (text) => {
    const value = /^(?:[0-9]+\.?[0-9]*|\.[0-9]+)$/.test(text) ? Number(text) : NaN;
    if (!(value >= lowest && value <= highest)) {
      throw new InvalidValue(text);
    }
    return value;
  };
}

/** One of a few exact, lower-case words. */
export function word<const Word extends string>(words: readonly Word[]): (text: string) => Word {
  return (text) => {
    const found = words.find((candidate) => candidate === text);
    if (found === undefined) {
      throw new InvalidValue(text);
    }
    return found;
  };
}

const gibibytes = /^([0-9]+)(?:gb)?$/i;

/** `64GB`, `64gb` or `64`; the unit is GiB although it is spelt GB. */
export function gibValue(text: string): number {
  const digits = gibibytes.exec(text)?.[1];
  const value = digits === undefined ? 0 : Number(digits);
  if (value < 1 || value > 2 ** 24) {
    throw new InvalidValue(text);
  }
  return value;
}

export type ExpertCacheSize =
  | { readonly kind: 'experts'; readonly count: number }
  | { readonly kind: 'gib'; readonly gib: number };

/** Plain digits count experts, a GB suffix makes it a budget. */
export function expertCacheSize(text: string): ExpertCacheSize {
  if (/^[0-9]+$/.test(text)) {
    const count = Number(text);
    if (count >= 1 && count <= 4_294_967_295) {
      return { kind: 'experts', count };
    }
  } else if (gibibytes.test(text) && Number.parseInt(text, 10) >= 1) {
    return { kind: 'gib', gib: gibValue(text) };
  }
  throw new UsageError(
    `--ssd-streaming-cache-experts must be a number of experts (1..4294967295) or a budget such as 64GB, not '${text}'`,
  );
}

const longestList = 16;

/**
 * A comma-separated list of whole numbers, as `--gpu-vram` and `--gpu-devices` take it; blanks around entries pass.
 * The messages are part of the command line's contract: each names the option and the rest of the text from the fault on.
 */
export function numberList(option: string, text: string, highest: number): number[] {
  const list: number[] = [];
  let rest = text;
  for (;;) {
    rest = rest.replace(/^[ \t]+/, '');
    if (rest === '' || rest.startsWith(',')) {
      throw new UsageError(`${option}: empty entry near '${rest}'`);
    }
    const digits = /^[+-]?[0-9]+/.exec(rest)?.[0];
    if (digits === undefined) {
      throw new UsageError(`${option}: not a number: '${rest}'`);
    }
    const value = Number(digits);
    if (value < 0 || value > highest) {
      throw new UsageError(`${option}: out-of-range value: '${rest}' (allowed 0..${highest})`);
    }
    if (list.length === longestList) {
      throw new UsageError(`${option}: too many entries (max ${longestList})`);
    }
    list.push(value);
    rest = rest.slice(digits.length).replace(/^[ \t]+/, '');
    if (rest === '') {
      return list;
    }
    if (!rest.startsWith(',')) {
      throw new UsageError(`${option}: junk after value: '${rest}'`);
    }
    rest = rest.slice(1);
  }
}

export interface LayerRange {
  readonly text: string;
  readonly first: number;
  /** Inclusive; undefined means the last layer together with the output head. */
  readonly last: number | undefined;
}

/** `A:B` or `A:output`, inclusive, decimal. */
export function layerRange(text: string): LayerRange {
  const fail = (reason: string): never => {
    throw new UsageError(`invalid --layers ${text}: ${reason}`);
  };
  const [start = '', end = '', ...more] = text.split(':');
  if (start === '' || end === '') {
    return fail('the form is A:B or A:output');
  }
  if (more.length > 0) {
    return fail('there is more than one colon');
  }
  if (!/^[0-9]{1,9}$/.test(start)) {
    return fail(`the start '${start}' is not a layer number`);
  }
  const first = Number(start);
  if (end === 'output') {
    return { text, first, last: undefined };
  }
  if (!/^[0-9]{1,9}$/.test(end)) {
    return fail(`the end '${end}' is neither a layer number nor the word output`);
  }
  const last = Number(end);
  if (last < first) {
    return fail(`the end ${last} is before the start ${first}`);
  }
  return { text, first, last };
}

/** Shares of the context in the hot, warm and cold KV tier, in percent. */
export function tierShares(text: string): readonly number[] {
  const percent = floatBetween(0, 100);
  const shares = text.split(',').map((share) => percent(share));
  const sum = shares.reduce((total, share) => total + share, 0);
  if (shares.length !== 3 || Math.abs(sum - 100) > 0.5) {
    throw new InvalidValue(text);
  }
  return shares;
}
