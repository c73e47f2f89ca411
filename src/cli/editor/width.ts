/** First and last code points of the East Asian wide and fullwidth blocks, and of emoji that are two columns wide. */
const wideRanges: readonly (readonly [number, number])[] = [
  [0x1100, 0x115f],
  [0x2e80, 0x303e],
  [0x3041, 0x33ff],
  [0x3400, 0x4dbf],
  [0x4e00, 0x9fff],
  [0xa000, 0xa4cf],
  [0xa960, 0xa97f],
  [0xac00, 0xd7a3],
  [0xf900, 0xfaff],
  [0xfe10, 0xfe19],
  [0xfe30, 0xfe6f],
  [0xff00, 0xff60],
  [0xffe0, 0xffe6],
  [0x1f1e6, 0x1f1ff],
  [0x1f300, 0x1faff],
  [0x20000, 0x3fffd],
];

const invisible = /^[\p{Mn}\p{Me}\p{Cf}]+$/u;
const emoji = /^\p{Emoji_Presentation}|\ufe0f/u;
const graphemes = new Intl.Segmenter(undefined, { granularity: 'grapheme' });

/** Segmenting takes time that grows with the square of the text, so a long one is done in windows of this length. */
const windowUnits = 256;
const plainText = /^[\n\t -~]*$/;

/** Never inside a surrogate pair: its half would count as a character, and hide that the one before it goes on. */
function windowEnd(text: string, start: number): number {
  const end = start + windowUnits;
  const cutsPair = /[\ud800-\udbff]/.test(text.charAt(end - 1));
  return cutsPair && end < text.length ? end - 1 : end;
}

/** Splits a text into what a reader sees as characters, so that the cursor never stops inside one. */
export function splitGraphemes(text: string): string[] {
  if (plainText.test(text)) {
    return text.split('');
  }
  const all: string[] = [];
  for (let start = 0; start < text.length;) {
    const end = windowEnd(text, start);
    const found = Array.from(graphemes.segment(text.slice(start, end)), ({ segment }) => segment);
    // The last one may go on in the next window.
    const isCut = end < text.length && found.length > 1;
    const whole = isCut ? found.slice(0, -1) : found;
    for (const grapheme of whole) {
      all.push(grapheme);
      start += grapheme.length;
    }
  }
  return all;
}

/** Terminal columns of one grapheme. */
export function graphemeColumns(grapheme: string): 0 | 1 | 2 {
  const code = grapheme.codePointAt(0);
  if (code === undefined || invisible.test(grapheme)) {
    return 0;
  }
  if (code < 0x300) {
    return emoji.test(grapheme) ? 2 : 1;
  }
  const wide = wideRanges.some(([first, last]) => code >= first && code <= last);
  return wide || emoji.test(grapheme) ? 2 : 1;
}
