import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import type { GgufFile } from '../../../src/gguf/index.js';
import { damages, mutantOf, openInMemory, telling } from '../../support/gguf-mutants.js';
import { list, text, u32 } from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';

const written = writeGguf({
  alignment: 64,
  metadata: [
    ['general.architecture', text('test')],
    ['a.count', u32(7)],
    ['a.wide', { type: 'u64', value: 2n ** 40n }],
    ['a.flag', { type: 'bool', value: true }],
    ['a.words', list('string', ['one', 'two', '', 'Ġthree'])],
    ['a.list', list('i32', [1, 2, 3])],
    ['a.nested', { type: 'array', element: 'array', values: [list('u8', [1]), list('u8', [])] }],
    ['split.count', { type: 'u16', value: 1 }],
  ],
  tensors: [
    { name: 'a', type: 'F32', dims: [16, 4] },
    { name: 'b', type: 'Q8_0', dims: [32, 2, 3] },
    { name: 'c', type: 'Q4_K', dims: [256] },
  ],
});

/** Opens a mutant: either it is refused with a sentence, or everything about it holds. */
function openMutant(header: Buffer, dataBytes: number): 'refused' | 'opened' {
  let gguf: GgufFile;
  try {
    gguf = openInMemory(header, dataBytes);
  } catch (error) {
    if (error instanceof GgufError) {
      expect(error.message).toMatch(/^[\w ]{10,}/);
      expect(error.message.length).toBeLessThan(2000);
      return 'refused';
    }
    throw error;
  }
  const inOrder = [...gguf.tensors].sort((a, b) => a.offset - b.offset);
  const end = inOrder.reduce((free, { offset, bytes, dims }) => {
    expect(offset).toBeGreaterThanOrEqual(free);
    expect(offset % gguf.alignment).toBe(0);
    expect(dims.every((dim) => Number.isSafeInteger(dim) && dim > 0)).toBe(true);
    return offset + bytes;
  }, 24);
  expect(end).toBeLessThanOrEqual(Math.max(24, header.length + dataBytes));
  for (const key of gguf.metadata.keys()) {
    gguf.metadata.strings(key);
    gguf.metadata.integers(key);
    gguf.metadata.floats(key);
    expect(gguf.metadata.describe(key)).toBeDefined();
  }
  return 'opened';
}

describe('a damaged file', () => {
  it('is refused with a sentence or opens sound: a small file', () => {
    const outcomes = { refused: 0, opened: 0 };

    fc.assert(
      fc.property(damages, (list) => {
        const { header, cut } = mutantOf(written.header, list);
        outcomes[openMutant(header, cut ? 0 : written.dataBytes)] += 1;
      }),
      { numRuns: 4000 },
    );

    // Damage that never or always matters would be no test.
    expect(outcomes.refused).toBeGreaterThan(1000);
    expect(outcomes.opened).toBeGreaterThan(50);
  });

  it('is refused with a sentence or opens sound: the header of a real model', () => {
    const fixture = 'test/fixtures/a-q8_0.gguf';
    const bytes = readFileSync(fixture);
    const dataByte = openGguf(fixture).tensors[0]?.offset ?? 0;

    fc.assert(
      fc.property(damages, (list) => {
        const { header, cut } = mutantOf(bytes.subarray(0, dataByte), list);
        openMutant(header, cut ? 0 : bytes.length - dataByte);
      }),
      { numRuns: 600 },
    );
  });

  it.each([...written.fields.keys()])('is refused or sound whatever %s says', (field) => {
    const original = Buffer.from(written.header);
    for (const value of telling) {
      openMutant(written.patch(field, value).header, written.dataBytes);
      original.copy(written.header);
    }
  });
});
