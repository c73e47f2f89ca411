import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StreamDecoder, textOf } from '../../../src/tokenizer/index.js';

const encoder = new TextEncoder();

/** Everything that the decoder gives for these parts, the rest at the end included. */
function decoded(parts: readonly Uint8Array[]): Uint8Array[] {
  const decoder = new StreamDecoder();
  return [...parts.map((part) => decoder.push(part)), decoder.end()];
}

function cutAt(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const edges = [0, ...places.map((place) => place % (bytes.length + 1)).sort((a, b) => a - b)];
  return edges.map((edge, index) => bytes.subarray(edge, edges[index + 1]));
}

const mixedBytes = fc
  .array(
    fc.oneof(
      fc.string({ unit: 'grapheme', maxLength: 6 }).map((text) => encoder.encode(text)),
      fc.uint8Array({ maxLength: 4 }),
      fc.constantFrom(
        Uint8Array.of(0xed, 0xa0, 0x80),
        Uint8Array.of(0xf0, 0x9f, 0x98),
        Uint8Array.of(0xc0, 0x80),
        Uint8Array.of(0xf4, 0x90, 0x80, 0x80),
        Uint8Array.of(0xe4, 0xbd),
      ),
    ),
    { maxLength: 10 },
  )
  .map((parts) => new Uint8Array(Buffer.concat(parts)));

describe('StreamDecoder', () => {
  it('gives the very bytes that went in, however they are cut', () => {
    fc.assert(
      fc.property(mixedBytes, fc.array(fc.nat(), { maxLength: 8 }), (bytes, places) => {
        const parts = decoded(cutAt(bytes, places));

        expect(new Uint8Array(Buffer.concat(parts))).toEqual(bytes);
      }),
      { numRuns: 500, seed: 1 },
    );
  });

  it('gives the same text piece by piece as for the whole', () => {
    fc.assert(
      fc.property(mixedBytes, fc.array(fc.nat(), { maxLength: 8 }), (bytes, places) => {
        const pieces = decoded(cutAt(bytes, places)).map((piece) => textOf(piece));

        expect(pieces.join('')).toBe(textOf(bytes));
      }),
      { numRuns: 500, seed: 2 },
    );
  });

  it.each(['é', '你', '😀', '👨‍👩‍👧‍👦', '🇮🇹'])('never splits a character of %s', (text) => {
    const decoder = new StreamDecoder();

    const pieces = Array.from(encoder.encode(text), (byte) => decoder.push(Uint8Array.of(byte)));

    expect(pieces.filter((piece) => piece.length > 0).map((piece) => textOf(piece))).toEqual(
      Array.from(text),
    );
  });

  it.each([
    ['a lone continuation byte', [0x80], [0x80]],
    ['a byte that leads nothing', [0xff], [0xff]],
    ['an overlong lead', [0xc1], [0xc1]],
    ['an overlong second byte', [0xe0, 0x80], [0xe0, 0x80]],
    ['a surrogate', [0xed, 0xa0], [0xed, 0xa0]],
    ['a code point too high', [0xf4, 0x90], [0xf4, 0x90]],
    ['a lead that another follows', [0xe4, 0xe4], [0xe4]],
    ['a complete character and the start of one', [0xc3, 0xa9, 0xf0, 0x9f, 0x98], [0xc3, 0xa9]],
    ['the start of a character', [0xf0, 0x9f, 0x98], []],
  ])('passes on what is certain of %s', (_, bytes, due) => {
    expect(Array.from(new StreamDecoder().push(Uint8Array.from(bytes)))).toEqual(due);
  });

  it('gives an unfinished character at the end as raw bytes, and starts afresh', () => {
    const decoder = new StreamDecoder();
    decoder.push(Uint8Array.of(0x61, 0xe4, 0xbd));

    expect(Array.from(decoder.end())).toEqual([0xe4, 0xbd]);
    expect(Array.from(decoder.end())).toEqual([]);
    expect(Array.from(decoder.push(Uint8Array.of(0xa0)))).toEqual([0xa0]);
  });

  it('holds no reference to bytes that the caller reuses', () => {
    const decoder = new StreamDecoder();
    const buffer = Uint8Array.of(0xe4, 0xbd);
    decoder.push(buffer);

    buffer.fill(0x21);

    expect(textOf(decoder.push(Uint8Array.of(0xa0)))).toBe('你');
  });
});

describe('textOf', () => {
  it('shows invalid bytes as U+FFFD and keeps a byte order mark', () => {
    expect(textOf(Uint8Array.of(0xef, 0xbb, 0xbf, 0x61, 0xff))).toBe('\ufeffa\ufffd');
  });
});
