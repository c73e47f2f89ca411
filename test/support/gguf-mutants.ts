import fc from 'fast-check';
import { assembled } from '../../src/gguf/assembled.js';
import type { GgufFile } from '../../src/gguf/index.js';
import { parsePart } from '../../src/gguf/part.js';

/** One damage to a header. Positions are fractions of its length, so that they fit every file. */
export type Damage =
  | { readonly kind: 'flip'; readonly where: number; readonly bits: number }
  | {
      readonly kind: 'number';
      readonly where: number;
      readonly bytes: 4 | 8;
      readonly value: bigint;
    }
  | { readonly kind: 'insert'; readonly where: number; readonly bytes: Uint8Array }
  | { readonly kind: 'remove'; readonly where: number; readonly count: number }
  | { readonly kind: 'copy'; readonly where: number; readonly from: number; readonly count: number }
  | { readonly kind: 'cut'; readonly where: number };

/** Values at which counts, lengths, offsets and types change their meaning. */
export const telling: readonly bigint[] = [
  0n,
  1n,
  2n,
  3n,
  4n,
  5n,
  7n,
  8n,
  9n,
  12n,
  13n,
  31n,
  32n,
  255n,
  256n,
  65_535n,
  2n ** 20n,
  2n ** 31n - 1n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 32n,
  2n ** 53n - 1n,
  2n ** 53n,
  2n ** 53n + 1n,
  2n ** 60n,
  2n ** 61n,
  2n ** 63n - 1n,
  2n ** 63n,
  2n ** 64n - 32n,
  2n ** 64n - 1n,
];

/** Anywhere with the same probability: left alone, fast-check prefers the first bytes. */
const where = fc.noBias(fc.integer({ min: 0, max: 2 ** 20 - 1 })).map((part) => part / 2 ** 20);

/** One to four damages. */
export const damages: fc.Arbitrary<Damage[]> = fc.array(
  fc.oneof(
    fc.record({
      kind: fc.constant('flip' as const),
      where,
      bits: fc.integer({ min: 1, max: 255 }),
    }),
    fc.record({
      kind: fc.constant('number' as const),
      where,
      bytes: fc.constantFrom(4 as const, 8 as const),
      value: fc.constantFrom(...telling),
    }),
    fc.record({
      kind: fc.constant('insert' as const),
      where,
      bytes: fc.uint8Array({ minLength: 1, maxLength: 64 }),
    }),
    fc.record({
      kind: fc.constant('remove' as const),
      where,
      count: fc.integer({ min: 1, max: 200 }),
    }),
    fc.record({
      kind: fc.constant('copy' as const),
      where,
      from: where,
      count: fc.integer({ min: 1, max: 200 }),
    }),
    fc.record({ kind: fc.constant('cut' as const), where }),
  ),
  { minLength: 1, maxLength: 4 },
);

function damaged(bytes: Buffer, damage: Damage): Buffer {
  const at = Math.floor(damage.where * bytes.length);
  switch (damage.kind) {
    case 'flip': {
      const flipped = Buffer.from(bytes);
      if (at < flipped.length) {
        flipped[at] = (flipped[at] ?? 0) ^ damage.bits;
      }
      return flipped;
    }
    case 'number': {
      const changed = Buffer.from(bytes);
      const wide = Buffer.alloc(8);
      wide.writeBigUInt64LE(damage.value);
      wide.copy(changed, at, 0, damage.bytes);
      return changed;
    }
    case 'insert':
      return Buffer.concat([bytes.subarray(0, at), damage.bytes, bytes.subarray(at)]);
    case 'remove':
      return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + damage.count)]);
    case 'copy': {
      const from = Math.floor(damage.from * bytes.length);
      return Buffer.concat([
        bytes.subarray(0, at),
        bytes.subarray(from, from + damage.count),
        bytes.subarray(at),
      ]);
    }
    case 'cut':
      return bytes.subarray(0, at);
  }
}

/** A damaged header. One that was cut has no data behind it. */
export interface Mutant {
  readonly header: Buffer;
  readonly cut: boolean;
}

export function mutantOf(header: Buffer, list: readonly Damage[]): Mutant {
  return { header: list.reduce(damaged, header), cut: list.some(({ kind }) => kind === 'cut') };
}

/** Opens a file that exists in memory only: a header, and `dataBytes` zeros behind it. */
export function openInMemory(header: Buffer, dataBytes: number): GgufFile {
  const bytes = header.length + dataBytes;
  const part = parsePart(
    {
      path: 'memory.gguf',
      named: "model 'memory.gguf'",
      bytes,
      read(into, position) {
        if (position + into.length > bytes) {
          throw new Error(`read ${into.length} bytes at ${position} of ${bytes}`);
        }
        into.fill(0);
        into.set(header.subarray(position, position + into.length));
      },
    },
    0,
  );
  return assembled(part, [part]);
}
