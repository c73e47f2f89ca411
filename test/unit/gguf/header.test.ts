import { writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { list, text, u32 } from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { ScalarType, WrittenGguf, WrittenValue } from '../../support/gguf-writer.js';

const scratch = scratchFolder();

function file(...metadata: [string, WrittenValue][]): WrittenGguf {
  return writeGguf({ metadata, tensors: [{ name: 't', type: 'F32', dims: [8] }] });
}

function refusal(written: WrittenGguf): string {
  return messageOf(() => openGguf(scratch.save('refused.gguf', written)), GgufError);
}

function refusalOfBytes(bytes: Uint8Array): string {
  writeFileSync(scratch.path('bytes.gguf'), bytes);
  return messageOf(() => openGguf(scratch.path('bytes.gguf')), GgufError);
}

describe('the start of the file', () => {
  it('refuses a file of 10 bytes as too small', () => {
    expect(refusalOfBytes(Buffer.from('GGUF\x03\0\0\0\0\0'))).toMatch(
      /^model file is too small to be GGUF: .*has 10 bytes/,
    );
  });

  it.each([
    [
      'hello, this is a text file and nothing else',
      "begins with the bytes 68656c6c, not with 'GGUF'",
    ],
    ['version https://git-lfs.github.com/spec/v1\noid sha256:12', 'Git LFS pointer'],
    ['<!DOCTYPE html><html><head><title>404</title>', 'is a web page'],
    ['PK\x03\x04 and then the rest of the archive, whatever', 'PyTorch'],
    ['\x10\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{}} and tensors', 'safetensors'],
    ['\0'.repeat(64), 'begins with zeros'],
    ['\x1f\x8b\x08' + 'x'.repeat(40), 'is compressed'],
  ])('refuses %j as no GGUF file and says what it is', (content, hint) => {
    const message = refusalOfBytes(Buffer.from(content, 'latin1'));

    expect(message).toMatch(/^model is not a GGUF file: model '/);
    expect(message).toContain(hint);
  });

  it.each([0, 1, 2, 4, 2 ** 31])('refuses version %d: only version 3 is read', (version) => {
    expect(refusal(file().patch('version', version))).toContain('only version 3');
  });

  it('recognises a big-endian file', () => {
    expect(refusal(file().patch('version', 3 << 24))).toContain('big-endian');
  });

  it.each(['tensorCount', 'keyCount'])(
    'refuses a %s of 2^63 without trying to hold it',
    (field) => {
      expect(refusal(file().patch(field, 2n ** 63n))).toContain('promises 9223372036854775808');
    },
  );

  it.each(['tensorCount', 'keyCount'])('refuses a %s that the file has no room for', (field) => {
    expect(refusal(file().patch(field, 60_000))).toMatch(/^truncated GGUF file at byte 24: /);
  });

  it('opens a file without keys and tensors', () => {
    const path = scratch.path('empty.gguf');
    writeFileSync(
      path,
      Buffer.concat([writeGguf({ metadata: [], tensors: [] }).bytes(), Buffer.alloc(32)]),
    );

    expect(openGguf(path).tensors).toEqual([]);
  });
});

describe('a header that ends early', () => {
  const whole = file(
    ['name', text('some text')],
    ['list', list('string', ['a', 'bc', ''])],
    ['numbers', list('u64', [1n, 2n ** 63n])],
  );
  const endOfDirectory = whole.at('tensor.t.offset') + 8;
  const lengths = Array.from({ length: endOfDirectory - 32 }, (_, index) => index + 32);

  it.each(lengths)('is refused when %d bytes of it are left', (length) => {
    expect(refusalOfBytes(whole.header.subarray(0, length))).toMatch(
      /^truncated GGUF file at byte \d+: reading .* needs (at least )?\d+ bytes, \d+ are left of the \d+ of model '/,
    );
  });
});

describe('metadata keys', () => {
  it('refuses a key that occurs twice', () => {
    expect(refusal(file(['a.b', u32(1)], ['a.b', u32(2)]))).toContain("key 'a.b' occurs twice");
  });

  it('refuses an empty key', () => {
    expect(refusal(file(['', u32(1)]))).toContain('has 0 bytes, must have 1 to 65535');
  });

  it('refuses a key that is not UTF-8', () => {
    const written = file(['ab', u32(1)]);
    written.header[written.at('key.ab.name') + 8] = 0xff;

    expect(refusal(written)).toContain('is not valid UTF-8');
  });

  it.each([13, 99, 2 ** 32 - 1])('refuses the value type %d', (type) => {
    expect(refusal(file(['k', u32(1)]).patch('key.k.type', type))).toContain(
      `key 'k' has the unknown value type ${type}`,
    );
  });

  it('refuses an array of an unknown type', () => {
    expect(refusal(file(['k', list('u32', [1])]).patch('key.k.element', 77))).toContain(
      "key 'k' is an array of the unknown value type 77",
    );
  });

  it('refuses a bool that is neither true nor false', () => {
    expect(refusal(file(['k', { type: 'bool', value: true }]).patch('key.k.value', 2))).toContain(
      "key 'k' is a bool of value 2",
    );
  });

  it.each<[string, WrittenValue, string]>([
    ['string', text('abc'), 'key.k.value'],
    ['array of numbers', list('f64', [1]), 'key.k.count'],
    ['array of bools', list('bool', [true]), 'key.k.count'],
    ['array of strings', list('string', ['x']), 'key.k.count'],
    ['string in an array', list('string', ['x']), 'key.k.elements'],
  ])('refuses the length of a %s beyond the file', (_, value, field) => {
    for (const length of [2n ** 16n, 2n ** 32n, 2n ** 53n + 1n, 2n ** 61n, 2n ** 64n - 1n]) {
      expect(refusal(file(['k', value]).patch(field, length))).toMatch(/^truncated GGUF file/);
    }
  });

  it('steps over arrays in arrays', () => {
    const inner = list('u32', [1, 2]);
    const nested: WrittenValue = { type: 'array', element: 'array', values: [inner, inner] };

    const { metadata } = openGguf(
      scratch.save('nested.gguf', file(['k', nested], ['after', u32(7)])),
    );

    expect(metadata.describe('k')).toBe('array of 2 arrays');
    expect(metadata.integer('after')).toBe(7);
  });

  it('refuses arrays nested without end', () => {
    let nested: WrittenValue = list('u32', [1]);
    for (let depth = 0; depth < 200; depth += 1) {
      nested = { type: 'array', element: 'array', values: [nested] };
    }

    expect(refusal(file(['k', nested]))).toContain('nests arrays more than 4 deep');
  });
});

describe('the alignment', () => {
  it.each([0, 1, 2, 4, 3, 24, 33, 2 ** 31, 2 ** 32 - 1])('refuses %d', (alignment) => {
    const message = refusal(file(['general.alignment', u32(alignment)]));

    expect(message).toContain(`general.alignment is ${alignment}, must be a power of two`);
  });

  it.each<[ScalarType, WrittenValue]>([
    ['string', text('32')],
    ['f32', { type: 'f32', value: 32 }],
  ])('refuses one written as %s', (_, value) => {
    expect(refusal(file(['general.alignment', value]))).toContain('is no integer');
  });

  it('refuses one of 2^64 - 1 without rounding it', () => {
    const value: WrittenValue = { type: 'u64', value: 2n ** 64n - 1n };

    expect(refusal(file(['general.alignment', value]))).toContain('18446744073709551615');
  });
});
