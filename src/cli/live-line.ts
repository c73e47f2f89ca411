import { fstatSync } from 'node:fs';
import { moveCursor } from './cursor-column.js';
import { drawsProgress } from './progress.js';
import type { Run } from './run.js';

const redrawMs = 500;
/** Columns at the end of a row in which the line stays away, of rows that have four times as many. */
const mostMargin = 16;

const saveCursor = '\u001b7';
const restoreCursor = '\u001b8';
const eraseBelow = '\u001b[J';
const down = '\u001b[B';
const plain = '\u001b[0m';
/** One row down, scrolling where there is none, and up again: unlike a line feed it keeps the column. */
const roomBelow = '\u001bD\u001b[A';

/**
 * A line below a text that is still being written. The text itself is never touched: the line is off the screen whenever
 * the cursor comes near another row, and absent while it is not certain in which column the cursor stands. At the very end
 * of a row a terminal keeps in mind that the next character begins a new one, and forgets it when the cursor moves; then the
 * last character would be overwritten. Nothing is switched off or on, so that a killed process leaves nothing to mend: the
 * terminal goes on echoing keys, `^C` too, and nobody says how far they have moved the cursor. So the line is away near the
 * end of a row already, which leaves room for the keys that somebody types ahead in one line of the text.
 */
export class LiveLine {
  readonly #write: (text: string) => void;
  readonly #columns: () => number;
  readonly #color: (text: string) => string;
  readonly #text: () => string | undefined;
  readonly #decoder = new TextDecoder();
  readonly #timer: NodeJS.Timeout;
  #column: number | undefined = 0;
  #shown: string | undefined;
  #isWriting = false;
  /** It was there before, so that it comes back as soon as it can. */
  #isBegun = false;

  /** The cursor stands at the beginning of a row. `text` is asked twice a second; undefined: nothing to show. */
  constructor(options: {
    readonly write: (text: string) => void;
    readonly columns: () => number;
    readonly color: (text: string) => string;
    readonly text: () => string | undefined;
  }) {
    this.#write = options.write;
    this.#columns = options.columns;
    this.#color = options.color;
    this.#text = options.text;
    this.#timer = setInterval(() => {
      this.#draw();
    }, redrawMs);
    this.#timer.unref();
  }

  /** Writes a piece of the text, without marks of colour, by `work`. */
  async around(piece: Uint8Array, work: () => Promise<void>): Promise<void> {
    const text = this.#decoder.decode(piece, { stream: true });
    const { column, leavesRow } = moveCursor(this.#column, text, this.#columns());
    if (leavesRow || !this.#isClear(column)) {
      this.#erase();
    }
    this.#isWriting = true;
    try {
      await work();
    } finally {
      this.#isWriting = false;
    }
    this.#column = column;
    if (this.#isBegun && this.#shown === undefined) {
      this.#draw();
    }
  }

  /** Some typed keys more would not bring the cursor to the end of its row. */
  #isClear(column: number | undefined): boolean {
    const columns = this.#columns();
    return column !== undefined && column < columns - Math.min(mostMargin, columns / 4);
  }

  #draw(): void {
    if (this.#isWriting || !this.#isClear(this.#column)) {
      return;
    }
    const text = this.#text()?.slice(0, this.#columns() - 1);
    if (text === undefined || text === this.#shown) {
      return;
    }
    this.#shown = text;
    this.#isBegun = true;
    // Room is made each time: what is typed ahead moves the cursor too, also into the row of the line.
    this.#write(
      `${eraseBelow}${roomBelow}${saveCursor}${down}\r${plain}${this.#color(text)}${restoreCursor}`,
    );
  }

  #erase(): void {
    if (this.#shown !== undefined) {
      this.#shown = undefined;
      this.#write(eraseBelow);
    }
  }

  /** Something else has moved the cursor or changed the width: no line until the next row of the text. */
  readonly lose = (): void => {
    this.#erase();
    this.#column = undefined;
  };

  /** Takes the line off the screen for good. */
  close(): void {
    clearInterval(this.#timer);
    this.#isBegun = false;
    this.lose();
  }
}

/** What is written to one of the two streams appears where the other one writes. */
function isOneTerminal(): boolean {
  const [stdout, stderr] = [fstatSync(1), fstatSync(2)];
  return stdout.rdev === stderr.rdev && stdout.dev === stderr.dev;
}

/**
 * Does `work` with such a line, or without one: where the two streams are not one terminal that can draw it, and where lines
 * about each token are written.
 *
 * @param text as for LiveLine; undefined: no line
 */
export async function withLiveLine<Result>(
  { terminal, environment }: Pick<Run, 'terminal' | 'environment'>,
  text: (() => string | undefined) | undefined,
  work: (line: LiveLine | undefined) => Promise<Result>,
): Promise<Result> {
  const isAlone = !environment.tokenTiming && !environment.traceTop;
  const draws = drawsProgress(terminal, environment.terminal) && terminal.stdoutIsTerminal;
  if (text === undefined || !isAlone || !draws || !isOneTerminal()) {
    return work(undefined);
  }
  const line = new LiveLine({
    write: (sequence) => {
      terminal.raw(sequence);
    },
    columns: () => process.stderr.columns,
    color: terminal.style.progress,
    text,
  });
  const suspend = (): void => {
    line.lose();
    process.kill(process.pid, 'SIGSTOP');
  };
  process.stderr.on('resize', line.lose);
  process.on('SIGCONT', line.lose);
  process.on('SIGTSTP', suspend);
  try {
    return await work(line);
  } finally {
    process.stderr.off('resize', line.lose);
    process.off('SIGCONT', line.lose);
    process.off('SIGTSTP', suspend);
    line.close();
  }
}
