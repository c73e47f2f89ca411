import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { formatBytes } from '../../../src/cli/bytes.js';
import { RunError } from '../../../src/cli/errors.js';
import { jsonNumber, jsonToken, OutputFile } from '../../../src/cli/json.js';
import { openTokenizer } from '../../../src/cli/tokens.js';
import { openGguf } from '../../../src/gguf/index.js';

const tokenizer = openTokenizer(openGguf('test/fixtures/a-q8_0.gguf'), 512);

describe('numbers', () => {
  it.each([
    [0, '0'],
    [1.5, '1.5'],
    [Math.fround(0.1), '0.100000001'],
    [-123456789.25, '-123456789'],
    [NaN, 'null'],
    [Infinity, 'null'],
    [-Infinity, 'null'],
  ])('%d is written as %s', (value, text) => {
    expect(jsonNumber(value)).toBe(text);
  });

  it('keep every bit of a float32', () => {
    fc.assert(
      fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(Math.fround(Number(jsonNumber(value)))).toBe(value === 0 ? 0 : value);
      }),
    );
  });
});

describe('tokens', () => {
  it('are valid JSON whose bytes are those of the piece, for the whole vocabulary', () => {
    for (let id = 0; id < tokenizer.vocab; id += 1) {
      const token = JSON.parse(jsonToken(tokenizer, id)) as { id: number; bytes: number[] };

      expect(token.id).toBe(id);
      expect(Uint8Array.from(token.bytes)).toEqual(Uint8Array.from(tokenizer.pieceBytes(id)));
    }
  });

  it('write a byte that is no text as an escape', () => {
    const [id] = tokenizer.encode(Uint8Array.of(0xe6));

    expect(jsonToken(tokenizer, id ?? -1)).toContain('"text":"\\u00e6"');
  });
});

describe('sizes', () => {
  it.each([
    [512, '0.50 KiB'],
    [3 * 2 ** 20, '3.00 MiB'],
    [80.76 * 2 ** 30, '80.76 GiB'],
  ])('%d bytes are %s', (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });
});

describe('an output file', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'ds4-output-'));
  });
  afterEach(() => {
    rmSync(folder, { recursive: true });
  });

  it('appears when it is complete', () => {
    const path = join(folder, 'o.json');
    const file = new OutputFile(path);
    const before = existsSync(path);

    file.finish('{}');
    file.discard();

    expect(before).toBe(false);
    expect(readFileSync(path, 'utf8')).toBe('{}');
    expect(readdirSync(folder)).toEqual(['o.json']);
  });

  it('leaves the old file and no rest when the run fails', () => {
    const path = join(folder, 'o.json');
    writeFileSync(path, 'old');

    new OutputFile(path).discard();

    expect(readFileSync(path, 'utf8')).toBe('old');
    expect(readdirSync(folder)).toEqual(['o.json']);
  });

  it('refuses a folder that is not there, with the path and status 1', () => {
    const open = (): OutputFile => new OutputFile(join(folder, 'no', 'o.json'));

    expect(open).toThrow(RunError);
    expect(open).toThrow(/no\/o\.json/);
  });
});
