import { EventEmitter } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { History, LineEditor } from '../../../src/cli/editor/index.js';
import type { Line } from '../../../src/cli/editor/index.js';
import { KeyDecoder } from '../../../src/cli/editor/keys.js';
import type { Key } from '../../../src/cli/editor/keys.js';
import { layOut, verticalNeighbour } from '../../../src/cli/editor/layout.js';
import { LineBuffer } from '../../../src/cli/editor/line-buffer.js';
import { graphemeColumns, splitGraphemes } from '../../../src/cli/editor/width.js';

function decode(...chunks: (string | Uint8Array)[]): Key[] {
  const decoder = new KeyDecoder();
  return chunks.flatMap((chunk) => decoder.push(Buffer.from(chunk)));
}

describe('keys', () => {
  it.each([
    ['\r', 'enter'],
    ['\n', 'newline'],
    ['\u007f', 'backspace'],
    ['\b', 'backspace'],
    ['\u0001', 'home'],
    ['\u0003', 'interrupt'],
    ['\u0004', 'endOfFile'],
    ['\u001b[A', 'up'],
    ['\u001bOA', 'up'],
    ['\u001b[3~', 'delete'],
    ['\u001b[1;5C', 'wordRight'],
    ['\u001b\r', 'newline'],
  ])('%j is %s', (bytes, name) => {
    expect(decode(bytes)).toEqual([{ kind: 'key', name }]);
  });

  it('ignores sequences that mean nothing here, whole', () => {
    expect(decode('\u001b[15~\u001b[?1;2cx')).toEqual([{ kind: 'text', text: 'x' }]);
  });

  it('joins characters and sequences that are split over chunks', () => {
    const bytes = Buffer.from('日\u001b[A');

    expect(decode(bytes.subarray(0, 2), bytes.subarray(2, 4), bytes.subarray(4))).toEqual([
      { kind: 'text', text: '日' },
      { kind: 'key', name: 'up' },
    ]);
  });

  it('drops a lone Escape when nothing follows it', () => {
    const decoder = new KeyDecoder();
    decoder.push(Buffer.from('\u001b'));
    const pending = decoder.isPending;

    decoder.dropPending();

    expect(pending).toBe(true);
    expect(decoder.push(Buffer.from('b'))).toEqual([{ kind: 'text', text: 'b' }]);
  });

  it('gives a paste as one text with line feeds only, wherever it is cut', () => {
    const whole = Buffer.from('\u001b[200~one\r\ntwo\rthree\u0003\u001b[31m\u001b[201~x');

    fc.assert(
      fc.property(fc.integer({ min: 1, max: whole.length - 1 }), (cut) => {
        const keys = decode(whole.subarray(0, cut), whole.subarray(cut));

        expect(keys).toEqual([
          { kind: 'paste', text: 'one\ntwo\nthree\u0003\u001b[31m' },
          { kind: 'text', text: 'x' },
        ]);
      }),
    );
  });
});

describe('the width of a character', () => {
  it.each([
    ['a', 1],
    ['é', 1],
    ['e\u0301', 1],
    ['日', 2],
    ['한', 2],
    ['Ａ', 2],
    ['😀', 2],
    ['👨‍👩‍👧', 2],
    ['🇮🇹', 2],
    ['\u0301', 0],
    ['\u200b', 0],
    ['⚠️', 2],
    ['—', 1],
  ])('%s takes %i columns', (grapheme, columns) => {
    expect(splitGraphemes(grapheme)).toHaveLength(1);
    expect(graphemeColumns(grapheme)).toBe(columns);
  });
});

describe('splitting into characters', () => {
  it('keeps a character whole whose last surrogate pair lies across a window', () => {
    const note = '\u{1d158}\u{1d165}\u{1d16e}';

    const found = Array.from({ length: 300 }, (_, pad) =>
      splitGraphemes(`${'\u00a0'.repeat(pad)}${note}${'\u00a0'.repeat(300)}`),
    );

    expect(found.every((characters) => characters.includes(note))).toBe(true);
  });

  it('loses nothing, and cuts a long text where it would cut a short one', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 }), (text) => {
        const once = splitGraphemes(`${text}\u00a0`);

        const many = splitGraphemes(`${text}\u00a0`.repeat(100));

        expect(many.join('')).toBe(`${text}\u00a0`.repeat(100));
        expect(many.slice(0, once.length)).toEqual(once);
        expect(many.slice(-once.length)).toEqual(once);
      }),
    );
  });
});

function buffer(text: string, cursor = Infinity): LineBuffer {
  const line = new LineBuffer();
  line.set(text);
  line.moveTo(cursor);
  return line;
}

