import { mergeSymbols } from './byte-pair.js';
import { MergeTable } from './merges.js';
import { PieceCache } from './piece-cache.js';
import { splitIntoPieces } from './pre-tokenizer.js';
import { SpecialLiterals } from './special-literals.js';
import { TokenList } from './token-list.js';
import { utf8Spans } from './utf8.js';
import { Vocabulary } from './vocabulary.js';
import type { VocabularyData } from './vocabulary.js';

/** Text for encoding: a string, or bytes that should be UTF-8. */
export type Text = string | Uint8Array;

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });

/**
 * Byte-level BPE with the piece rules of DeepSeek-V3 and V4.
 *
 * Every text can be encoded, and the bytes of the tokens are the bytes of the text. Two inputs need a rule: a lone
 * surrogate in a string is encoded as U+FFFD, as everywhere in JavaScript; bytes that are not UTF-8 are kept as they
 * are, each stretch of them as a piece of its own.
 */
export class Tokenizer {
  private readonly vocabulary: Vocabulary;
  private readonly merges: MergeTable;
  private readonly literals: SpecialLiterals;
  private readonly cache = new PieceCache();
  private readonly scratch = new Int32Array(512);
  private readonly utf8 = new Uint8Array(this.scratch.length);

  /** @throws TokenizerError when the data cannot be a byte-level vocabulary. */
  constructor(data: VocabularyData) {
    this.vocabulary = new Vocabulary(data);
    this.merges = new MergeTable(data.merges, this.vocabulary);
    this.literals = new SpecialLiterals(this.vocabulary.specials);
  }

  /** How many tokens there are. */
  get vocab(): number {
    return this.vocabulary.count;
  }

  /** Tokens of a text in which nothing is special: the result never holds a special token, whatever the text says. */
  encode(text: Text): Int32Array {
    const out = new TokenList();
    this.encodeInto(out, text, (span) => {
      this.encodeSpan(out, span);
    });
    return out.toArray();
  }

  /** Tokens of a text whose special literals are meant: they are cut out first, leftmost and longest. */
  encodeWithSpecials(text: Text): Int32Array {
    const out = new TokenList();
    this.encodeInto(out, text, (span) => {
      for (const part of this.literals.cut(span)) {
        if (part.kind === 'special') {
          out.push(part.id);
        } else {
          this.encodeSpan(out, part.text);
        }
      }
    });
    return out.toArray();
  }

  /** Id of the special token with this literal. */
  special(literal: string): number | undefined {
    return this.vocabulary.specials.get(literal);
  }

  isSpecial(id: number): boolean {
    return this.vocabulary.isSpecial(id);
  }

  /**
   * Bytes that a token stands for, in a new array; for a special token its literal in UTF-8.
   *
   * @throws TokenizerError when there is no such token.
   */
  pieceBytes(id: number): Uint8Array {
    return this.vocabulary.bytesOf(id);
  }

  /**
   * Spelling of a token in the vocabulary, in the byte alphabet.
   *
   * @throws TokenizerError when there is no such token.
   */
  storedPiece(id: number): string {
    return this.vocabulary.spelling(id);
  }

  /**
   * Bytes of several tokens, one after the other.
   *
   * @throws TokenizerError when one of them does not exist.
   */
  decode(ids: Iterable<number>): Uint8Array {
    const pieces = Array.from(ids, (id) => this.pieceBytes(id));
    const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    let end = 0;
    for (const piece of pieces) {
      bytes.set(piece, end);
      end += piece.length;
    }
    return bytes;
  }

  private encodeInto(out: TokenList, text: Text, encodeSpan: (span: string) => void): void {
    if (typeof text === 'string') {
      encodeSpan(text.replace(/\p{Surrogate}/gu, '\ufffd'));
      return;
    }
    for (const span of utf8Spans(text)) {
      if (span.kind === 'valid') {
        encodeSpan(decoder.decode(span.bytes));
      } else {
        this.encodeBytes(out, span.bytes);
      }
    }
  }

  private encodeSpan(out: TokenList, text: string): void {
    splitIntoPieces(text, (piece) => {
      const known = this.cache.get(piece);
      if (known === undefined) {
        this.encodePiece(out, piece);
      } else {
        out.append(known);
      }
    });
  }

  private encodePiece(out: TokenList, piece: string): void {
    const bytes =
      3 * piece.length <= this.utf8.length
        ? this.utf8.subarray(0, encoder.encodeInto(piece, this.utf8).written)
        : encoder.encode(piece);
    const start = out.length;
    this.encodeBytes(out, bytes);
    this.cache.set(decoder.decode(bytes), out.copyFrom(start));
  }

  private encodeBytes(out: TokenList, bytes: Uint8Array): void {
    const symbols =
      bytes.length <= this.scratch.length ? this.scratch : new Int32Array(bytes.length);
    const { byteTokens } = this.vocabulary;
    for (let index = 0; index < bytes.length; index++) {
      symbols[index] = byteTokens[bytes[index] ?? 0] ?? 0;
    }
    out.append(symbols.subarray(0, mergeSymbols(symbols, bytes.length, this.merges)));
  }
}
