import type { GgufFile } from '../gguf/index.js';
import { vocabularyOf } from '../model/index.js';
import { Tokenizer } from '../tokenizer/index.js';

/** The tokenizer of a model file. `vocab` is the number of rows of its output matrix. */
export function openTokenizer(gguf: GgufFile, vocab: number): Tokenizer {
  return new Tokenizer(vocabularyOf(gguf, vocab));
}