describe('the line', () => {
  it('moves and deletes by what a reader sees as one character', () => {
    const line = buffer('a👨‍👩‍👧b');

    line.left();
    line.backspace();

    expect(line.text).toBe('ab');
    expect(line.cursor).toBe(1);
  });

  it('joins a combining accent that is typed after its letter', () => {
    const line = buffer('e');

    line.insert('\u0301');

    expect(line.cells).toHaveLength(1);
    expect(line.text).toBe('e\u0301');
  });

  it.each([
    ['home', 'one\ntwo', 6, 4],
    ['end', 'one\ntwo', 1, 3],
    ['wordLeft', 'one two', 7, 4],
    ['wordRight', 'one two', 0, 3],
    ['left', 'x', 0, 0],
    ['right', 'x', 1, 1],
  ] as const)('%s in %j from %i goes to %i', (action, text, from, to) => {
    const line = buffer(text, from);

    line[action]();

    expect(line.cursor).toBe(to);
  });

  it.each([
    ['deleteWord', 'one two ', Infinity, 'one '],
    ['killToEnd', 'one\ntwo', 1, 'o\ntwo'],
    ['killLine', 'one\ntwo', 1, ''],
    ['delete', 'abc', 1, 'ac'],
    ['transpose', 'abc', Infinity, 'acb'],
    ['transpose', 'abc', 1, 'bac'],
    ['transpose', 'a', 1, 'a'],
  ] as const)('%s turns %j at %d into %j', (action, text, cursor, result) => {
    const line = buffer(text, cursor);

    line[action]();

    expect(line.text).toBe(result);
  });

  it('shows a paste of several lines folded and keeps all of it', () => {
    const line = buffer('see ');

    line.paste('one\ntwo\nthree');

    expect(line.text).toBe('see one\ntwo\nthree');
    expect(line.cells.at(-1)?.label).toBe('[... 3 pasted lines ...]');
    line.backspace();
    expect(line.text).toBe('see ');
  });

  it('folds a paste from 200 bytes on', () => {
    const [short, long] = [new LineBuffer(), new LineBuffer()];

    short.paste('x'.repeat(199));
    long.paste('x'.repeat(200));

    expect(short.cells).toHaveLength(199);
    expect(long.cells).toEqual([{ text: 'x'.repeat(200), label: '[... 200 pasted chars ...]' }]);
  });

  it('refuses the 17th fold and what would make the line longer than 1 MiB', () => {
    const line = new LineBuffer();
    const folds = Array.from({ length: 17 }, () => line.paste('a\nb'));

    expect(folds).toEqual([...Array.from({ length: 16 }, () => true), false]);
    expect(new LineBuffer().paste('x'.repeat((1 << 20) + 1))).toBe(false);
    expect(new LineBuffer().paste('x'.repeat(1 << 20))).toBe(true);
  });
});

describe('the layout', () => {
  it('moves a wide character that does not fit to the next row', () => {
    const { rows, cursor } = layOut('> ', buffer('a日').cells, 2, 4);

    expect(rows).toEqual(['> a', '日']);
    expect(cursor).toEqual({ row: 1, column: 2 });
  });

  it('puts the cursor on a new row when the last one is full', () => {
    const { rows, cursor } = layOut('> ', buffer('ab').cells, 2, 4);

    expect(rows).toEqual(['> ab', '']);
    expect(cursor).toEqual({ row: 1, column: 0 });
  });

  it('makes control characters of a paste visible, so that they cannot steer the terminal', () => {
    const line = new LineBuffer();
    line.paste('\u001b[2J\u0007\u007f');

    expect(layOut('', line.cells, 0, 40).rows).toEqual(['^[[2J^G^?']);
  });

  it('never makes a row wider than the terminal, and shows every character', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'grapheme', maxLength: 40 }),
        fc.integer({ min: 2, max: 12 }),
        (text, columns) => {
          const { cells } = buffer(text.replaceAll('\t', ' '));

          const { widths, rows } = layOut('> ', cells, cells.length, columns);

          expect(Math.max(...widths)).toBeLessThanOrEqual(columns);
          // eslint-disable-next-line no-control-regex -- those are shown in another way
          const visible = text.replaceAll('\t', ' ').replace(/[\u0000-\u001f\u007f]/g, '');
          const shown = rows.join('').slice(2).replaceAll('^', '');
          expect(shown.length).toBeGreaterThanOrEqual(visible.replaceAll('^', '').length);
        },
      ),
    );
  });

  it('finds the nearest place in the row above and below, and none at the edges', () => {
    const line = buffer('long line\nx', 9);
    const layout = layOut('', line.cells, line.cursor, 40);

    expect(verticalNeighbour(layout, 1)).toBe(11);
    expect(verticalNeighbour(layout, -1)).toBeUndefined();
  });
});

