import { History } from './history.js';
import { KeyDecoder } from './keys.js';
import type { Key, KeyName } from './keys.js';
import { layOut, verticalNeighbour } from './layout.js';
import type { Layout } from './layout.js';
import { LineBuffer } from './line-buffer.js';

/** What the editor needs of a terminal; process.stdin and process.stdout of a terminal fit. */
export interface EditorInput {
  setRawMode(raw: boolean): unknown;
  on(event: 'data', listener: (bytes: Uint8Array) => void): unknown;
  on(event: 'end', listener: () => void): unknown;
  off(event: 'data', listener: (bytes: Uint8Array) => void): unknown;
  off(event: 'end', listener: () => void): unknown;
  resume(): unknown;
  pause(): unknown;
}

export interface EditorOutput {
  readonly columns: number;
  readonly rows: number;
  write(text: string): unknown;
  on(event: 'resize', listener: () => void): unknown;
  off(event: 'resize', listener: () => void): unknown;
}

export type Line =
  | { readonly kind: 'line'; readonly text: string }
  /** Ctrl+D on an empty line, Ctrl+C twice, or the end of the input. */
  | { readonly kind: 'end' };

const pasteOn = '\u001b[?2004h';
const pasteOff = '\u001b[?2004l';
const bell = '\u0007';
/** How long the Escape key may take to turn out as the beginning of a sequence. */
const escapeMs = 50;

/** A multi-row line editor. Raw mode and bracketed paste are on only while a line is being read. */
export class LineEditor {
  readonly #input: EditorInput;
  readonly #output: EditorOutput;
  readonly #history: History;
  readonly #suspend: () => void;
  #active: ReadingLine | undefined;

  constructor(options: {
    readonly input: EditorInput;
    readonly output: EditorOutput;
    readonly history: History;
    /** Stops the process as Ctrl+Z does; returns when it goes on. */
    readonly suspend: () => void;
  }) {
    this.#input = options.input;
    this.#output = options.output;
    this.#history = options.history;
    this.#suspend = options.suspend;
  }

  readLine(prompt: string): Promise<Line> {
    return new Promise((resolve) => {
      const reading = new ReadingLine(
        { input: this.#input, output: this.#output, history: this.#history, prompt },
        this.#suspend,
        (line) => {
          this.#active = undefined;
          resolve(line);
        },
      );
      this.#active = reading;
      reading.start();
    });
  }

  /** Ends a line that is being read, as a signal does, and gives the terminal back. */
  abort(): void {
    this.#active?.finish({ kind: 'end' });
  }
}

interface Surroundings {
  readonly input: EditorInput;
  readonly output: EditorOutput;
  readonly history: History;
  readonly prompt: string;
}

class ReadingLine {
  readonly #input: EditorInput;
  readonly #output: EditorOutput;
  readonly #history: History;
  readonly #prompt: string;
  readonly #suspend: () => void;
  readonly #done: (line: Line) => void;
  readonly #buffer = new LineBuffer();
  readonly #keys = new KeyDecoder();
  /** Position in the history; its length is the line being written. */
  #entry: number;
  #draft = '';
  #interrupted = false;
  #finished = false;
  #escapeTimer: NodeJS.Timeout | undefined;
  /** Rows on the screen now, and the one with the cursor. */
  #drawn: { readonly widths: readonly number[]; readonly cursorRow: number } = {
    widths: [],
    cursorRow: 0,
  };

  constructor(around: Surroundings, suspend: () => void, done: (line: Line) => void) {
    this.#input = around.input;
    this.#output = around.output;
    this.#history = around.history;
    this.#prompt = around.prompt;
    this.#suspend = suspend;
    this.#done = done;
    this.#entry = around.history.entries.length;
  }

