import { closeSync, constants, fstatSync, openSync, readSync, statSync } from 'node:fs';
import type { BigIntStats } from 'node:fs';
import { getSystemErrorMap } from 'node:util';
import type { ByteSource } from './byte-source.js';
import { GgufError } from './errors.js';

/** Code and the system's own words of a failed call, `undefined` for anything that is not one. */
function systemFailure(error: unknown): { code: string; text: string } | undefined {
  if (!(error instanceof Error) || !('errno' in error) || typeof error.errno !== 'number') {
    return undefined;
  }
  const entry = getSystemErrorMap().get(error.errno);
  if (entry === undefined) {
    return undefined;
  }
  const [code, words] = entry;
  return {
    code,
    text: words === 'i/o error' ? 'I/O error' : words.charAt(0).toUpperCase() + words.slice(1),
  };
}

function kindOf(stats: BigIntStats): string {
  if (stats.isDirectory()) {
    return 'a directory';
  }
  if (stats.isFIFO()) {
    return 'a pipe';
  }
  return stats.isSocket() ? 'a socket' : 'a device';
}

/** An open file; holds its descriptor until `close`. */
export class RegularFile implements ByteSource {
  readonly #descriptor: number;

  private constructor(
    readonly path: string,
    readonly named: string,
    readonly bytes: number,
    descriptor: number,
  ) {
    this.#descriptor = descriptor;
  }

  /**
   * Opens a file for reading. Anything but a regular file is refused before it is opened, because opening a pipe waits
   * for its writer and a device may do anything.
   *
   * @throws GgufError
   */
  static open(path: string, named = `model '${path}'`): RegularFile {
    if (path.includes('\0')) {
      throw new GgufError(`cannot open ${named}: the path contains a NUL byte`);
    }
    let descriptor: number | undefined;
    try {
      RegularFile.#requireRegular(statSync(path, { bigint: true }), named);
      // Not waiting covers the case that the path became a pipe in between.
      descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
      const stats = fstatSync(descriptor, { bigint: true });
      RegularFile.#requireRegular(stats, named);
      const bytes = Number(stats.size);
      if (!Number.isSafeInteger(bytes)) {
        throw new GgufError(
          `cannot open ${named}: its size of ${stats.size.toString()} bytes is no model's`,
        );
      }
      return new RegularFile(path, named, bytes, descriptor);
    } catch (error) {
      if (descriptor !== undefined) {
        closeSync(descriptor);
      }
      const failure = systemFailure(error);
      if (failure === undefined) {
        throw error;
      }
      throw new GgufError(`cannot open ${named}: ${failure.text}`, { cause: error });
    }
  }

  static #requireRegular(stats: BigIntStats, named: string): void {
    if (!stats.isFile()) {
      throw new GgufError(
        `cannot open ${named}: it is ${kindOf(stats)}, a model is a regular file`,
      );
    }
  }

  /**
   * Fills `into` from `position` on, however many calls that takes: a call may return less than asked for, or be
   * interrupted by a signal.
   *
   * @throws GgufError when the file ends before (it became shorter since it was opened) or cannot be read.
   */
  read(into: Uint8Array, position: number): void {
    let done = 0;
    while (done < into.length) {
      let count: number;
      try {
        count = readSync(this.#descriptor, into, done, into.length - done, position + done);
      } catch (error) {
        const failure = systemFailure(error);
        if (failure === undefined) {
          throw error;
        }
        if (failure.code === 'EINTR') {
          continue;
        }
        throw new GgufError(
          `cannot read ${this.named} at byte ${position + done}: ${failure.text}`,
          { cause: error },
        );
      }
      if (count === 0) {
        throw new GgufError(
          `cannot read ${this.named} at byte ${position + done}: the file ends there, ` +
            `but it had ${this.bytes} bytes when it was opened; is somebody writing to it?`,
        );
      }
      done += count;
    }
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}
