import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import type { Metadata } from '../../../src/gguf/index.js';
import { scratchFolder } from '../../support/gguf-scratch.js';
import { list, text } from '../../support/gguf-spec.js';
import type { ScalarType, WrittenValue } from '../../support/gguf-writer.js';

const scratch = scratchFolder();

function metadataOf(values: Record<string, WrittenValue>): Metadata {
  const path = scratch.save('metadata.gguf', {
    metadata: Object.entries(values),
    tensors: [{ name: 't', type: 'F32', dims: [1] }],
  });
  return openGguf(path).metadata;
}

const integerTypes: ScalarType[] = ['u8', 'i8', 'u16', 'i16', 'u32', 'i32', 'u64', 'i64'];

describe('Metadata', () => {
  it.each(integerTypes)('reads an integer written as %s, alone and in an array', (type) => {
    const metadata = metadataOf({ one: { type, value: 43 }, many: list(type, [4, 0, 127]) });

    expect(metadata.integer('one')).toBe(43);
    expect(metadata.float('one')).toBe(43);
    expect(Array.from(metadata.integers('many') ?? [])).toEqual([4, 0, 127]);
    expect(Array.from(metadata.floats('many') ?? [])).toEqual([4, 0, 127]);
  });

  it.each<ScalarType>(['i8', 'i16', 'i32', 'i64'])('keeps the sign of an %s', (type) => {
    const metadata = metadataOf({ one: { type, value: -1 }, many: list(type, [-2, 3]) });

    expect(metadata.integer('one')).toBe(-1);
    expect(Array.from(metadata.integers('many') ?? [])).toEqual([-2, 3]);
  });

  it.each<ScalarType>(['f32', 'f64'])(
    'reads a float written as %s, which is no integer',
    (type) => {
      const metadata = metadataOf({ one: { type, value: 1.5 }, many: list(type, [0.25, -8]) });

      expect(metadata.float('one')).toBe(1.5);
      expect(metadata.integer('one')).toBeUndefined();
      expect(Array.from(metadata.floats('many') ?? [])).toEqual([0.25, -8]);
      expect(metadata.integers('many')).toBeUndefined();
    },
  );

  it.each<[bigint, number | undefined]>([
    [2n ** 53n - 1n, Number.MAX_SAFE_INTEGER],
    [2n ** 53n, undefined],
    [2n ** 53n + 1n, undefined],
    [2n ** 64n - 1n, undefined],
  ])('never rounds the 64-bit value %d', (value, expected) => {
    const metadata = metadataOf({ one: { type: 'u64', value }, many: list('u64', [1n, value]) });

    expect(metadata.integer('one')).toBe(expected);
    expect(metadata.integers('many')?.[1]).toBe(expected);
    expect(metadata.describe('one')).toBe(`u64 ${value}`);
  });

  it('reads booleans, and 0 and 1 as such', () => {
    const metadata = metadataOf({
      yes: { type: 'bool', value: true },
      no: { type: 'bool', value: false },
      one: { type: 'u8', value: 1 },
      two: { type: 'u8', value: 2 },
    });

    expect(['yes', 'no', 'one', 'two'].map((key) => metadata.boolean(key))).toEqual([
      true,
      false,
      true,
      undefined,
    ]);
  });

  it('reads strings in any script, and the same array each time', () => {
    const words = ['', 'a', 'Ġthe', '你好', '<｜User｜>', '🙂', 'x'.repeat(300_000)];
    const metadata = metadataOf({ words: list('string', words), title: text('Größe') });

    expect(metadata.strings('words')).toEqual(words);
    expect(metadata.strings('words')).toBe(metadata.strings('words'));
    expect(metadata.count('words')).toBe(words.length);
    expect(metadata.string('title')).toBe('Größe');
  });

  it('answers undefined for a key of another kind, and tells what it is', () => {
    const metadata = metadataOf({
      text: text('yarn\u0007'),
      list: list('i32', [1, 2]),
      words: list('string', ['only']),
      flags: list('bool', [true, false]),
      epsilon: { type: 'f32', value: 1e-6 },
      wide: { type: 'f64', value: 0.1 },
      flag: { type: 'bool', value: true },
    });

    expect(metadata.integer('text')).toBeUndefined();
    expect(metadata.float('list')).toBeUndefined();
    expect(metadata.string('list')).toBeUndefined();
    expect(metadata.strings('list')).toBeUndefined();
    expect(metadata.integers('words')).toBeUndefined();
    expect(metadata.boolean('text')).toBeUndefined();
    expect(metadata.keys().map((key) => metadata.describe(key))).toEqual([
      "string 'yarn\\u{7}'",
      'array of 2 i32',
      'array of 1 string',
      'array of 2 bool',
      'f32 0.000001',
      'f64 0.1',
      'bool true',
    ]);
    expect(metadata.describe('nothing')).toBeUndefined();
    expect(metadata.has('nothing')).toBe(false);
  });
});
