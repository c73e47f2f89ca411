/** Bits of a character's class, as far as cutting a text into pieces asks for it. */
export const CharacterClass = {
  /** \p{N} */
  number: 1,
  /** \p{L} or \p{M} */
  letterOrMark: 2,
  /** \p{P} or \p{S} */
  symbol: 4,
  /** White_Space */
  space: 8,
  /** Carriage return or line feed */
  lineBreak: 16,
  /** Han of the first Unicode block, Hiragana or Katakana: the ranges of the second rule */
  hanOrKana: 32,
} as const;

const rules: readonly { readonly bit: number; readonly has: RegExp }[] = [
  { bit: CharacterClass.number, has: /\p{N}/u },
  { bit: CharacterClass.letterOrMark, has: /[\p{L}\p{M}]/u },
  { bit: CharacterClass.symbol, has: /[\p{P}\p{S}]/u },
  // Not `\s`: that has U+FEFF in addition and lacks U+0085.
  { bit: CharacterClass.space, has: /\p{White_Space}/u },
  { bit: CharacterClass.lineBreak, has: /[\r\n]/ },
  { bit: CharacterClass.hanOrKana, has: /[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]/ },
];

const pageBits = 8;
const pageCharacters = 2 ** pageBits;

/** Classes by code point, in pages that are filled when a text first needs them: a whole table would slow each start. */
const pages: (Uint8Array | undefined)[] = [];

function fillPage(page: number): Uint8Array {
  const classes = Uint8Array.from({ length: pageCharacters }, (_, offset) => {
    const character = String.fromCodePoint(page * pageCharacters + offset);
    return rules.reduce((bits, { bit, has }) => (has.test(character) ? bits | bit : bits), 0);
  });
  pages[page] = classes;
  return classes;
}

/** Class bits of a code point. */
export function classOf(codePoint: number): number {
  const page = codePoint >> pageBits;
  return (pages[page] ?? fillPage(page))[codePoint & (pageCharacters - 1)] ?? 0;
}
