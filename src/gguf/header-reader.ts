import { isUtf8 } from 'node:buffer';
import { GgufError } from './errors.js';
import type { ByteSource } from './byte-source.js';

/**
 * Most bytes a header may have. Those of the released models have 5.3 MB, nearly all of it vocabulary; a file that
 * wants more than this is refused instead of read, which bounds the time and the memory a hostile file can cost.
 */
export const headerByteLimit = 64 * 2 ** 20;

/** First read. Each further one doubles what is held, so that a small file costs one call. */
const firstReadBytes = 256 * 2 ** 10;

/**
 * A cursor over the first bytes of a file. It reads ahead in a few large steps and never allocates more than the file
 * is known to hold.
 */
export class HeaderReader {
  #buffer = Buffer.alloc(0);
  #view = new DataView(this.#buffer.buffer, 0, 0);
  #position = 0;

  constructor(readonly file: ByteSource) {}

  get position(): number {
    return this.#position;
  }

  /** Bytes of the file behind the cursor. */
  get remaining(): number {
    return this.file.bytes - this.#position;
  }

  /**
   * Makes the next `count` bytes available.
   *
   * @param what completes "reading ..." in the message.
   */
  need(count: number, what: string): void {
    const end = this.#position + count;
    if (end <= this.#buffer.length) {
      return;
    }
    if (end > this.file.bytes) {
      throw this.truncated(String(count), what);
    }
    if (end > headerByteLimit) {
      throw this.failure(
        `reading ${what} needs ${count} bytes, which makes the header longer than ${headerByteLimit} bytes: ` +
          'no model has that, the file is damaged',
      );
    }
    this.#fill(
      Math.min(
        this.file.bytes,
        headerByteLimit,
        Math.max(end, firstReadBytes, 2 * this.#buffer.length),
      ),
    );
  }

  #fill(bytes: number): void {
    const grown = Buffer.allocUnsafeSlow(bytes);
    this.#buffer.copy(grown);
    this.file.read(grown.subarray(this.#buffer.length), this.#buffer.length);
    this.#buffer = grown;
    this.#view = new DataView(grown.buffer, grown.byteOffset, grown.length);
  }

  truncated(needed: string, what: string): GgufError {
    return new GgufError(
      `truncated GGUF file at byte ${this.#position}: reading ${what} needs ${needed} bytes, ` +
        `${this.remaining} are left of the ${this.file.bytes} of ${this.file.named}; is the download complete?`,
    );
  }

  /** A refusal that names the place. */
  failure(problem: string): GgufError {
    return new GgufError(
      `invalid GGUF header at byte ${this.#position} of ${this.file.named}: ${problem}`,
    );
  }

  #advance(count: number, what: string): number {
    this.need(count, what);
    const at = this.#position;
    this.#position += count;
    return at;
  }

  u8(what: string): number {
    const at = this.#advance(1, what);
    return this.#view.getUint8(at);
  }

  i8(what: string): number {
    const at = this.#advance(1, what);
    return this.#view.getInt8(at);
  }

  u16(what: string): number {
    const at = this.#advance(2, what);
    return this.#view.getUint16(at, true);
  }

  i16(what: string): number {
    const at = this.#advance(2, what);
    return this.#view.getInt16(at, true);
  }

  u32(what: string): number {
    const at = this.#advance(4, what);
    return this.#view.getUint32(at, true);
  }

  i32(what: string): number {
    const at = this.#advance(4, what);
    return this.#view.getInt32(at, true);
  }

  f32(what: string): number {
    const at = this.#advance(4, what);
    return this.#view.getFloat32(at, true);
  }

  u64(what: string): bigint {
    const at = this.#advance(8, what);
    return this.#view.getBigUint64(at, true);
  }

  i64(what: string): bigint {
    const at = this.#advance(8, what);
    return this.#view.getBigInt64(at, true);
  }

  f64(what: string): number {
    const at = this.#advance(8, what);
    return this.#view.getFloat64(at, true);
  }

  /**
   * A 64-bit count of things that follow, each of at least `eachBytes`: refused when the rest of the file cannot hold
   * them, so it may be used for allocating and looping.
   */
  count(eachBytes: number, what: string): number {
    const at = this.#advance(8, what);
    const low = this.#view.getUint32(at, true);
    const high = this.#view.getUint32(at + 4, true);
    // Exact whenever the file can hold that many: files are shorter than 2^53 bytes.
    const count = high * 2 ** 32 + low;
    if (count * eachBytes > this.remaining) {
      const exact = this.#view.getBigUint64(at, true);
      const least = exact * BigInt(eachBytes);
      throw this.truncated(`at least ${least.toString()}`, `${exact.toString()} ${what}`);
    }
    this.need(count * eachBytes, what);
    return count;
  }

  /** Bytes of the header itself, not a copy. They stay valid after the file is closed. */
  bytes(count: number, what: string): Buffer {
    const at = this.#advance(count, what);
    return this.#buffer.subarray(at, at + count);
  }

  passOver(count: number, what: string): void {
    this.#advance(count, what);
  }

  /** A length and that many bytes. */
  stringBytes(what: string): Buffer {
    const length = this.count(1, `bytes of ${what}`);
    return this.bytes(length, what);
  }

  /** A name: UTF-8, not empty. */
  name(what: string, longestBytes: number): string {
    const bytes = this.stringBytes(what);
    if (bytes.length === 0 || bytes.length > longestBytes) {
      throw this.failure(`${what} has ${bytes.length} bytes, must have 1 to ${longestBytes}`);
    }
    if (!isUtf8(bytes)) {
      throw this.failure(`${what} is not valid UTF-8`);
    }
    return bytes.toString('utf8');
  }

  /**
   * Steps over `count` strings and notes where they lie, without decoding them.
   *
   * @returns the bytes, and for each string its first byte and the byte behind it.
   */
  stringSpans(count: number, what: string): { bytes: Buffer; spans: Uint32Array } {
    const first = this.#position;
    const spans = new Uint32Array(2 * count);
    for (let index = 0; index < count; index += 1) {
      this.need(8, what);
      const high = this.#view.getUint32(this.#position + 4, true);
      const length = this.#view.getUint32(this.#position, true) + high * 2 ** 32;
      this.#position += 8;
      if (length > this.remaining) {
        this.#position -= 8;
        throw this.truncated(this.u64(what).toString(), `string ${index} of ${what}`);
      }
      this.need(length, what);
      spans[2 * index] = this.#position - first;
      this.#position += length;
      spans[2 * index + 1] = this.#position - first;
    }
    return { bytes: this.#buffer.subarray(first, this.#position), spans };
  }
}