describe('the history', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ds4-history-'));
  });
  afterAll(() => {
    rmSync(folder, { recursive: true });
  });

  it('keeps entries over runs, in a file that only its owner can read', () => {
    const path = join(folder, 'a');
    new History(path).add('one\ntwo');

    expect(new History(path).entries).toEqual(['one\ntwo']);
    expect(readFileSync(path, 'utf8')).toBe('one\rtwo\n');
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  it('drops immediate repeats and keeps the last 512', () => {
    const path = join(folder, 'b');
    writeFileSync(path, Array.from({ length: 600 }, (_, index) => `${index}\n`).join(''));
    const history = new History(path);

    history.add('599');
    history.add('last');

    expect(history.entries).toHaveLength(512);
    expect(history.entries.slice(-2)).toEqual(['599', 'last']);
  });

  it('does not lose what another chat has added meanwhile', () => {
    const path = join(folder, 'c');
    const [first, second] = [new History(path), new History(path)];

    first.add('mine');
    second.add('yours');

    expect(new History(path).entries).toEqual(['mine', 'yours']);
  });

  it('works in memory when the file cannot be written', () => {
    const history = new History(join(folder, 'no', 'such', 'folder'));

    history.add('one');
    history.add('two');

    expect(history.entries).toEqual(['one', 'two']);
  });
});

class FakeInput extends EventEmitter {
  isRaw = false;
  isPaused = true;
  setRawMode(raw: boolean): void {
    this.isRaw = raw;
  }
  resume(): void {
    this.isPaused = false;
  }
  pause(): void {
    this.isPaused = true;
  }
}

class FakeOutput extends EventEmitter {
  columns = 40;
  rows = 10;
  written = '';
  write(text: string): void {
    this.written += text;
  }
}

function openEditor(entries: readonly string[] = []) {
  const [input, output] = [new FakeInput(), new FakeOutput()];
  const history = new History(undefined);
  entries.forEach((entry) => {
    history.add(entry);
  });
  let suspensions = 0;
  const editor = new LineEditor({
    input,
    output,
    history,
    suspend: () => {
      suspensions += 1;
    },
  });
  const type = async (keys: string): Promise<Line> => {
    const line = editor.readLine('> ');
    input.emit('data', Buffer.from(keys));
    return line;
  };
  return { input, output, editor, type, suspensions: () => suspensions };
}

describe('the editor', () => {
  it.each([
    ['hello\r', 'hello'],
    ['helo\u001b[Dl\r', 'hello'],
    ['two\nlines\r', 'two\nlines'],
    ['one two\u0017three\r', 'one three'],
    ['\u001b[200~a\rb\u001b[201~!\r', 'a\nb!'],
    ['abc\u0003d\r', 'd'],
    ['ab\u0001\u0004\r', 'b'],
  ])('%j is submitted as %j', async (keys, text) => {
    const { type } = openEditor();

    expect(await type(keys)).toEqual({ kind: 'line', text });
  });

  it.each(['\u0004', '\u0003\u0003', 'abc\u0003\u0003'])('%j leaves', async (keys) => {
    const { type } = openEditor();

    expect(await type(keys)).toEqual({ kind: 'end' });
  });

  it.each([
    ['\u001b[A\r', 'second'],
    ['\u001b[A\u001b[A\r', 'first'],
    ['\u001b[A\u001b[A\u001b[A\r', 'first'],
    ['draft\u001b[A\u001b[B!\r', 'draft!'],
    ['\u0010\u0010\u000e\r', 'second'],
  ])('%j walks through the history', async (keys, text) => {
    const { type } = openEditor(['first', 'second']);

    expect(await type(keys)).toEqual({ kind: 'line', text });
  });

  it('switches raw mode and bracketed paste on while it reads, and off afterwards', async () => {
    const { input, output, editor } = openEditor();
    const line = editor.readLine('> ');
    const during = input.isRaw;

    input.emit('data', Buffer.from('x\r'));
    await line;

    expect(during).toBe(true);
    expect(input.isRaw).toBe(false);
    expect(input.isPaused).toBe(true);
    expect(output.written.startsWith('\u001b[?2004h')).toBe(true);
    expect(output.written.endsWith('\u001b[?2004l')).toBe(true);
    expect(input.listenerCount('data')).toBe(0);
  });

  it('gives the terminal back when it is aborted', async () => {
    const { input, output, editor } = openEditor();
    const line = editor.readLine('> ');

    editor.abort();

    expect(await line).toEqual({ kind: 'end' });
    expect(input.isRaw).toBe(false);
    expect(output.written.endsWith('\u001b[?2004l')).toBe(true);
  });

  it('ends when the terminal goes away', async () => {
    const { input, editor } = openEditor();
    const line = editor.readLine('> ');

    input.emit('end');

    expect(await line).toEqual({ kind: 'end' });
  });

  it('gives the terminal back for the time of a suspension', async () => {
    const { type, suspensions, output } = openEditor();

    await type('a\u001a\r');

    expect(suspensions()).toBe(1);
    expect(output.written.split('\u001b[?2004h')).toHaveLength(3);
  });

  it('rings when a paste does not fit, and keeps the line', async () => {
    const { type, output } = openEditor();

    const line = await type(`ok\u001b[200~${'x'.repeat((1 << 20) + 1)}\u001b[201~\r`);

    expect(line).toEqual({ kind: 'line', text: 'ok' });
    expect(output.written).toContain('\u0007');
  });
});