  readonly #onData = (bytes: Uint8Array): void => {
    clearTimeout(this.#escapeTimer);
    for (const key of this.#keys.push(bytes)) {
      if (this.#finished) {
        return;
      }
      this.#press(key);
    }
    if (this.#keys.isPending) {
      this.#escapeTimer = setTimeout(() => {
        this.#keys.dropPending();
      }, escapeMs);
    }
    if (!this.#finished) {
      this.#draw();
    }
  };

  readonly #onEnd = (): void => {
    this.finish({ kind: 'end' });
  };

  readonly #onResize = (): void => {
    // The terminal has broken our rows anew: count how many rows each of them takes now.
    const columns = Math.max(1, this.#output.columns);
    const above = this.#drawn.widths
      .slice(0, this.#drawn.cursorRow)
      .reduce((sum, width) => sum + Math.max(1, Math.ceil(width / columns)), 0);
    this.#drawn = { widths: this.#drawn.widths, cursorRow: above };
    this.#draw();
  };

  start(): void {
    this.#enterTerminal();
    this.#input.on('end', this.#onEnd);
    this.#output.on('resize', this.#onResize);
    this.#draw();
    this.#input.on('data', this.#onData);
    this.#input.resume();
  }

  #enterTerminal(): void {
    this.#input.setRawMode(true);
    this.#output.write(pasteOn);
  }

  #leaveTerminal(): void {
    this.#output.write(pasteOff);
    this.#input.setRawMode(false);
  }

  finish(line: Line): void {
    if (this.#finished) {
      return;
    }
    this.#finished = true;
    clearTimeout(this.#escapeTimer);
    this.#input.off('data', this.#onData);
    this.#input.off('end', this.#onEnd);
    this.#output.off('resize', this.#onResize);
    this.#input.pause();
    this.#buffer.moveTo(this.#buffer.cells.length);
    this.#draw();
    this.#output.write('\r\n');
    this.#leaveTerminal();
    this.#done(line);
  }

  #layout(): Layout {
    return layOut(this.#prompt, this.#buffer.cells, this.#buffer.cursor, this.#output.columns);
  }

  /** Draws everything again. When it is taller than the screen, the part around the cursor. */
  #draw(): void {
    const layout = this.#layout();
    const height = Math.max(1, this.#output.rows);
    const first = Math.max(
      0,
      Math.min(layout.cursor.row - height + 1, layout.rows.length - height),
    );
    const start =
      layout.rows.length <= height ? 0 : Math.max(first, layout.cursor.row - height + 1);
    const rows = layout.rows.slice(start, start + height);
    const cursorRow = layout.cursor.row - start;

    const up = this.#drawn.cursorRow > 0 ? `\u001b[${this.#drawn.cursorRow}A` : '';
    const back = rows.length - 1 - cursorRow;
    this.#output.write(
      `${up}\r\u001b[J${rows.join('\r\n')}` +
        (back > 0 ? `\u001b[${back}A` : '') +
        `\r${layout.cursor.column > 0 ? `\u001b[${layout.cursor.column}C` : ''}`,
    );
    this.#drawn = { widths: layout.widths.slice(start, start + height), cursorRow };
  }

  #press(key: Key): void {
    if (key.kind === 'key') {
      if (key.name !== 'interrupt') {
        this.#interrupted = false;
      }
      this.#pressNamed(key.name);
      return;
    }
    this.#interrupted = false;
    const room =
      key.kind === 'paste' ? this.#buffer.paste(key.text) : this.#buffer.insert(key.text);
    if (!room) {
      this.#output.write(bell);
    }
  }

  #pressNamed(name: KeyName): void {
    const buffer = this.#buffer;
    switch (name) {
      case 'enter':
        this.finish({ kind: 'line', text: buffer.text });
        return;
      case 'newline':
        buffer.insert('\n');
        return;
      case 'interrupt':
        this.#interrupt();
        return;
      case 'endOfFile':
        if (buffer.isEmpty) {
          this.finish({ kind: 'end' });
        } else {
          buffer.delete();
        }
        return;
      case 'suspend':
        this.#output.write('\r\n');
        this.#leaveTerminal();
        this.#suspend();
        this.#enterTerminal();
        this.#drawn = { widths: [], cursorRow: 0 };
        return;
      case 'clearScreen':
        this.#output.write('\u001b[H\u001b[2J');
        this.#drawn = { widths: [], cursorRow: 0 };
        return;
      case 'up':
      case 'previous':
        this.#vertical(-1);
        return;
      case 'down':
      case 'next':
        this.#vertical(1);
        return;
      default:
        buffer[name]();
    }
  }

  /** Clears the line; the second time in a row it leaves. */
  #interrupt(): void {
    if (this.#interrupted) {
      this.finish({ kind: 'end' });
      return;
    }
    this.#interrupted = true;
    this.#buffer.killLine();
    this.#entry = this.#history.entries.length;
  }

  #vertical(step: -1 | 1): void {
    const neighbour = verticalNeighbour(this.#layout(), step);
    if (neighbour !== undefined) {
      this.#buffer.moveTo(neighbour);
      return;
    }
    const entries = this.#history.entries;
    const entry = this.#entry + step;
    if (entry < 0 || entry > entries.length) {
      return;
    }
    if (this.#entry === entries.length) {
      this.#draft = this.#buffer.text;
    }
    this.#entry = entry;
    this.#buffer.set(entries[entry] ?? this.#draft);
  }
}
