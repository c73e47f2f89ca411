import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import { describeModel, summariseModel } from '../../../src/model/index.js';
import { scratchFolder } from '../../support/gguf-scratch.js';
import { removeTensor, setKey, text, u32 } from '../../support/gguf-spec.js';
import type { GgufSpec } from '../../support/gguf-writer.js';
import { tinyModel as weightedModel } from '../../support/tiny-model.js';
import type { TinyOptions } from '../../support/tiny-model.js';

const scratch = scratchFolder();

/** Nothing here looks at weights. */
function tinyModel(options: TinyOptions = {}): GgufSpec {
  return weightedModel({ ...options, weights: 'zero' });
}

describe('the summary', () => {
  it('of a model tells what it is made of', () => {
    const path = scratch.save('model.gguf', tinyModel());
    const gguf = openGguf(path);

    const summary = summariseModel(gguf);

    expect(summary).toMatchObject({
      name: 'tiny',
      architecture: 'deepseek4',
      family: 'other',
      gguf: { version: 3, keys: gguf.metadata.keys().length, tensors: gguf.tensors.length },
      layers: 4,
      trainedContext: 1_048_576,
      attention: { heads: 4, kvHeads: 1, headDim: 32, slidingWindow: 16 },
      indexer: { heads: 4, headDim: 32, topK: 8 },
      experts: { count: 4, used: 2, shared: 1, groups: undefined, groupsUsed: undefined },
      fileBytes: gguf.files[0]?.bytes,
      ignoredTensors: 0,
      problems: [],
    });
  });

  it('counts tensors and bytes of each type, the largest first', () => {
    const gguf = openGguf(scratch.save('model.gguf', tinyModel()));

    const { types, tensorBytes } = summariseModel(gguf);

    expect(types.map(({ type }) => type)).toEqual(['Q8_0', 'F32', 'I32']);
    expect(types.reduce((sum, { count }) => sum + count, 0)).toBe(gguf.tensors.length);
    expect(types.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(tensorBytes);
    expect(types[2]).toEqual({ type: 'I32', count: 1, bytes: 2 * 320 * 4 });
  });

  it('is the same from a description', () => {
    const gguf = openGguf(scratch.save('model.gguf', tinyModel()));

    expect(summariseModel(describeModel(gguf))).toEqual(summariseModel(gguf));
  });

  it('of a model that cannot run tells what can be read, and why it cannot run', () => {
    const spec = tinyModel();
    removeTensor(spec, 'output.weight');
    setKey(spec, 'deepseek4.expert_used_count', text('two'));

    const summary = summariseModel(openGguf(scratch.save('model.gguf', spec)));

    expect(summary.layers).toBe(4);
    expect(summary.experts).toMatchObject({ count: 4, used: undefined });
    expect(summary.problems).toEqual([expect.stringContaining('expert_used_count')]);
    expect(summary.types.length).toBe(3);
  });

  it('of another model reads the keys under its own name', () => {
    const path = scratch.save('llama.gguf', {
      metadata: [
        ['general.architecture', text('llama')],
        ['llama.block_count', u32(32)],
        ['llama.attention.head_count', u32(40)],
      ],
      tensors: [{ name: 'x', type: 'Q3_K', dims: [256] }],
    });

    const summary = summariseModel(openGguf(path));

    expect(summary).toMatchObject({
      architecture: 'llama',
      layers: 32,
      attention: { heads: 40 },
      parameters: 256,
      types: [{ type: 'Q3_K', count: 1, bytes: 110 }],
    });
    expect(summary.problems).toHaveLength(1);
  });

  it('cannot steer the terminal by a name', () => {
    const spec = tinyModel();
    setKey(spec, 'general.name', text('a\u001b]0;title\u0007\u202e'));

    expect(summariseModel(openGguf(scratch.save('model.gguf', spec))).name).toBe(
      'a\\u{1b}]0;title\\u{7}\\u{202e}',
    );
  });
});
