import type { HeaderReader } from './header-reader.js';
import type { IntegerType, MetadataValue, NumberType } from './metadata.js';
import { printable } from './printable.js';
import { decodeStrings } from './string-array.js';

/** A tensor as the directory has it, before anything about it is believed. */
export interface TensorInfo {
  readonly name: string;
  readonly dims: readonly bigint[];
  readonly type: number;
  /** Relative to the data section. */
  readonly offset: bigint;
}

export interface Header {
  readonly version: number;
  readonly alignment: number;
  readonly values: ReadonlyMap<string, MetadataValue>;
  readonly tensors: readonly TensorInfo[];
  /** Where the directory ends. */
  readonly endByte: number;
  /** Where tensor data begins: `endByte`, aligned. */
  readonly dataByte: number;
}

const numberTypes: ReadonlyMap<number, { type: NumberType; bytes: number }> = new Map([
  [0, { type: 'u8', bytes: 1 }],
  [1, { type: 'i8', bytes: 1 }],
  [2, { type: 'u16', bytes: 2 }],
  [3, { type: 'i16', bytes: 2 }],
  [4, { type: 'u32', bytes: 4 }],
  [5, { type: 'i32', bytes: 4 }],
  [6, { type: 'f32', bytes: 4 }],
  [10, { type: 'u64', bytes: 8 }],
  [11, { type: 'i64', bytes: 8 }],
  [12, { type: 'f64', bytes: 8 }],
]);
const booleanType = 7;
const stringType = 8;
const arrayType = 9;

/** Bytes of a key by the format's rules, and more than enough for a tensor's name. */
const longestName = 65_535;
/** Arrays in arrays: nobody writes them deeper, and a limit keeps the recursion shallow. */
const deepestNesting = 4;
/** More keys or tensors than any model has: beyond it a hostile header would fill memory with objects. */
const mostKeys = 65_536;
const mostTensors = 65_536;
/** An empty key, a type and one byte; and a name of one byte, one dimension, type and offset. */
const smallestEntryBytes = 13;
const smallestTensorBytes = 33;
/** Smallest size that the magic, version and both counts fit in, plus something to describe. */
export const smallestFileBytes = 32;

const alignmentKey = 'general.alignment';
const usualAlignment = 32n;
/** Weights are read in place as 32- and 64-bit values, so less is of no use. */
const smallestAlignment = 8n;
const largestAlignment = 1n << 30n;

/** Parses everything in front of the tensor data. The cursor stands behind the magic. */
export function parseHeader(reader: HeaderReader): Header {
  const version = parseVersion(reader);
  const tensorCount = limited(reader, mostTensors, 'tensors', reader.u64('the number of tensors'));
  const keyCount = limited(reader, mostKeys, 'metadata keys', reader.u64('the number of keys'));
  const least = keyCount * smallestEntryBytes + tensorCount * smallestTensorBytes;
  if (least > reader.remaining) {
    throw reader.truncated(
      `at least ${least}`,
      `${keyCount} metadata keys and ${tensorCount} tensors`,
    );
  }

  const values = new Map<string, MetadataValue>();
  for (let index = 0; index < keyCount; index += 1) {
    const key = reader.name(`the name of metadata key ${index}`, longestName);
    const shown = `metadata key '${printable(key)}'`;
    if (values.has(key)) {
      throw reader.failure(`${shown} occurs twice`);
    }
    values.set(key, parseValue(reader, shown));
  }
  const alignment = alignmentOf(reader, values.get(alignmentKey));

  const tensors: TensorInfo[] = [];
  for (let index = 0; index < tensorCount; index += 1) {
    tensors.push(parseTensorInfo(reader, index));
  }
  const endByte = reader.position;
  const dataByte = Math.ceil(endByte / alignment) * alignment;
  return { version, alignment, values, tensors, endByte, dataByte };
}

function parseVersion(reader: HeaderReader): number {
  const version = reader.u32('the version');
  if (version === 3) {
    return version;
  }
  const swapped =
    ((version & 0xff) << 24) |
    ((version & 0xff00) << 8) |
    ((version >>> 8) & 0xff00) |
    (version >>> 24);
  if (swapped >= 1 && swapped <= 3) {
    throw reader.failure('the file is big-endian, ds4 reads little-endian files; convert it again');
  }
  throw reader.failure(
    `GGUF version ${version}, ds4 reads only version 3; convert the model again`,
  );
}

function limited(reader: HeaderReader, most: number, what: string, count: bigint): number {
  if (count > BigInt(most)) {
    throw reader.failure(`it promises ${count.toString()} ${what}, the most ds4 takes is ${most}`);
  }
  return Number(count);
}

function integer(type: IntegerType, value: number | bigint): MetadataValue {
  return { kind: 'integer', type, value: BigInt(value) };
}

