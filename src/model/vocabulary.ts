import type { GgufFile } from '../gguf/index.js';
import { ModelError } from './errors.js';

/** What the tokenizer is built from, as it stands in the file. */
export interface Vocabulary {
  /** Id to piece, in the byte alphabet of GPT-2; special tokens literally. */
  readonly tokens: readonly string[];
  /** Per token: 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte. */
  readonly tokenTypes: ArrayLike<number>;
  /** `left right`, the most important first. */
  readonly merges: readonly string[];
}

const tokensKey = 'tokenizer.ggml.tokens';
const typesKey = 'tokenizer.ggml.token_type';
const mergesKey = 'tokenizer.ggml.merges';
const modelKey = 'tokenizer.ggml.model';
const splitKey = 'tokenizer.ggml.pre';
const byteLevel = 'gpt2';
/** Names that converters give to the one way DeepSeek splits text before merging. */
const knownSplits: readonly string[] = ['joyai-llm', 'deepseek-v3'];

/**
 * Takes the vocabulary out of the metadata. This is where its strings are decoded.
 *
 * @param vocab tokens of the model, so rows of its output matrix.
 * @throws ModelError with everything that is missing or wrong.
 */
export function vocabularyOf(gguf: GgufFile, vocab: number): Vocabulary {
  const { metadata } = gguf;
  const problems: string[] = [];
  const expect = (key: string, good: boolean, expected: string): void => {
    if (good) {
      return;
    }
    const found = metadata.describe(key);
    problems.push(
      found === undefined
        ? `required metadata key is missing: ${key}`
        : `metadata key ${key} is ${found}, must be ${expected}`,
    );
  };
  const model = metadata.string(modelKey);
  expect(modelKey, model === byteLevel, `'${byteLevel}': ds4 has no other tokenizer`);
  if (metadata.has(splitKey)) {
    const split = metadata.string(splitKey) ?? '';
    expect(
      splitKey,
      knownSplits.includes(split),
      `'${knownSplits.join("' or '")}': ds4 splits text in no other way`,
    );
  }
  // Decoded only when there are as many as there should be: a hostile file may hold millions.
  const tokens = metadata.count(tokensKey) === vocab ? metadata.strings(tokensKey) : undefined;
  const tokenTypes = metadata.integers(typesKey);
  const merges = metadata.strings(mergesKey);
  expect(
    tokensKey,
    tokens !== undefined,
    `an array of ${vocab} strings, one per row of the output matrix`,
  );
  expect(
    typesKey,
    tokenTypes?.length === vocab,
    `an array of ${vocab} whole numbers, one per token`,
  );
  expect(mergesKey, merges !== undefined, 'an array of strings');
  if (
    problems.length > 0 ||
    tokens === undefined ||
    tokenTypes === undefined ||
    merges === undefined
  ) {
    throw new ModelError(gguf.files[0]?.path ?? '', problems);
  }
  return { tokens, tokenTypes, merges };
}
