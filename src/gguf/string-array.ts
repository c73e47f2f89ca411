/**
 * Decodes strings that lie in one piece of bytes.
 *
 * @param spans for each string its first byte and the byte behind it.
 */
export function decodeStrings(bytes: Buffer, spans: Uint32Array): readonly string[] {
  const strings: string[] = [];
  for (let index = 0; index + 1 < spans.length; index += 2) {
    strings.push(bytes.toString('utf8', spans[index], spans[index + 1]));
  }
  return strings;
}
