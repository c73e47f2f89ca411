export { StreamDecoder, textOf } from './stream-decoder.js';
export { Tokenizer } from './tokenizer.js';
export type { Text } from './tokenizer.js';
export { TokenizerError } from './tokenizer-error.js';
export type { VocabularyData } from './vocabulary.js';
