import { describe, expect, it } from 'vitest';
import { moveCursor } from '../../../src/cli/cursor-column.js';

describe('the cursor', () => {
  it.each([
    ['within a row', 3, 'abc', { column: 6, leavesRow: false }],
    ['over wide characters', 0, '日本', { column: 4, leavesRow: false }],
    ['over letters with accents', 0, 'è“—”Ж', { column: 5, leavesRow: false }],
    ['to the next tab stop', 3, '\t', { column: 8, leavesRow: false }],
    ['with a tab no farther than the last column', 9, '\t', { column: 9, leavesRow: false }],
    ['to a new line', 5, 'a\nbc', { column: 2, leavesRow: true }],
    ['to the very end of a row', 8, 'ab', { column: 10, leavesRow: true }],
    ['from there to the next row', 10, 'a', { column: 1, leavesRow: true }],
    ['to the next row with a wide one that has no room', 9, '日', { column: 2, leavesRow: true }],
    ['through several rows', 0, 'a'.repeat(25), { column: 5, leavesRow: true }],
    ['nowhere without a text', 4, '', { column: 4, leavesRow: false }],
  ])('goes %s', (_, from, text, move) => {
    expect(moveCursor(from, text, 10)).toEqual(move);
  });

  it.each([
    ['an emoji', 'a🙂'],
    ['a mark that combines', 'e\u0301'],
    ['an escape sequence', '\u001b[31m'],
    ['a return', 'ab\r'],
    ['a tab at the very end', '0123456789\t'],
  ])('is somewhere behind %s, until a line ends', (_, text) => {
    expect(moveCursor(0, text, 10)).toEqual({ column: undefined, leavesRow: true });
    expect(moveCursor(0, `${text}abc`, 10)).toEqual({ column: undefined, leavesRow: true });
    expect(moveCursor(0, `${text}\nabc`, 10)).toEqual({ column: 3, leavesRow: true });
  });
});
