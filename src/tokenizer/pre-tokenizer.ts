import { CharacterClass, classOf } from './character-class.js';

const { number, letterOrMark, symbol, space, lineBreak, hanOrKana } = CharacterClass;

const blank = 0x20;
const longestNumber = 3;

/**
 * Cuts a text into the pieces inside which merges happen. The pieces, one after the other, are the text.
 *
 * The model's rules are three regular expressions, each applied inside the pieces that the one before has left. A match
 * is a piece, and so is what lies between two matches.
 *
 * 1. `\p{N}{1,3}`
 * 2. a run of Han or kana
 * 3. the first that matches of: ASCII punctuation and the ASCII letters after it; letters and marks, with one character
 *    before them that is no line break, letter, punctuation or symbol; punctuation and symbols, with one blank before
 *    and line breaks after; white space up to its last line break; white space, but not the last character before
 *    something else; white space
 *
 * They are written out as a scanner because V8's expressions run out of stack in a run of some million equal characters.
 * Since they work in turn, the third rule sees neither across a number nor across an edge of a Han or kana run.
 *
 * @param text well-formed UTF-16
 */
export function splitIntoPieces(text: string, take: (piece: string) => void): void {
  let at = 0;
  while (at < text.length) {
    const first = classAt(text, at);
    if ((first & number) !== 0) {
      let end = at;
      for (let count = 0; count < longestNumber && isAt(text, end, text.length, number); count++) {
        end += widthAt(text, end);
      }
      take(text.slice(at, end));
      at = end;
    } else {
      const inHanOrKana = first & hanOrKana;
      let end = at;
      while (end < text.length) {
        const bits = classAt(text, end);
        if ((bits & number) !== 0 || (bits & hanOrKana) !== inHanOrKana) {
          break;
        }
        end += widthAt(text, end);
      }
      splitByThirdRule(text, at, end, take);
      at = end;
    }
  }
}

function splitByThirdRule(
  text: string,
  start: number,
  end: number,
  take: (piece: string) => void,
): void {
  let unmatched = start;
  let at = start;
  while (at < end) {
    const matchEnd = matchThirdRule(text, at, end);
    if (matchEnd === at) {
      at += widthAt(text, at);
      continue;
    }
    if (unmatched < at) {
      take(text.slice(unmatched, at));
    }
    take(text.slice(at, matchEnd));
    at = matchEnd;
    unmatched = at;
  }
  if (unmatched < end) {
    take(text.slice(unmatched, end));
  }
}

/** Where the match that starts at `at` ends; `at` itself when none does. */
function matchThirdRule(text: string, at: number, end: number): number {
  const unit = text.charCodeAt(at);
  const bits = classAt(text, at);
  const next = at + widthAt(text, at);

  if (unit < 0x80 && (bits & symbol) !== 0 && next < end && isAsciiLetter(text.charCodeAt(next))) {
    let match = next;
    while (match < end && isAsciiLetter(text.charCodeAt(match))) {
      match++;
    }
    return match;
  }
  if ((bits & letterOrMark) !== 0) {
    return skip(text, next, end, letterOrMark);
  }
  if ((bits & (symbol | lineBreak)) === 0 && isAt(text, next, end, letterOrMark)) {
    return skip(text, next, end, letterOrMark);
  }
  if ((bits & symbol) !== 0 || (unit === blank && isAt(text, next, end, symbol))) {
    return skip(text, skip(text, next, end, symbol), end, lineBreak);
  }
  return (bits & space) === 0 ? at : matchSpace(text, at, end);
}

function matchSpace(text: string, at: number, end: number): number {
  let afterLineBreak = at;
  let match = at;
  // All white space is one code unit wide.
  for (; match < end; match++) {
    const bits = classAt(text, match);
    if ((bits & space) === 0) {
      break;
    }
    if ((bits & lineBreak) !== 0) {
      afterLineBreak = match + 1;
    }
  }
  if (afterLineBreak > at) {
    return afterLineBreak;
  }
  return match === end || match === at + 1 ? match : match - 1;
}

/** The end of the run of characters with one of these class bits that starts at `at`. */
function skip(text: string, at: number, end: number, bits: number): number {
  let position = at;
  while (isAt(text, position, end, bits)) {
    position += widthAt(text, position);
  }
  return position;
}

function isAt(text: string, at: number, end: number, bits: number): boolean {
  return at < end && (classAt(text, at) & bits) !== 0;
}

function classAt(text: string, at: number): number {
  const unit = text.charCodeAt(at);
  return classOf(isHighSurrogate(unit) ? (text.codePointAt(at) ?? unit) : unit);
}

function widthAt(text: string, at: number): number {
  return isHighSurrogate(text.charCodeAt(at)) ? 2 : 1;
}

function isHighSurrogate(unit: number): boolean {
  return (unit & 0xfc00) === 0xd800;
}

function isAsciiLetter(unit: number): boolean {
  const lower = unit | 0x20;
  return lower >= 0x61 && lower <= 0x7a;
}
