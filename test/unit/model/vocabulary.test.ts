import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import { ModelError, vocabularyOf } from '../../../src/model/index.js';
import type { Vocabulary } from '../../../src/model/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { list, removeKey, setKey, text } from '../../support/gguf-spec.js';
import { byteVocabulary, vocabularyMetadata } from '../../support/gguf-vocabulary.js';
import type { GgufSpec, WrittenValue } from '../../support/gguf-writer.js';
import { tinyModel as weightedModel } from '../../support/tiny-model.js';
import type { TinyOptions } from '../../support/tiny-model.js';

const scratch = scratchFolder();

/** Nothing here looks at weights. */
function tinyModel(options: TinyOptions = {}): GgufSpec {
  return weightedModel({ ...options, weights: 'zero' });
}

function read(spec: GgufSpec, vocab = 320): Vocabulary {
  return vocabularyOf(openGguf(scratch.save('model.gguf', spec)), vocab);
}

function refusal(spec: GgufSpec, vocab?: number): string {
  return messageOf(() => read(spec, vocab), ModelError);
}

describe('the vocabulary', () => {
  it('is read as it stands in the file', () => {
    const expected = byteVocabulary(320);

    const { tokens, tokenTypes, merges } = read(tinyModel());

    expect(tokens).toEqual(expected.tokens);
    expect(Array.from(tokenTypes)).toEqual(expected.types);
    expect(merges).toEqual(expected.merges);
  });

  it('of the size of the released models is read whole', () => {
    const tokens = Array.from({ length: 129_280 }, (_, id) => `Ġ${id.toString(36)}你`);
    const merges = Array.from({ length: 127_741 }, (_, rank) => `Ġ ${rank.toString(36)}`);
    const types = tokens.map(() => 1);

    const vocabulary = read(
      { metadata: vocabularyMetadata({ tokens, types, merges }), tensors: tinyModel().tensors },
      129_280,
    );

    expect(vocabulary.tokens).toEqual(tokens);
    expect(vocabulary.merges).toEqual(merges);
  });

  it.each(['model', 'tokens', 'token_type', 'merges'])('must contain tokenizer.ggml.%s', (key) => {
    const spec = tinyModel();
    removeKey(spec, `tokenizer.ggml.${key}`);

    expect(refusal(spec)).toContain(`required metadata key is missing: tokenizer.ggml.${key}`);
  });

  it('may leave out how text is split, which the architecture decides', () => {
    const spec = tinyModel();
    removeKey(spec, 'tokenizer.ggml.pre');

    expect(read(spec).tokens).toHaveLength(320);
  });

  it('lists everything that is wrong', () => {
    const spec = tinyModel();
    removeKey(spec, 'tokenizer.ggml.tokens');
    removeKey(spec, 'tokenizer.ggml.merges');

    const message = refusal(spec);

    expect(message).toContain('tokenizer.ggml.tokens');
    expect(message).toContain('tokenizer.ggml.merges');
  });

  it.each<[string, WrittenValue, string]>([
    ['model', text('llama'), "string 'llama', must be 'gpt2'"],
    ['pre', text('llama-bpe'), "string 'llama-bpe', must be 'joyai-llm'"],
    ['tokens', list('i32', [1]), 'array of 1 i32, must be an array of 320 strings'],
    ['tokens', list('string', ['a']), 'array of 1 string, must be an array of 320 strings'],
    ['token_type', list('i32', [1]), 'array of 1 i32, must be an array of 320 whole numbers'],
    ['token_type', list('f32', new Float32Array(320)), 'array of 320 f32, must be'],
    ['merges', text('a b'), "string 'a b', must be an array of strings"],
  ])('is checked: %s', (key, value, expected) => {
    const spec = tinyModel();
    setKey(spec, `tokenizer.ggml.${key}`, value);

    expect(refusal(spec)).toContain(`metadata key tokenizer.ggml.${key} is ${expected}`);
  });

  it('must have a token for every row of the output matrix', () => {
    expect(refusal(tinyModel(), 512)).toContain('must be an array of 512 strings');
  });
});
