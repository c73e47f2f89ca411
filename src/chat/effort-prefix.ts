import { createHash } from 'node:crypto';

/** The two known instructions for thinking hard: `A` came with the first V4 release, `B` is the stronger one of 0731. */
export type EffortTier = 'A' | 'B';

interface KnownPrefix {
  readonly tier: EffortTier;
  readonly start: string;
  readonly bytes: number;
  readonly sha256: string;
}

/**
 * The texts belong to the models, so they are recognised here and not kept. The stronger one first: where a model knows
 * both, it is what "max" means.
 */
const knownPrefixes: readonly KnownPrefix[] = [
  {
    tier: 'B',
    start: 'Reasoning Effort: Beyond maximum',
    bytes: 528,
    sha256: '53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c',
  },
  {
    tier: 'A',
    start: 'Reasoning Effort: Absolute maximum',
    bytes: 476,
    sha256: 'f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7',
  },
];

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Which known instruction a text is, to the byte; undefined for any other text. */
export function identifyEffortPrefix(
  text: string,
  known: readonly KnownPrefix[] = knownPrefixes,
): EffortTier | undefined {
  const digest = sha256(Buffer.from(text));
  return known.find((prefix) => prefix.sha256 === digest)?.tier;
}

/**
 * Finds the instruction for maximum effort in a chat template, plain or written as a string literal with escapes.
 *
 * @returns the text as it must stand in the prompt, or undefined when the template holds none that is known.
 */
export function findEffortPrefix(
  chatTemplate: string,
  known: readonly KnownPrefix[] = knownPrefixes,
): string | undefined {
  for (const prefix of known) {
    for (
      let at = chatTemplate.indexOf(prefix.start);
      at >= 0;
      at = chatTemplate.indexOf(prefix.start, at + 1)
    ) {
      // An escape is at most six characters, so this much text holds all of the prefix however it is written.
      const written = chatTemplate.slice(at, at + 6 * prefix.bytes);
      for (const text of [written, unescaped(written)]) {
        const bytes = Buffer.from(text).subarray(0, prefix.bytes);
        if (sha256(bytes) === prefix.sha256) {
          return bytes.toString();
        }
      }
    }
  }
  return undefined;
}

const singleEscapes: ReadonlyMap<string, string> = new Map([
  ['n', '\n'],
  ['r', '\r'],
  ['t', '\t'],
]);

function unescaped(text: string): string {
  return text.replace(/\\(?:u([0-9a-fA-F]{4})|(.))/gs, (_, hex?: string, character = '') =>
    hex === undefined
      ? (singleEscapes.get(String(character)) ?? String(character))
      : String.fromCharCode(parseInt(hex, 16)),
  );
}
