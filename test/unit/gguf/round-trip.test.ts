import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ggmlTypeName } from '../../../src/gguf/index.js';
import type { Metadata } from '../../../src/gguf/index.js';
import { openInMemory } from '../../support/gguf-mutants.js';
import { blockTypes, tensorBytes, writeGguf } from '../../support/gguf-writer.js';
import type {
  BlockType,
  ScalarType,
  WrittenTensor,
  WrittenValue,
} from '../../support/gguf-writer.js';

const ranges: Record<string, [bigint, bigint]> = {
  u8: [0n, 2n ** 8n - 1n],
  i8: [-(2n ** 7n), 2n ** 7n - 1n],
  u16: [0n, 2n ** 16n - 1n],
  i16: [-(2n ** 15n), 2n ** 15n - 1n],
  u32: [0n, 2n ** 32n - 1n],
  i32: [-(2n ** 31n), 2n ** 31n - 1n],
  u64: [0n, 2n ** 64n - 1n],
  i64: [-(2n ** 63n), 2n ** 63n - 1n],
};

/** Every scalar type with values of its whole range. */
const scalars: readonly [ScalarType, fc.Arbitrary<bigint | number | boolean | string>][] = [
  ...Object.entries(ranges).map(
    ([type, [min, max]]) => [type as ScalarType, fc.bigInt({ min, max })] as const,
  ),
  ['f32', fc.float({ noNaN: true })] as const,
  ['f64', fc.double({ noNaN: true })] as const,
  ['bool', fc.boolean()] as const,
  ['string', fc.string({ unit: 'grapheme' })] as const,
].map(([type, values]) => [type, values]);

const value: fc.Arbitrary<WrittenValue> = fc.oneof(
  ...scalars.map(([type, values]) => values.map((one): WrittenValue => ({ type, value: one }))),
  ...scalars.map(([element, values]) =>
    fc
      .array(values, { maxLength: 20 })
      .map((many): WrittenValue => ({ type: 'array', element, values: many })),
  ),
);

const name = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 60 });

const tensor: fc.Arbitrary<WrittenTensor> = fc
  .record({
    name,
    type: fc.constantFrom(...(Object.keys(blockTypes) as BlockType[])),
    blocks: fc.integer({ min: 1, max: 4 }),
    rows: fc.array(fc.integer({ min: 1, max: 5 }), { maxLength: 3 }),
  })
  .map(({ name: tensorName, type, blocks, rows }) => ({
    name: tensorName,
    type,
    dims: [blocks * blockTypes[type][1], ...rows],
  }));

const spec = fc.record({
  alignment: fc.constantFrom(8, 32, 64, 4096),
  metadata: fc.uniqueArray(fc.tuple(name, value), {
    selector: ([key]) => key,
    minLength: 1,
    maxLength: 12,
  }),
  tensors: fc.uniqueArray(tensor, { selector: (one) => one.name, maxLength: 8 }),
});

const exact = (number: bigint): number | undefined =>
  Number.isSafeInteger(Number(number)) ? Number(number) : undefined;

/** What the getters must answer for a written value, compared as plain data. */
function expected(written: WrittenValue): unknown {
  if (written.type !== 'array') {
    return typeof written.value === 'bigint' ? exact(written.value) : written.value;
  }
  const values = Array.from(written.values as ArrayLike<bigint | number | boolean | string>);
  if (written.element === 'bool') {
    return values.length;
  }
  const numbers = values.map((one) => (typeof one === 'bigint' ? exact(one) : one));
  return numbers.includes(undefined) ? undefined : numbers;
}

function read(metadata: Metadata, key: string, written: WrittenValue): unknown {
  if (written.type === 'array') {
    if (written.element === 'bool') {
      return metadata.count(key);
    }
    if (written.element === 'string') {
      return metadata.strings(key);
    }
    const numbers = metadata.floats(key);
    return numbers === undefined ? undefined : Array.from(numbers);
  }
  switch (written.type) {
    case 'string':
      return metadata.string(key);
    case 'bool':
      return metadata.boolean(key);
    case 'f32':
    case 'f64':
      return metadata.float(key);
    default:
      return metadata.integer(key);
  }
}

describe('what was written', () => {
  it('is read back equal, every type and width', () => {
    fc.assert(
      fc.property(spec, (file) => {
        const written = writeGguf(file);

        const gguf = openInMemory(written.bytes(), 0);

        expect(gguf.metadata.keys()).toEqual([
          ...file.metadata.map(([key]) => key),
          'general.alignment',
        ]);
        for (const [key, one] of file.metadata) {
          expect(read(gguf.metadata, key, one)).toStrictEqual(expected(one));
        }
        expect(gguf.tensors).toStrictEqual(
          file.tensors.map((one, index) => ({
            name: one.name,
            type: blockTypes[one.type][0],
            dims: one.dims,
            file: 0,
            offset: written.header.length + (written.offsets[index] ?? 0),
            bytes: tensorBytes(one),
          })),
        );
        expect(gguf.tensors.map(({ type }) => ggmlTypeName(type))).toEqual(
          file.tensors.map(({ type }) => type),
        );
      }),
      { numRuns: 400 },
    );
  });
});