function parseValue(reader: HeaderReader, shown: string): MetadataValue {
  const type = reader.u32(`the type of ${shown}`);
  switch (type) {
    case 0:
      return integer('u8', reader.u8(shown));
    case 1:
      return integer('i8', reader.i8(shown));
    case 2:
      return integer('u16', reader.u16(shown));
    case 3:
      return integer('i16', reader.i16(shown));
    case 4:
      return integer('u32', reader.u32(shown));
    case 5:
      return integer('i32', reader.i32(shown));
    case 6:
      return { kind: 'float', type: 'f32', value: reader.f32(shown) };
    case booleanType: {
      const value = reader.u8(shown);
      if (value > 1) {
        throw reader.failure(`${shown} is a bool of value ${value}, must be 0 or 1`);
      }
      return { kind: 'boolean', value: value === 1 };
    }
    case stringType:
      return { kind: 'string', value: reader.stringBytes(shown).toString('utf8') };
    case arrayType:
      return parseArray(reader, shown);
    case 10:
      return integer('u64', reader.u64(shown));
    case 11:
      return integer('i64', reader.i64(shown));
    case 12:
      return { kind: 'float', type: 'f64', value: reader.f64(shown) };
    default:
      throw reader.failure(`${shown} has the unknown value type ${type}`);
  }
}

function parseArray(reader: HeaderReader, shown: string): MetadataValue {
  const element = reader.u32(`the element type of ${shown}`);
  const what = `elements of ${shown}`;
  const numbers = numberTypes.get(element);
  if (numbers !== undefined) {
    const count = reader.count(numbers.bytes, what);
    const bytes = reader.bytes(count * numbers.bytes, what);
    return { kind: 'numbers', type: numbers.type, count, bytes };
  }
  switch (element) {
    case booleanType: {
      const count = reader.count(1, what);
      reader.passOver(count, what);
      return { kind: 'booleans', count };
    }
    case stringType: {
      const count = reader.count(8, what);
      const { bytes, spans } = reader.stringSpans(count, shown);
      return { kind: 'strings', count, decode: () => decodeStrings(bytes, spans) };
    }
    case arrayType:
      return { kind: 'arrays', count: skipArrays(reader, shown, what, 1) };
    default:
      throw reader.failure(`${shown} is an array of the unknown value type ${element}`);
  }
}

/**
 * Steps over an array of arrays: nothing we know of uses them, but they do no harm either. A header has room for
 * millions, so this makes no objects.
 *
 * @returns how many there were.
 */
function skipArrays(reader: HeaderReader, shown: string, what: string, depth: number): number {
  if (depth === deepestNesting) {
    throw reader.failure(`${shown} nests arrays more than ${deepestNesting} deep`);
  }
  const arrays = reader.count(12, what);
  for (let index = 0; index < arrays; index += 1) {
    const element = reader.u32(what);
    const valueBytes = element === booleanType ? 1 : numberTypes.get(element)?.bytes;
    if (valueBytes !== undefined) {
      reader.passOver(reader.count(valueBytes, what) * valueBytes, what);
    } else if (element === arrayType) {
      skipArrays(reader, shown, what, depth + 1);
    } else if (element === stringType) {
      const strings = reader.count(8, what);
      for (let string = 0; string < strings; string += 1) {
        reader.passOver(reader.count(1, what), what);
      }
    } else {
      throw reader.failure(`${shown} has arrays of the unknown value type ${element}`);
    }
  }
  return arrays;
}

function alignmentOf(reader: HeaderReader, value: MetadataValue | undefined): number {
  if (value === undefined) {
    return Number(usualAlignment);
  }
  if (value.kind !== 'integer') {
    throw reader.failure(`${alignmentKey} is no integer`);
  }
  const alignment = value.value;
  if (
    alignment < smallestAlignment ||
    alignment > largestAlignment ||
    (alignment & (alignment - 1n)) !== 0n
  ) {
    throw reader.failure(
      `${alignmentKey} is ${alignment.toString()}, must be a power of two ` +
        `from ${smallestAlignment.toString()} to ${largestAlignment.toString()}`,
    );
  }
  return Number(alignment);
}

function parseTensorInfo(reader: HeaderReader, index: number): TensorInfo {
  const name = reader.name(`the name of tensor ${index}`, longestName);
  const shown = `tensor '${printable(name)}'`;
  const dimCount = reader.u32(`the number of dimensions of ${shown}`);
  if (dimCount < 1 || dimCount > 4) {
    throw reader.failure(`${shown} has ${dimCount} dimensions, must have 1 to 4`);
  }
  const dims: bigint[] = [];
  for (let dim = 0; dim < dimCount; dim += 1) {
    dims.push(reader.u64(`dimension ${dim} of ${shown}`));
  }
  const type = reader.u32(`the type of ${shown}`);
  const offset = reader.u64(`the offset of ${shown}`);
  return { name, dims, type, offset };
}
