const sequenceLongest = 4;

/** Bytes of the sequence that a lead byte announces; 0 when the byte cannot lead one. */
function announcedLength(lead: number): number {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

/** Whether `second` may follow `lead`: excludes overlong forms, surrogates and code points above U+10FFFF. */
function maySecond(lead: number, second: number): boolean {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0 && second < 0xc0;
    case 0xed:
      return second >= 0x80 && second < 0xa0;
    case 0xf0:
      return second >= 0x90 && second < 0xc0;
    case 0xf4:
      return second >= 0x80 && second < 0x90;
    default:
      return second >= 0x80 && second < 0xc0;
  }
}

/** How many bytes from `start` on belong to one UTF-8 sequence, whole or not; `whole` tells which. */
function sequenceAt(bytes: Uint8Array, start: number): { length: number; whole: boolean } {
  const lead = bytes[start] ?? 0;
  const announced = announcedLength(lead);
  if (announced === 0) {
    return { length: 0, whole: false };
  }
  let length = 1;
  while (length < announced && start + length < bytes.length) {
    const byte = bytes[start + length] ?? 0;
    const fits = length === 1 ? maySecond(lead, byte) : byte >= 0x80 && byte < 0xc0;
    if (!fits) {
      return { length: 0, whole: false };
    }
    length++;
  }
  return { length, whole: length === announced };
}

/** Bytes at the end of `bytes` that are the beginning of a character whose other bytes may still come: 0 to 3. */
export function incompleteTail(bytes: Uint8Array): number {
  const farthest = Math.max(0, bytes.length - (sequenceLongest - 1));
  for (let start = bytes.length - 1; start >= farthest; start--) {
    const byte = bytes[start] ?? 0;
    if (byte >= 0x80 && byte < 0xc0) {
      continue;
    }
    const { length, whole } = sequenceAt(bytes, start);
    return !whole && length === bytes.length - start ? length : 0;
  }
  return 0;
}

/** A stretch of bytes that is valid UTF-8 throughout, or holds no valid sequence at all. */
export interface Utf8Span {
  readonly kind: 'valid' | 'invalid';
  readonly bytes: Uint8Array;
}

/** Cuts bytes into stretches of valid and of invalid UTF-8, in order; nothing is lost. */
export function* utf8Spans(bytes: Uint8Array): Generator<Utf8Span> {
  let start = 0;
  let valid = true;
  let position = 0;
  while (position < bytes.length) {
    const sequence = sequenceAt(bytes, position);
    if (sequence.whole !== valid) {
      if (position > start) {
        yield { kind: valid ? 'valid' : 'invalid', bytes: bytes.subarray(start, position) };
      }
      start = position;
      valid = sequence.whole;
    }
    position += sequence.whole ? sequence.length : 1;
  }
  if (position > start) {
    yield { kind: valid ? 'valid' : 'invalid', bytes: bytes.subarray(start, position) };
  }
}
