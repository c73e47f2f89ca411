import { closeSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import type { Tokenizer } from '../tokenizer/index.js';
import { RunError, systemReason } from './errors.js';

const significantDigits = 9;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** A number with up to 9 significant digits, which is all that a float32 has; `null` when it is not finite. */
export function jsonNumber(value: number): string {
  return Number.isFinite(value) ? String(Number(value.toPrecision(significantDigits))) : 'null';
}

/** The piece as text when it is UTF-8; else one character per byte, those from 128 on as escapes. */
function pieceText(bytes: Uint8Array): string {
  try {
    return JSON.stringify(utf8.decode(bytes));
  } catch {
    return JSON.stringify(Buffer.from(bytes).toString('latin1')).replace(
      /[\u0080-\u00ff]/g,
      (character) => `\\u00${character.charCodeAt(0).toString(16)}`,
    );
  }
}

/** A token as it stands in every JSON output. `bytes` is what counts; `text` is for people. */
export function jsonToken(tokenizer: Tokenizer, id: number): string {
  const bytes = tokenizer.pieceBytes(id);
  return `{"id":${id},"text":${pieceText(bytes)},"bytes":[${Array.from(bytes).join(',')}]}`;
}

/**
 * A file that appears whole or not at all: written under another name and renamed at the end. Opened early, so that a
 * folder that cannot be written to is known before the model is loaded.
 */
export class OutputFile {
  readonly #path: string;
  readonly #temporary: string;
  readonly #descriptor: number;
  #isOpen = true;

  constructor(path: string) {
    this.#path = path;
    this.#temporary = `${path}.${process.pid}.tmp`;
    try {
      this.#descriptor = openSync(this.#temporary, 'w');
    } catch (thrown) {
      throw new RunError(`cannot write ${path}: ${systemReason(thrown)}`);
    }
  }

  /** Writes the whole text and gives the file its name. */
  finish(text: string): void {
    try {
      const bytes = Buffer.from(text);
      for (let written = 0; written < bytes.length;) {
        written += writeSync(this.#descriptor, bytes, written);
      }
      this.#close();
      renameSync(this.#temporary, this.#path);
    } catch (thrown) {
      throw new RunError(`cannot write ${this.#path}: ${systemReason(thrown)}`);
    }
  }

  #close(): void {
    if (this.#isOpen) {
      this.#isOpen = false;
      closeSync(this.#descriptor);
    }
  }

  /** Removes what an unfinished run left. Harmless after `finish`. */
  discard(): void {
    this.#close();
    rmSync(this.#temporary, { force: true });
  }
}
