import { describe, expect, it } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { text } from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { WrittenGguf } from '../../support/gguf-writer.js';

const scratch = scratchFolder();

function twoTensors(): WrittenGguf {
  return writeGguf({
    metadata: [['general.architecture', text('test')]],
    tensors: [
      { name: 'first', type: 'F32', dims: [8, 3] },
      { name: 'second', type: 'Q8_0', dims: [64, 2] },
    ],
  });
}

function refusal(file: WrittenGguf): string {
  return messageOf(() => openGguf(scratch.save('refused.gguf', file)), GgufError);
}

describe('the tensor directory', () => {
  it('gives absolute offsets and exact sizes', () => {
    const file = twoTensors();

    const { tensors, alignment } = openGguf(scratch.save('good.gguf', file));

    expect(alignment).toBe(32);
    expect(tensors).toEqual([
      { name: 'first', type: 0, dims: [8, 3], file: 0, offset: file.header.length, bytes: 96 },
      {
        name: 'second',
        type: 8,
        dims: [64, 2],
        file: 0,
        offset: file.header.length + 96,
        bytes: 136,
      },
    ]);
  });

  it('follows the alignment of the file', () => {
    const { tensors } = openGguf(
      scratch.save('aligned.gguf', {
        alignment: 4096,
        metadata: [],
        tensors: [
          { name: 'a', type: 'F32', dims: [1] },
          { name: 'b', type: 'F32', dims: [1] },
        ],
      }),
    );

    expect(tensors.map(({ offset }) => offset)).toEqual([4096, 8192]);
  });

  it('takes a last tensor without padding behind it', () => {
    const unpadded = writeGguf({
      metadata: [],
      tensors: [{ name: 'odd', type: 'F32', dims: [3] }],
    });
    unpadded.dataBytes = 12;

    expect(openGguf(scratch.save('unpadded.gguf', unpadded)).tensors[0]?.bytes).toBe(12);
  });

  it('takes gaps between tensors', () => {
    const file = twoTensors();
    const roomy = writeGguf({
      ...file.spec,
      tensors: [...file.spec.tensors, { name: 'third', type: 'F32', dims: [64] }],
    });
    roomy.patch('tensor.third.offset', 320).patch('tensor.second.offset', 128);
    roomy.dataBytes = 320 + 256;

    expect(openGguf(scratch.save('gaps.gguf', roomy)).tensors).toHaveLength(3);
  });

  const small = twoTensors();
  it.each([
    ['the file size', BigInt(small.header.length + small.dataBytes)],
    ['2^40', 2n ** 40n],
    ['2^53 + 32', 2n ** 53n + 32n],
    ['2^64 - 32, which wraps to the byte in front of the data', 2n ** 64n - 32n],
    ['2^63', 2n ** 63n],
  ])('refuses an offset of %s, with the exact numbers', (_, offset) => {
    const file = twoTensors().patch('tensor.second.offset', offset);
    const size = file.header.length + file.dataBytes;

    const message = refusal(file);

    expect(message).toMatch(/^tensor points outside GGUF file: tensor 'second', Q8_0 \[64, 2\]/);
    expect(message).toContain(`at offset ${String(offset)}, takes 136 bytes`);
    expect(message).toContain(`has ${size} bytes`);
  });

  it('refuses an offset off the alignment, naming both', () => {
    expect(refusal(twoTensors().patch('tensor.second.offset', 100))).toContain(
      "tensor 'second' has the offset 100, which is no multiple of the alignment 32",
    );
  });

  it('tells how long a file that stops early should have been', () => {
    const file = twoTensors();
    file.dataBytes = 64;

    const message = refusal(file);

    expect(message).toContain(`tensor 'first', F32 [8, 3] at offset 0`);
    expect(message).toContain(`refused.gguf' has ${file.header.length + 64} bytes`);
    expect(message).toContain('(and 1 more)');
    expect(message).toContain(`at least ${file.header.length + 96 + 136}`);
  });

  it('refuses tensors that overlap, naming both and the missing bytes', () => {
    const message = refusal(twoTensors().patch('tensor.second.offset', 64));

    expect(message).toContain("tensor 'first', F32 [8, 3], needs 96 bytes");
    expect(message).toContain("tensor 'second' begins at");
    expect(message).toContain('they overlap by 32 bytes');
  });

  it('refuses two tensors at the same place', () => {
    expect(refusal(twoTensors().patch('tensor.second.offset', 0))).toContain('they overlap by 96');
  });

  it('refuses a name that occurs twice', () => {
    const file = writeGguf({
      metadata: [],
      tensors: [
        { name: 'same', type: 'F32', dims: [8] },
        { name: 'same', type: 'F32', dims: [8] },
      ],
    });

    expect(refusal(file)).toContain("tensor 'same' occurs twice");
  });

  it('refuses a dimension of zero, naming it', () => {
    expect(refusal(twoTensors().patch('tensor.first.dim.1', 0))).toContain(
      "dimension 1 of tensor 'first' [8, 0] is 0",
    );
  });

  it.each([0, 5, 9, 2 ** 32 - 1])('refuses %d dimensions', (count) => {
    expect(refusal(twoTensors().patch('tensor.first.dimCount', count))).toContain(
      `tensor 'first' has ${count} dimensions, must have 1 to 4`,
    );
  });

  it.each([
    [2n ** 33n, 2n ** 31n],
    [8n, 2n ** 61n],
    [2n ** 64n - 8n, 2n ** 64n - 1n],
    [2n ** 32n, 2n ** 32n],
  ])('refuses dimensions whose product overflows: %d x %d', (row, rows) => {
    const file = twoTensors().patch('tensor.first.dim.0', row).patch('tensor.first.dim.1', rows);

    expect(refusal(file)).toContain(`the dimensions of tensor 'first' [${row}, ${rows}] overflow`);
  });

  it('refuses rows that are no whole number of blocks', () => {
    expect(refusal(twoTensors().patch('tensor.second.dim.0', 48))).toContain(
      "tensor 'second' has rows of 48 values, Q8_0 stores blocks of 32",
    );
  });

  it.each([4, 5, 31, 33, 36, 38, 255, 2 ** 32 - 1])('refuses the element type %d', (type) => {
    expect(refusal(twoTensors().patch('tensor.second.type', type))).toContain(
      `tensor 'second' has the unknown element type ${type}`,
    );
  });

  it('refuses a file of 96 bytes with one empty tensor in it', () => {
    const file = writeGguf({
      metadata: [],
      tensors: [{ name: 'x', type: 'F32', dims: [4, 1] }],
    });
    file.patch('tensor.x.dim.1', 0);

    expect(file.header).toHaveLength(96);
    expect(refusal(file)).toContain("dimension 1 of tensor 'x' [4, 0] is 0");
  });

  it('shows control characters of a name as escapes', () => {
    const file = writeGguf({
      metadata: [],
      tensors: [{ name: 'a\u001b[31mb\n', type: 'F32', dims: [8] }],
    });
    file.patch('tensor.a\u001b[31mb\n.dim.0', 0);

    expect(refusal(file)).toContain("tensor 'a\\u{1b}[31mb\\u{a}'");
  });
});
