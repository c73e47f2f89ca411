/**
 * The alphabet in which byte-level vocabularies spell bytes: each of the 256 bytes is one printable character. Bytes
 * that print well in Latin-1 stand for themselves, the others take the code points from U+0100 on, in order.
 */
function standsForItself(byte: number): boolean {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

function buildAlphabet(): string[] {
  const characters: string[] = [];
  let next = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    characters.push(String.fromCharCode(standsForItself(byte) ? byte : next++));
  }
  return characters;
}

/** Character of each byte. */
export const characterOfByte: readonly string[] = buildAlphabet();

/** Byte of each UTF-16 code unit below this table's length; -1 where none. */
export const byteOfCodeUnit: Int16Array = (() => {
  const bytes = new Int16Array(0x200).fill(-1);
  characterOfByte.forEach((character, byte) => {
    bytes[character.charCodeAt(0)] = byte;
  });
  return bytes;
})();
