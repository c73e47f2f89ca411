/** Longest piece of a name that a message quotes; beyond it a sentence stops being one. */
const longestQuote = 120;

/**
 * Text from a file, made safe for a terminal: control characters, including those that steer a terminal, and lone
 * surrogates become escapes, and a long text ends in `...`.
 */
export function printable(text: string): string {
  const shown = text.length > longestQuote ? `${text.slice(0, longestQuote)}...` : text;
  return shown.replace(
    /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`,
  );
}
