import type { Cell } from './line-buffer.js';
import { graphemeColumns, splitGraphemes } from './width.js';

export interface Layout {
  readonly rows: readonly string[];
  /** Columns that each row takes. */
  readonly widths: readonly number[];
  readonly cursor: { readonly row: number; readonly column: number };
  /** Where each cell begins; one more entry for the end of the text. */
  readonly places: readonly { readonly row: number; readonly column: number }[];
}

/** How a cell looks. Control characters of a paste are made visible, so that they never reach the terminal. */
function appearance(cell: Cell): string {
  const text = cell.label ?? cell.text;
  if (text === '\t') {
    return '    ';
  }
  // eslint-disable-next-line no-control-regex -- these are the characters to make visible
  return text.replace(/[\u0000-\u001f\u007f]/g, (control) =>
    control === '\u007f' ? '^?' : `^${String.fromCharCode(control.charCodeAt(0) + 64)}`,
  );
}

/** Breaks prompt and text into terminal rows. A wide character that does not fit begins the next row. */
export function layOut(
  prompt: string,
  cells: readonly Cell[],
  cursor: number,
  columns: number,
): Layout {
  const rows = [''];
  const widths = [0];
  const places: { row: number; column: number }[] = [];
  const width = Math.max(2, columns);

  const nextRow = (): void => {
    rows.push('');
    widths.push(0);
  };
  const put = (text: string): void => {
    for (const grapheme of splitGraphemes(text)) {
      const advance = graphemeColumns(grapheme);
      if ((widths.at(-1) ?? 0) + advance > width) {
        nextRow();
      }
      const row = rows.length - 1;
      rows[row] = (rows[row] ?? '') + grapheme;
      widths[row] = (widths[row] ?? 0) + advance;
    }
  };
  const here = (): { row: number; column: number } => ({
    row: rows.length - 1,
    column: widths.at(-1) ?? 0,
  });

  put(prompt);
  for (const cell of cells) {
    if (cell.label === undefined && cell.text === '\n') {
      places.push(here());
      nextRow();
      continue;
    }
    const text = appearance(cell);
    const first = splitGraphemes(text)[0] ?? '';
    if ((widths.at(-1) ?? 0) + graphemeColumns(first) > width) {
      nextRow();
    }
    places.push(here());
    put(text);
  }
  if (widths.at(-1) === width) {
    nextRow();
  }
  places.push(here());
  return { rows, widths, places, cursor: places[cursor] ?? here() };
}

/** The cell index one row above or below the cursor, nearest to its column; undefined at the edge. */
export function verticalNeighbour(layout: Layout, step: -1 | 1): number | undefined {
  const row = layout.cursor.row + step;
  let best: number | undefined;
  layout.places.forEach((place, index) => {
    const bestColumn = best === undefined ? undefined : layout.places[best]?.column;
    if (
      place.row === row &&
      (bestColumn === undefined ||
        Math.abs(place.column - layout.cursor.column) < Math.abs(bestColumn - layout.cursor.column))
    ) {
      best = index;
    }
  });
  return best;
}
