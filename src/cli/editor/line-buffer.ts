import { splitGraphemes } from './width.js';

/** One step of the cursor: a grapheme, or a long paste that is shown folded. */
export interface Cell {
  readonly text: string;
  /** What is shown instead of the text. */
  readonly label?: string;
}

const mostFolds = 16;
const longestLineBytes = 1 << 20;
const foldFromBytes = 200;

const isWord = (cell: Cell | undefined): boolean =>
  cell !== undefined && (cell.label !== undefined || /[\p{L}\p{N}_]/u.test(cell.text));

/** The text being edited and the cursor in it. Knows nothing of the terminal. */
export class LineBuffer {
  #cells: Cell[] = [];
  #cursor = 0;

  get cells(): readonly Cell[] {
    return this.#cells;
  }

  get cursor(): number {
    return this.#cursor;
  }

  get text(): string {
    return this.#cells.map(({ text }) => text).join('');
  }

  get isEmpty(): boolean {
    return this.#cells.length === 0;
  }

  set(text: string): void {
    this.#cells = splitGraphemes(text).map((grapheme) => ({ text: grapheme }));
    this.#cursor = this.#cells.length;
  }

  #insertCells(cells: readonly Cell[]): void {
    this.#cells.splice(this.#cursor, 0, ...cells);
    this.#cursor += cells.length;
  }

  #fits(text: string): boolean {
    return Buffer.byteLength(this.text) + Buffer.byteLength(text) <= longestLineBytes;
  }

  /** @returns false when the line would become longer than 1 MiB; nothing is inserted then. */
  insert(text: string): boolean {
    if (!this.#fits(text)) {
      return false;
    }
    // What is typed may join the character before the cursor, as a combining accent does.
    const before = this.#cells[this.#cursor - 1];
    if (before !== undefined && before.label === undefined && before.text !== '\n') {
      const joined = splitGraphemes(before.text + text);
      if (joined[0] !== before.text) {
        this.#cursor -= 1;
        this.#cells.splice(this.#cursor, 1);
        this.#insertCells(joined.map((grapheme) => ({ text: grapheme })));
        return true;
      }
    }
    this.#insertCells(splitGraphemes(text).map((grapheme) => ({ text: grapheme })));
    return true;
  }

  /**
   * Inserts a paste; one with a line break or of 200 bytes and more is shown folded and submitted whole.
   *
   * @returns false when there is no room for it; nothing is inserted then.
   */
  paste(text: string): boolean {
    const lines = text.split('\n').length;
    if (lines === 1 && Buffer.byteLength(text) < foldFromBytes) {
      return this.insert(text);
    }
    const folds = this.#cells.filter(({ label }) => label !== undefined).length;
    if (folds >= mostFolds || !this.#fits(text)) {
      return false;
    }
    const label =
      lines > 1
        ? `[... ${lines} pasted lines ...]`
        : `[... ${splitGraphemes(text).length} pasted chars ...]`;
    this.#insertCells([{ text, label }]);
    return true;
  }

  backspace(): void {
    if (this.#cursor > 0) {
      this.#cursor -= 1;
      this.#cells.splice(this.#cursor, 1);
    }
  }

  delete(): void {
    this.#cells.splice(this.#cursor, 1);
  }

  left(): void {
    this.#cursor = Math.max(0, this.#cursor - 1);
  }

  right(): void {
    this.#cursor = Math.min(this.#cells.length, this.#cursor + 1);
  }

  moveTo(cursor: number): void {
    this.#cursor = Math.min(Math.max(0, cursor), this.#cells.length);
  }

  #lineStart(): number {
    let start = this.#cursor;
    while (start > 0 && this.#cells[start - 1]?.text !== '\n') {
      start -= 1;
    }
    return start;
  }

  #lineEnd(): number {
    let end = this.#cursor;
    while (end < this.#cells.length && this.#cells[end]?.text !== '\n') {
      end += 1;
    }
    return end;
  }

  home(): void {
    this.#cursor = this.#lineStart();
  }

  end(): void {
    this.#cursor = this.#lineEnd();
  }

  #wordStart(): number {
    let start = this.#cursor;
    while (start > 0 && !isWord(this.#cells[start - 1])) {
      start -= 1;
    }
    while (start > 0 && isWord(this.#cells[start - 1])) {
      start -= 1;
    }
    return start;
  }

  wordLeft(): void {
    this.#cursor = this.#wordStart();
  }

  wordRight(): void {
    while (this.#cursor < this.#cells.length && !isWord(this.#cells[this.#cursor])) {
      this.#cursor += 1;
    }
    while (isWord(this.#cells[this.#cursor])) {
      this.#cursor += 1;
    }
  }

  deleteWord(): void {
    const start = this.#wordStart();
    this.#cells.splice(start, this.#cursor - start);
    this.#cursor = start;
  }

  killLine(): void {
    this.#cells = [];
    this.#cursor = 0;
  }

  killToEnd(): void {
    this.#cells.splice(this.#cursor, this.#lineEnd() - this.#cursor);
  }

  /** Swaps the character before the cursor with the one under it, or the last two at the end of the line. */
  transpose(): void {
    const right = this.#cursor === this.#cells.length ? this.#cursor - 1 : this.#cursor;
    const [a, b] = [this.#cells[right - 1], this.#cells[right]];
    if (a !== undefined && b !== undefined) {
      this.#cells.splice(right - 1, 2, b, a);
      this.#cursor = right + 1;
    }
  }
}
