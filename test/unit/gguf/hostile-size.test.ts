import { truncateSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { list, text } from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { WrittenTensor, WrittenValue } from '../../support/gguf-writer.js';

const scratch = scratchFolder();
const limit = 64 * 2 ** 20;
const terabyte = 2 ** 40;

/** A header that ends in the given value's first bytes, then a terabyte of zeros: the file has room for any promise. */
function endless(value: WrittenValue, field: string, count: number | bigint): string {
  const written = writeGguf({ metadata: [['k', value]], tensors: [] }).patch(field, count);
  const path = scratch.path('endless.gguf');
  writeFileSync(path, written.header.subarray(0, written.at(field) + 8));
  truncateSync(path, terabyte);
  return path;
}

function refusal(path: string): string {
  return messageOf(() => openGguf(path), GgufError);
}

describe('a file that has room for anything it promises', () => {
  it.each<[string, WrittenValue, string]>([
    ['a string', text('x'), 'key.k.value'],
    ['bytes', list('u8', [1]), 'key.k.count'],
    ['wide numbers', list('u64', [1n]), 'key.k.count'],
    ['bools', list('bool', [true]), 'key.k.count'],
    ['strings', list('string', ['x']), 'key.k.count'],
    ['arrays', { type: 'array', element: 'array', values: [list('u8', [])] }, 'key.k.count'],
  ])('is not read further than the longest header: %s', (_, value, field) => {
    const before = process.memoryUsage();
    const message = refusal(endless(value, field, 2n ** 36n));
    const after = process.memoryUsage();

    expect(message).toContain(`makes the header longer than ${limit} bytes`);
    expect(after.arrayBuffers - before.arrayBuffers).toBeLessThan(4 * limit);
  });

  it('steps over millions of empty strings', () => {
    const count = 7_500_000;

    // Behind them the zeros read as a tensor without a name, because the header promises one.
    const written = writeGguf({
      metadata: [['k', list('string', [])]],
      tensors: [{ name: 't', type: 'F32', dims: [1] }],
    }).patch('key.k.count', count);
    const path = scratch.path('strings.gguf');
    writeFileSync(path, written.header.subarray(0, written.at('key.k.count') + 8));
    truncateSync(path, terabyte);

    expect(refusal(path)).toContain('the name of tensor 0 has 0 bytes');
  });

  it('steps over millions of empty arrays', () => {
    const nested: WrittenValue = { type: 'array', element: 'array', values: [] };
    const written = writeGguf({
      metadata: [['k', nested]],
      tensors: [{ name: 't', type: 'F32', dims: [1] }],
    }).patch('key.k.count', 5_000_000);
    const path = scratch.path('arrays.gguf');
    writeFileSync(path, written.header.subarray(0, written.at('key.k.count') + 8));
    truncateSync(path, terabyte);

    expect(refusal(path)).toContain('the name of tensor 0 has 0 bytes');
  });

  it('opens with thousands of tensors', () => {
    const tensors = Array.from({ length: 5000 }, (_, index): WrittenTensor => {
      return { name: `tensor.${index}`, type: 'F32', dims: [8] };
    });

    expect(openGguf(scratch.save('many.gguf', { metadata: [], tensors })).tensors).toHaveLength(
      5000,
    );
  });

  it('refuses more tensors or keys than any model has', () => {
    const written = writeGguf({ metadata: [], tensors: [] });
    const path = scratch.save('counts.gguf', written.patch('tensorCount', 65_537));
    truncateSync(path, terabyte);

    expect(refusal(path)).toContain('promises 65537 tensors, the most ds4 takes is 65536');
  });
});
