/** What a text does to the cursor. */
export interface CursorMove {
  /**
   * Columns in front of the cursor in its row; as many as the row has when the next character will begin a new one.
   * Undefined when terminals do not agree.
   */
  readonly column: number | undefined;
  /** The cursor may come to another row, or to the very end of this one. */
  readonly leavesRow: boolean;
}

/** Characters that every terminal draws one column wide, whatever stands beside them. */
const narrow =
  /^[ -~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u25fc]$/;
/** The same for two columns. */
const wide = /^[\u3001-\u3020\u3041-\u3096\u309b-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60]$/;
const tabColumns = 8;

function step(column: number | undefined, character: string, columns: number): CursorMove {
  if (character === '\n') {
    return { column: 0, leavesRow: true };
  }
  const width = narrow.test(character) ? 1 : wide.test(character) ? 2 : 0;
  if (column === undefined || (width === 0 && character !== '\t')) {
    return { column: undefined, leavesRow: true };
  }
  if (character === '\t') {
    const stop = tabColumns * (Math.floor(column / tabColumns) + 1);
    return column === columns
      ? { column: undefined, leavesRow: true }
      : { column: Math.min(stop, columns - 1), leavesRow: false };
  }
  const isWrapped = column + width > columns;
  const next = isWrapped ? width : column + width;
  return { column: next, leavesRow: isWrapped || next === columns };
}

/**
 * Follows the cursor through a text, in a terminal with so many columns. Where widths depend on the terminal (emoji, marks
 * that combine, escape sequences) the column is unknown until the next line begins.
 */
export function moveCursor(from: number | undefined, text: string, columns: number): CursorMove {
  let move: CursorMove = { column: from, leavesRow: false };
  for (const character of text) {
    const { column, leavesRow } = step(move.column, character, columns);
    move = { column, leavesRow: leavesRow || move.leavesRow };
  }
  return move;
}
