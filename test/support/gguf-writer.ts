import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';

/** Numbers of the value types in the file format. */
export const valueTypes = {
  u8: 0,
  i8: 1,
  u16: 2,
  i16: 3,
  u32: 4,
  i32: 5,
  f32: 6,
  bool: 7,
  string: 8,
  array: 9,
  u64: 10,
  i64: 11,
  f64: 12,
} as const;
export type ValueType = keyof typeof valueTypes;
export type ScalarType = Exclude<ValueType, 'array'>;

export type Scalar = number | bigint | boolean | string | Uint8Array;

/** A metadata value with the width it is written in. Strings may be given as bytes, so that they may be invalid. */
export type WrittenValue =
  | { readonly type: ScalarType; readonly value: Scalar }
  | { readonly type: 'array'; readonly element: ScalarType; readonly values: ArrayLike<Scalar> }
  | { readonly type: 'array'; readonly element: 'array'; readonly values: readonly WrittenValue[] };

/** Element types by the name the format gives them: number, values per block, bytes per block. */
export const blockTypes = {
  F32: [0, 1, 4],
  F16: [1, 1, 2],
  Q4_0: [2, 32, 18],
  Q8_0: [8, 32, 34],
  Q2_K: [10, 256, 84],
  Q3_K: [11, 256, 110],
  Q4_K: [12, 256, 144],
  Q5_K: [13, 256, 176],
  Q6_K: [14, 256, 210],
  IQ2_XXS: [16, 256, 66],
  I32: [26, 1, 4],
  BF16: [30, 1, 2],
  MXFP4: [39, 32, 17],
} as const;
export type BlockType = keyof typeof blockTypes;

/** A tensor to write. Without `data` its bytes are zero. */
export interface WrittenTensor {
  name: string;
  type: BlockType;
  /** Fastest first. */
  dims: number[];
  data?: Uint8Array;
}

/** A whole file. Plain and changeable: a test that wants a damaged model edits it before writing. */
export interface GgufSpec {
  version?: number;
  /** Written as `general.alignment` when given; 32 otherwise. */
  alignment?: number;
  metadata: [string, WrittenValue][];
  tensors: WrittenTensor[];
}

/** Where a field of the header lies, for breaking it. */
interface Field {
  readonly offset: number;
  readonly type: ScalarType;
}

/** Bytes of a tensor as its type and dimensions demand. */
export function tensorBytes({ type, dims }: WrittenTensor): number {
  const [, blockValues, blockBytes] = blockTypes[type];
  return (dims.reduce((product, dim) => product * dim, 1) / blockValues) * blockBytes;
}

function roundUp(value: number, multiple: number): number {
  return Math.ceil(value / multiple) * multiple;
}

const integerBytes = { u8: 1, i8: 1, u16: 2, i16: 2, u32: 4, i32: 4, u64: 8, i64: 8 } as const;

function scalarBytes(type: ScalarType, value: Scalar): Buffer {
  if (type === 'string') {
    const text =
      typeof value === 'string' ? Buffer.from(value, 'utf8') : Buffer.from(value as Uint8Array);
    return Buffer.concat([scalarBytes('u64', text.length), text]);
  }
  if (type === 'f32') {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(Number(value));
    return bytes;
  }
  if (type === 'f64') {
    const bytes = Buffer.alloc(8);
    bytes.writeDoubleLE(Number(value));
    return bytes;
  }
  const wide = Buffer.alloc(8);
  wide.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value as number | bigint | boolean)));
  return wide.subarray(0, type === 'bool' ? 1 : integerBytes[type]);
}

/** Writes headers field by field and remembers where each lies. */
class HeaderWriter {
  readonly #chunks: Buffer[] = [];
  readonly fields = new Map<string, Field>();
  length = 0;

  bytes(bytes: Buffer): void {
    this.#chunks.push(bytes);
    this.length += bytes.length;
  }

  field(name: string, type: ScalarType, value: Scalar): void {
    this.fields.set(name, { offset: this.length, type });
    this.bytes(scalarBytes(type, value));
  }

  value(name: string, value: WrittenValue): void {
    if (value.type !== 'array') {
      this.field(`${name}.value`, value.type, value.value);
      return;
    }
    this.field(`${name}.element`, 'u32', valueTypes[value.element]);
    this.field(`${name}.count`, 'u64', value.values.length);
    if (value.element === 'array') {
      value.values.forEach((inner, index) => {
        this.value(`${name}.${index}`, inner);
      });
      return;
    }
    this.fields.set(`${name}.elements`, { offset: this.length, type: value.element });
    const { element } = value;
    this.bytes(Buffer.concat(Array.from(value.values, (scalar) => scalarBytes(element, scalar))));
  }

