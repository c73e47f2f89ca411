import type { WrittenValue } from './gguf-writer.js';
import { list, text } from './gguf-spec.js';

const leadingSpecials = ['<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜▁pad▁｜>'];
const trailingSpecials = [
  '<｜User｜>',
  '<｜Assistant｜>',
  '<think>',
  '</think>',
  '｜DSML｜',
  '<｜latest_reminder｜>',
];
/** Those that converters mark as user-defined, not as control. */
const userDefined = new Set(['<think>', '</think>', '｜DSML｜']);

/** Words whose prefixes become tokens, so that ordinary text is merged at all. `Ġ` is a space. */
const words = [
  'Ġthe',
  'Ġand',
  'Ġto',
  'Ġof',
  'Ġis',
  'Ġin',
  'ing',
  'er',
  'ed',
  'Hello',
  'Ġworld',
  'Say',
  'Ġhi',
  'Count',
  'tion',
];

/** The 256 characters that stand for bytes, in the order of the bytes. */
function byteCharacters(): string[] {
  const printableByte = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let shifted = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    if (printableByte(byte)) {
      return String.fromCodePoint(byte);
    }
    shifted += 1;
    return String.fromCodePoint(255 + shifted);
  });
}

export interface ByteVocabulary {
  readonly tokens: readonly string[];
  readonly types: readonly number[];
  readonly merges: readonly string[];
}

/**
 * A byte-level vocabulary of exactly `size` entries (at least 320): DeepSeek's begin, end and pad tokens, the bytes,
 * some merges, unused entries, and at the end the other special tokens.
 */
export function byteVocabulary(size: number): ByteVocabulary {
  const bytes = byteCharacters();
  const known = new Set(bytes);
  const merges: string[] = [];
  for (const word of words) {
    const letters = Array.from(word);
    for (let length = 2; length <= letters.length; length += 1) {
      const left = letters.slice(0, length - 1).join('');
      const piece = left + (letters[length - 1] ?? '');
      if (!known.has(piece)) {
        known.add(piece);
        merges.push(`${left} ${letters[length - 1] ?? ''}`);
      }
    }
  }
  const normal = [...known];
  const unused = size - leadingSpecials.length - normal.length - trailingSpecials.length;
  if (unused < 0) {
    throw new Error(`a vocabulary needs at least ${size - unused} entries, not ${size}`);
  }
  const tokens = [
    ...leadingSpecials,
    ...normal,
    ...Array.from({ length: unused }, (_, index) => `[unused${index}]`),
    ...trailingSpecials,
  ];
  const types = tokens.map((token) => {
    if (userDefined.has(token)) {
      return 4;
    }
    if (token.startsWith('[unused')) {
      return 5;
    }
    return leadingSpecials.includes(token) || trailingSpecials.includes(token) ? 3 : 1;
  });
  return { tokens, types, merges };
}

/** The `tokenizer.ggml.*` keys of a vocabulary. */
export function vocabularyMetadata({
  tokens,
  types,
  merges,
}: ByteVocabulary): [string, WrittenValue][] {
  return [
    ['tokenizer.ggml.model', text('gpt2')],
    ['tokenizer.ggml.pre', text('joyai-llm')],
    ['tokenizer.ggml.tokens', list('string', tokens)],
    ['tokenizer.ggml.token_type', list('i32', types)],
    ['tokenizer.ggml.merges', list('string', merges)],
    ['tokenizer.ggml.bos_token_id', { type: 'u32', value: 0 }],
    ['tokenizer.ggml.eos_token_id', { type: 'u32', value: 1 }],
    ['tokenizer.ggml.padding_token_id', { type: 'u32', value: 2 }],
  ];
}
