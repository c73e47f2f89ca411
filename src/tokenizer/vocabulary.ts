import { byteOfCodeUnit, characterOfByte } from './byte-alphabet.js';
import { TokenizerError } from './tokenizer-error.js';

/** What a model file says about its tokens, as plain data. */
export interface VocabularyData {
  /** Spelling of each token; the index is its id. Ordinary tokens use the byte alphabet, special ones are literal. */
  readonly tokens: readonly string[];
  /** Kind of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Same length as `tokens`. */
  readonly tokenTypes: ArrayLike<number>;
  /** Pairs of ordinary tokens, `left right`, that become one token; the earlier, the sooner. */
  readonly merges: readonly string[];
}

const TokenType = {
  normal: 1,
  unknown: 2,
  control: 3,
  userDefined: 4,
  unused: 5,
  byte: 6,
} as const;

/** Quotes a string from a file for a message: without anything that moves a cursor, and not longer than a line bears. */
export function quoted(text: string): string {
  const short = text.length > 60 ? `${text.slice(0, 60)}...` : text;
  return JSON.stringify(short).replace(
    /\p{C}/gu,
    (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`,
  );
}

/**
 * The tokens of a model: spelling, bytes and kind of each id, and the way back from spelling to id.
 *
 * Unused slots may repeat a spelling or be empty; every other token must be the only one of its kind and spelling.
 */
export class Vocabulary {
  readonly tokens: readonly string[];
  /** Id of each byte's own token; index is the byte. */
  readonly byteTokens: Int32Array;
  /** Ids by spelling, without the special tokens. */
  readonly ordinary: ReadonlyMap<string, number>;
  /** Ids of control and user-defined tokens by their literal. */
  readonly specials: ReadonlyMap<string, number>;

  private readonly special: Uint8Array;
  private readonly bytes: Uint8Array;
  /** Token `id` owns `bytes` from `byteStart[id]` to `byteStart[id + 1]`. */
  private readonly byteStart: Uint32Array;

  /** @throws TokenizerError when the tokens contradict each other or cannot spell every byte. */
  constructor(data: Pick<VocabularyData, 'tokens' | 'tokenTypes'>) {
    const { tokens, tokenTypes } = data;
    if (tokenTypes.length !== tokens.length) {
      throw new TokenizerError(
        `cannot use the vocabulary: it has ${tokens.length} tokens but ${tokenTypes.length} token types; ` +
          'the model file is damaged or was converted wrongly',
      );
    }
    const ordinary = new Map<string, number>();
    const specials = new Map<string, number>();
    const special = new Uint8Array(tokens.length);
    tokens.forEach((token, id) => {
      const type = tokenTypes[id];
      if (type === TokenType.unused) {
        if (token !== '' && !ordinary.has(token)) {
          ordinary.set(token, id);
        }
        return;
      }
      const isSpecial = type === TokenType.control || type === TokenType.userDefined;
      const ids = isSpecial ? specials : ordinary;
      if (token === '') {
        throw new TokenizerError(
          `cannot use the vocabulary: token ${id} is empty; the model file is damaged or was converted wrongly`,
        );
      }
      const twin = ids.get(token);
      if (twin !== undefined && tokenTypes[twin] !== TokenType.unused) {
        throw new TokenizerError(
          `cannot use the vocabulary: tokens ${twin} and ${id} are both ${quoted(token)}; ` +
            'the model file is damaged or was converted wrongly',
        );
      }
      ids.set(token, id);
      special[id] = isSpecial ? 1 : 0;
    });

    this.tokens = tokens;
    this.ordinary = ordinary;
    this.specials = specials;
    this.special = special;
    this.byteTokens = findByteTokens(ordinary);
    ({ bytes: this.bytes, byteStart: this.byteStart } = spellInBytes(tokens, special));
  }

  get count(): number {
    return this.tokens.length;
  }

  isSpecial(id: number): boolean {
    return this.special[id] === 1;
  }

  /** @throws TokenizerError when there is no such token. */
  spelling(id: number): string {
    const token = this.tokens[id];
    if (token === undefined) {
      throw new TokenizerError(
        `cannot decode token ${id}: the vocabulary has ${this.count} tokens; the model file is inconsistent`,
      );
    }
    return token;
  }

  /** @throws TokenizerError when there is no such token. */
  bytesOf(id: number): Uint8Array {
    this.spelling(id);
    return this.bytes.slice(this.byteStart[id], this.byteStart[id + 1]);
  }
}

function findByteTokens(ordinary: ReadonlyMap<string, number>): Int32Array {
  const byteTokens = new Int32Array(256);
  const missing: number[] = [];
  characterOfByte.forEach((character, byte) => {
    const id = ordinary.get(character);
    if (id === undefined) {
      missing.push(byte);
    }
    byteTokens[byte] = id ?? 0;
  });
  const [first] = missing;
  if (first !== undefined) {
    throw new TokenizerError(
      `cannot use the vocabulary: ${missing.length} of the 256 single bytes have no token, ` +
        `the first is 0x${first.toString(16).padStart(2, '0')}; only byte-level vocabularies (gpt2) are supported`,
    );
  }
  return byteTokens;
}

/**
 * Bytes of every token. An ordinary token with a character outside the byte alphabet stands for itself, like a special
 * one: some converters store added tokens that way.
 */
function spellInBytes(
  tokens: readonly string[],
  special: Uint8Array,
): { bytes: Uint8Array; byteStart: Uint32Array } {
  const encoder = new TextEncoder();
  const byteStart = new Uint32Array(tokens.length + 1);
  const longest = tokens.reduce((sum, token) => sum + 3 * token.length, 0);
  const bytes = new Uint8Array(longest);
  let end = 0;
  tokens.forEach((token, id) => {
    const start = end;
    let spelled = special[id] === 0;
    for (let index = 0; spelled && index < token.length; index++) {
      const byte = byteOfCodeUnit[token.charCodeAt(index)] ?? -1;
      if (byte < 0) {
        spelled = false;
      } else {
        bytes[end++] = byte;
      }
    }
    if (!spelled) {
      end = start + encoder.encodeInto(token, bytes.subarray(start)).written;
    }
    byteStart[id + 1] = end;
  });
  return { bytes: bytes.slice(0, end), byteStart };
}