  finished(): Buffer {
    return Buffer.concat(this.#chunks);
  }
}

/** A file in memory whose header fields can be broken one by one. */
export class WrittenGguf {
  constructor(
    /** Header and padding, up to the tensor data. */
    readonly header: Buffer,
    readonly fields: ReadonlyMap<string, Field>,
    readonly spec: GgufSpec,
    /** Of each tensor, relative to the data section. */
    readonly offsets: readonly number[],
    /** Behind the header; less makes a file that stops early. */
    public dataBytes: number,
  ) {}

  /** Byte at which a field begins. Names: `version`, `tensorCount`, `keyCount`, `key.K.name`, `key.K.type`,
   * `key.K.value`, `key.K.element`, `key.K.count`, `key.K.elements`, `tensor.T.name`, `tensor.T.dimCount`,
   * `tensor.T.dim.I`, `tensor.T.type`, `tensor.T.offset`. A string's field is its 64-bit length. */
  at(name: string): number {
    const field = this.fields.get(name);
    if (field === undefined) {
      throw new Error(`the written file has no field ${name}`);
    }
    return field.offset;
  }

  /** Overwrites a field; a string's length by a number. */
  patch(name: string, value: number | bigint): this {
    const type = this.fields.get(name)?.type ?? 'u8';
    scalarBytes(type === 'string' ? 'u64' : type, value).copy(this.header, this.at(name));
    return this;
  }

  /** The whole file; only for small ones. */
  bytes(): Buffer {
    const whole = Buffer.alloc(this.header.length + this.dataBytes);
    this.header.copy(whole);
    this.spec.tensors.forEach(({ data }, index) => {
      whole.set(data ?? [], this.header.length + (this.offsets[index] ?? 0));
    });
    return whole;
  }

  /** Writes the file. Tensors without data become holes, so a file may be far larger than the disk. */
  save(path: string): void {
    const descriptor = openSync(path, 'w');
    try {
      writeSync(descriptor, this.header, 0, this.header.length, 0);
      this.spec.tensors.forEach(({ data }, index) => {
        if (data !== undefined && data.length > 0) {
          writeSync(
            descriptor,
            data,
            0,
            data.length,
            this.header.length + (this.offsets[index] ?? 0),
          );
        }
      });
      ftruncateSync(descriptor, this.header.length + this.dataBytes);
    } finally {
      closeSync(descriptor);
    }
  }
}

/** Lays a file out as the format demands: tensors back to back, each padded to the alignment. */
export function writeGguf(spec: GgufSpec): WrittenGguf {
  const alignment = spec.alignment ?? 32;
  const metadata: [string, WrittenValue][] =
    spec.alignment === undefined
      ? spec.metadata
      : [...spec.metadata, ['general.alignment', { type: 'u32', value: alignment }]];
  const writer = new HeaderWriter();
  writer.bytes(Buffer.from('GGUF'));
  writer.field('version', 'u32', spec.version ?? 3);
  writer.field('tensorCount', 'u64', spec.tensors.length);
  writer.field('keyCount', 'u64', metadata.length);
  for (const [key, value] of metadata) {
    writer.field(`key.${key}.name`, 'string', key);
    writer.field(`key.${key}.type`, 'u32', valueTypes[value.type]);
    writer.value(`key.${key}`, value);
  }
  const offsets: number[] = [];
  let end = 0;
  for (const tensor of spec.tensors) {
    const prefix = `tensor.${tensor.name}`;
    writer.field(`${prefix}.name`, 'string', tensor.name);
    writer.field(`${prefix}.dimCount`, 'u32', tensor.dims.length);
    tensor.dims.forEach((dim, index) => {
      writer.field(`${prefix}.dim.${index}`, 'u64', dim);
    });
    writer.field(`${prefix}.type`, 'u32', blockTypes[tensor.type][0]);
    writer.field(`${prefix}.offset`, 'u64', end);
    offsets.push(end);
    end = roundUp(end + tensorBytes(tensor), alignment);
  }
  writer.bytes(Buffer.alloc(roundUp(writer.length, alignment) - writer.length));
  return new WrittenGguf(writer.finished(), writer.fields, spec, offsets, end);
}
