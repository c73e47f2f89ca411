import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import { describeModel, ModelError, tensorRoles } from '../../../src/model/index.js';
import type { ModelDescription } from '../../../src/model/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import {
  f32,
  list,
  removeKey,
  removeTensor,
  setKey,
  tensorOf,
  text,
  u32,
} from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { GgufSpec, WrittenValue } from '../../support/gguf-writer.js';
import { tinyDims, tinyModel as weightedModel } from '../../support/tiny-model.js';
import type { TinyOptions } from '../../support/tiny-model.js';

const scratch = scratchFolder();

/** Nothing here looks at weights. */
function tinyModel(options: TinyOptions = {}): GgufSpec {
  return weightedModel({ ...options, weights: 'zero' });
}

function describeSpec(spec: GgufSpec): ModelDescription {
  return describeModel(openGguf(scratch.save('model.gguf', spec)));
}

function problemsOf(spec: GgufSpec): readonly string[] {
  const gguf = openGguf(scratch.save('model.gguf', spec));
  try {
    describeModel(gguf);
  } catch (error) {
    if (error instanceof ModelError) {
      return error.problems;
    }
    throw error;
  }
  throw new Error('expected ModelError, but nothing was thrown');
}

const requiredKeys = [
  'block_count',
  'embedding_length',
  'attention.head_count',
  'attention.head_count_kv',
  'attention.key_length',
  'attention.value_length',
  'attention.layer_norm_rms_epsilon',
  'attention.q_lora_rank',
  'attention.output_lora_rank',
  'attention.output_group_count',
  'attention.sliding_window',
  'attention.compress_ratios',
  'attention.compress_rope_freq_base',
  'attention.indexer.head_count',
  'attention.indexer.key_length',
  'attention.indexer.top_k',
  'rope.dimension_count',
  'rope.freq_base',
  'expert_count',
  'expert_used_count',
  'expert_shared_count',
  'expert_feed_forward_length',
  'expert_weights_scale',
  'expert_weights_norm',
  'hash_layer_count',
  'swiglu_clamp_exp',
  'hyper_connection.count',
  'hyper_connection.sinkhorn_iterations',
  'hyper_connection.epsilon',
];

describe('a small model', () => {
  it('is described from its metadata', () => {
    const { shape, family, name, tensors, ignored, bytes } = describeSpec(tinyModel());

    expect(name).toBe('tiny');
    expect(family).toBe('other');
    expect(shape).toEqual({
      layerCount: 4,
      embedding: 64,
      vocab: 320,
      headCount: 4,
      headDim: 32,
      ropeDims: 16,
      qRank: 32,
      outputGroups: 2,
      outputRank: 32,
      window: 16,
      indexerHeads: 4,
      indexerDim: 32,
      indexerTopK: 8,
      expertCount: 4,
      expertUsed: 2,
      expertShared: 1,
      expertWidth: 64,
      hashLayers: 1,
      hcCount: 4,
      sinkhornIterations: 20,
      normaliseWeights: true,
      roundTrips: true,
      rmsEpsilon: Math.fround(1e-6),
      hcEpsilon: Math.fround(1e-6),
      ropeBase: 10_000,
      compressRopeBase: 160_000,
      yarnFactor: 16,
      yarnBetaFast: 32,
      yarnBetaSlow: 1,
      yarnOriginalContext: 65_536,
      expertScale: 1.5,
      trainedContext: 1_048_576,
      compressRatio: [0, 4, 16, 4],
      clampRouted: [10, 10, 10, 10],
      clampShared: [10, 10, 10, 10],
    });
    expect(ignored).toEqual([]);
    expect(bytes.total).toBe(tensors.reduce((sum, { tensor }) => sum + tensor.bytes, 0));
  });

  it('gives each tensor the role and layer of its name', () => {
    const { tensors } = describeSpec(tinyModel());
    const named = (name: string): unknown => {
      const found = tensors.find(({ tensor }) => tensor.name === name);
      return found && [found.role, found.layer];
    };

    expect(named('token_embd.weight')).toEqual(['tokenEmbedding', -1]);
    expect(named('output_hc_fn.weight')).toEqual(['outputHcFn', -1]);
    expect(named('blk.0.ffn_gate_tid2eid.weight')).toEqual(['routerHash', 0]);
    expect(named('blk.1.exp_probs_b.bias')).toEqual(['routerBias', 1]);
    expect(named('blk.2.attn_compressor_ape.weight')).toEqual(['compressorApe', 2]);
    expect(named('blk.3.indexer.attn_q_b.weight')).toEqual(['indexerQB', 3]);
    expect(named('blk.3.indexer_compressor_kv.weight')).toEqual(['indexerCompressorKv', 3]);
    expect(named('blk.3.ffn_down_exps.weight')).toEqual(['expertDown', 3]);
  });

  it('uses every role once per place it belongs to', () => {
    const { tensors } = describeSpec(tinyModel());

    const places = new Set(tensors.map(({ role, layer }) => `${role} ${layer}`));

    expect(places.size).toBe(tensors.length);
    expect(new Set(tensors.map(({ role }) => role))).toEqual(new Set(Object.keys(tensorRoles)));
  });

  it.each(['F32', 'F16', 'Q8_0'] as const)('may have all its matrices in %s', (type) => {
    expect(describeSpec(tinyModel({ type })).tensors.length).toBeGreaterThan(100);
  });

  it.each(['a-f16', 'a-q8_0', 'b-iq2'])('of independent origin is described: %s', (fixture) => {
    const model = describeModel(openGguf(`test/fixtures/${fixture}.gguf`));

    expect(model.ignored).toEqual([]);
    expect(model.shape.vocab).toBe(512);
  });

  const more = process.env['DS4_FIXTURES'];
  it.runIf(more !== undefined && existsSync(more))('of every other kind is described, too', () => {
    const files = readdirSync(more ?? '').filter((name) => name.endsWith('.gguf'));

    expect(files.length).toBeGreaterThan(0);
    for (const file of files) {
      expect(describeModel(openGguf(join(more ?? '', file))).ignored).toEqual([]);
    }
  });
});

describe('hyper-parameters', () => {
  it.each(requiredKeys)('must contain %s', (key) => {
    const spec = tinyModel();
    removeKey(spec, `deepseek4.${key}`);

    expect(problemsOf(spec)).toContain(`required metadata key is missing: deepseek4.${key}`);
  });

  it.each(requiredKeys)('may not have another kind of value in %s', (key) => {
    const spec = tinyModel();
    setKey(spec, `deepseek4.${key}`, text('many'));

    expect(problemsOf(spec)).toContainEqual(
      expect.stringMatching(`^metadata key deepseek4\\.${key} is string 'many', must be `),
    );
  });

  it('are all listed when several are missing', () => {
    const spec = tinyModel();
    for (const key of requiredKeys) {
      removeKey(spec, `deepseek4.${key}`);
    }

    expect(problemsOf(spec)).toEqual(
      expect.arrayContaining(
        requiredKeys.map((key) => `required metadata key is missing: deepseek4.${key}`),
      ),
    );
    expect(problemsOf(spec)).toHaveLength(requiredKeys.length);
  });

  it('fall back to the values of the released models where llama.cpp writes none', () => {
    const spec = tinyModel();
    for (const key of [
      'vocab_size',
      'context_length',
      'rope.scaling.type',
      'rope.scaling.factor',
      'rope.scaling.original_context_length',
      'rope.scaling.yarn_beta_fast',
      'rope.scaling.yarn_beta_slow',
      'expert_gating_func',
    ]) {
      removeKey(spec, `deepseek4.${key}`);
    }

    const { shape } = describeSpec(spec);

    expect(shape).toMatchObject({
      vocab: 320,
      trainedContext: 0,
      yarnFactor: 16,
      yarnOriginalContext: 65_536,
      yarnBetaFast: 32,
      yarnBetaSlow: 1,
    });
  });

  it('take any width of numbers', () => {
    const spec = tinyModel();
    setKey(spec, 'deepseek4.block_count', { type: 'u64', value: 4n });
    setKey(spec, 'deepseek4.embedding_length', { type: 'i32', value: 64 });
    setKey(spec, 'deepseek4.rope.freq_base', { type: 'u32', value: 10_000 });
    setKey(spec, 'deepseek4.expert_weights_scale', { type: 'f64', value: 1.5 });
    setKey(spec, 'deepseek4.attention.compress_ratios', list('i64', [0n, 4n, 16n, 4n]));
    setKey(spec, 'deepseek4.swiglu_clamp_exp', list('f64', [7, 8, 9, 10]));

    const { shape } = describeSpec(spec);

    expect(shape).toMatchObject({
      layerCount: 4,
      embedding: 64,
      ropeBase: 10_000,
      expertScale: 1.5,
    });
    expect(shape.compressRatio).toEqual([0, 4, 16, 4]);
    expect(shape.clampRouted).toEqual([7, 8, 9, 10]);
  });

  it('take one clamp for all layers, and another for shared experts', () => {
    const spec = tinyModel();
    setKey(spec, 'deepseek4.swiglu_clamp_exp', f32(7));
    setKey(spec, 'deepseek4.swiglu_clamp_shexp', list('f32', [1, 2, 3, Infinity]));

    const { shape } = describeSpec(spec);

    expect(shape.clampRouted).toEqual([7, 7, 7, 7]);
    expect(shape.clampShared).toEqual([1, 2, 3, Infinity]);
  });

  it('may turn the rounding of cached rows off', () => {
    const spec = tinyModel();
    setKey(spec, 'ds4.kv_round_trip', { type: 'bool', value: false });

    expect(describeSpec(spec).shape.roundTrips).toBe(false);
  });

  it.each<[string, WrittenValue, string]>([
    ['block_count', u32(0), 'u32 0, must be a whole number from 1 to 4096'],
    ['block_count', u32(2 ** 31), 'u32 2147483648, must be a whole number'],
    ['block_count', { type: 'u64', value: 2n ** 64n - 1n }, 'u64 18446744073709551615'],
    ['block_count', { type: 'i32', value: -1 }, 'i32 -1, must be'],
    ['attention.head_count', u32(0), 'u32 0, must be'],
    ['embedding_length', u32(2 ** 30), 'must be a whole number from 1 to 262144'],
    ['vocab_size', u32(2 ** 31), 'must be a whole number from 1 to 16777216'],
    ['attention.head_count_kv', u32(2), 'is 2, must be 1'],
    ['attention.value_length', u32(16), 'is 16, must be deepseek4.attention.key_length, 32'],
    ['attention.output_group_count', u32(3), 'is 3, must divide the 4 heads'],
    ['attention.layer_norm_rms_epsilon', f32(NaN), 'f32 NaN, must be a finite number above 0'],
    ['attention.layer_norm_rms_epsilon', { type: 'f64', value: 1e-60 }, 'finite number above 0'],
    ['hyper_connection.epsilon', f32(-1), 'f32 -1, must be a finite number above 0'],
    ['hyper_connection.count', u32(17), 'must be a whole number from 1 to 16'],
    ['hyper_connection.sinkhorn_iterations', u32(1_000_000), 'from 1 to 1000'],
    ['rope.freq_base', f32(Infinity), 'f32 Infinity, must be a finite number'],
    ['rope.scaling.factor', f32(0), 'f32 0, must be a finite number above 0'],
    ['rope.scaling.type', text('linear'), "string 'linear', must be 'yarn'"],
    ['rope.dimension_count', u32(15), 'is 15, must be even'],
    ['rope.dimension_count', u32(34), 'is 34, more than the 32 values of a head'],
    ['attention.indexer.key_length', u32(24), 'is 24, must be a power of two'],
    ['attention.indexer.key_length', u32(8), 'is 16, more than the 8 values of an indexer head'],
    ['expert_used_count', u32(5), 'is 5, more than the 4 experts'],
    ['expert_shared_count', u32(2), 'must be a whole number from 0 to 1'],
    ['expert_gating_func', u32(2), 'u32 2, must be 4'],
    ['expert_group_count', u32(8), 'u32 8, must be 0 or 1'],
    ['hash_layer_count', u32(5), 'is 5, more than the 4 layers'],
    [
      'attention.compress_ratios',
      list('u32', [0, 4]),
      'array of 2 u32, must be an array of at least 4',
    ],
    ['attention.compress_ratios', list('i32', [0, -4, 4, 4]), 'has -4 for layer 1, must be 0 to'],
    ['attention.compress_ratios', u32(4), 'u32 4, must be an array'],
    ['swiglu_clamp_exp', list('f32', [10, 10]), 'array of 2 f32, must be a number, or an array'],
    ['swiglu_clamp_exp', list('f32', [10, 10, 0, 10]), 'has 0 for layer 2, must be above 0'],
    ['swiglu_clamp_exp', f32(NaN), 'has NaN for layer 0, must be above 0'],
  ])('are checked: %s as %o', (key, value, expected) => {
    const spec = tinyModel();
    setKey(spec, `deepseek4.${key}`, value);

    expect(problemsOf(spec)).toContainEqual(expect.stringContaining(expected));
  });
});

describe('tensors', () => {
  it.each([
    'token_embd.weight',
    'output_hc_scale.weight',
    'blk.0.ffn_gate_tid2eid.weight',
    'blk.1.exp_probs_b.bias',
    'blk.2.attn_compressor_ape.weight',
    'blk.3.indexer.proj.weight',
    'blk.3.indexer_compressor_norm.weight',
  ])('must contain %s', (name) => {
    const spec = tinyModel();
    removeTensor(spec, name);

    expect(problemsOf(spec)).toEqual([
      expect.stringMatching(`^required tensor is missing: ${name} \\[[\\d, ]+\\]$`),
    ]);
  });

  it('are all named when several are missing, up to a screenful', () => {
    const spec = tinyModel();
    spec.tensors = spec.tensors.filter(({ name }) => !/attn_(norm|q_a|q_b|kv)|ffn_/.test(name));
    const gguf = openGguf(scratch.save('model.gguf', spec));

    const message = messageOf(() => describeModel(gguf), ModelError);

    expect(message.split('\n')).toHaveLength(22);
    expect(message).toMatch(/^required tensor is missing: blk\.0\.hc_ffn_fn\.weight/);
    expect(message).toMatch(/\n {2}and \d+ more\n {2}\(\d+ problems in '.*model\.gguf'\)$/);
  });

  it('must have the dimensions that the metadata gives', () => {
    const spec = tinyModel({ type: 'F32' });
    const tensor = tensorOf(spec, 'blk.1.attn_q_b.weight');
    tensor.dims = [32, 96];
    delete tensor.data;

    expect(problemsOf(spec)).toEqual([
      'tensor blk.1.attn_q_b.weight has the dimensions [32, 96], expected [32, 128]',
    ]);
  });

  it('must not be transposed', () => {
    const spec = tinyModel({ type: 'F32' });
    tensorOf(spec, 'blk.1.ffn_gate_inp.weight').dims.reverse();

    expect(problemsOf(spec)).toEqual([
      'tensor blk.1.ffn_gate_inp.weight has the dimensions [4, 64], expected [64, 4]',
    ]);
  });

  it('may have ones behind their dimensions', () => {
    const spec = tinyModel();
    tensorOf(spec, 'blk.1.attn_norm.weight').dims = [64, 1, 1];

    expect(describeSpec(spec).shape.layerCount).toBe(4);
  });

  it.each([
    ['token_embd.weight', 'Q4_0', 'supported: F32, F16, BF16, Q8_0'],
    ['blk.2.ffn_down_exps.weight', 'Q4_0', 'IQ2_XXS'],
    ['blk.1.attn_norm.weight', 'F16', 'supported: F32'],
    ['blk.0.ffn_gate_tid2eid.weight', 'F32', 'supported: I32'],
  ] as const)('of a type nobody computes with are refused: %s as %s', (name, type, supported) => {
    const spec = tinyModel();
    const tensor = tensorOf(spec, name);
    tensor.type = type;
    delete tensor.data;

    const [problem, ...others] = problemsOf(spec);

    expect(problem).toContain(`tensor ${name} has the type ${type}, which no backend of ds4`);
    expect(problem).toContain(supported);
    expect(others).toEqual([]);
  });

  it('may have one type in one layer and another in the next, but gate and up share theirs', () => {
    const spec = tinyModel();
    for (const part of ['gate', 'up', 'down']) {
      tensorOf(spec, `blk.2.ffn_${part}_exps.weight`).type = 'MXFP4';
      delete tensorOf(spec, `blk.2.ffn_${part}_exps.weight`).data;
    }
    expect(describeSpec(spec).tensors.length).toBeGreaterThan(100);

    tensorOf(spec, 'blk.2.ffn_up_exps.weight').type = 'F16';

    expect(problemsOf(spec)).toEqual([
      'tensor blk.2.ffn_up_exps.weight has the type F16, must have that of blk.2.ffn_gate_exps.weight, MXFP4',
    ]);
  });

  it('of a model without shared experts are fewer', () => {
    const spec = tinyModel();
    setKey(spec, 'deepseek4.expert_shared_count', u32(0));
    const shared = spec.tensors.filter(({ name }) => name.includes('_shexp')).length;

    const { tensors, ignored } = describeSpec(spec);

    expect(ignored).toHaveLength(shared);
    expect(tensors).toHaveLength(spec.tensors.length - shared);
  });

  it('that the graph does not know are set aside', () => {
    const spec = tinyModel();
    spec.tensors.push({ name: 'rope_freqs.weight', type: 'F32', dims: [16] });

    expect(describeSpec(spec).ignored.map(({ name }) => name)).toEqual(['rope_freqs.weight']);
  });
});

describe('a draft model', () => {
  /** llama.cpp counts the draft block as a layer and keeps it in the model's file. */
  function withDraftBlock(): GgufSpec {
    const spec = tinyModel();
    setKey(spec, 'deepseek4.block_count', u32(tinyDims.layers + 1));
    setKey(spec, 'deepseek4.nextn_predict_layers', u32(1));
    setKey(spec, 'deepseek4.swiglu_clamp_exp', list('f32', [10, 10, 10, 10, 10]));
    spec.tensors.push(
      { name: 'blk.4.nextn.eh_proj.weight', type: 'F32', dims: [128, 64] },
      { name: 'blk.4.nextn.enorm.weight', type: 'F32', dims: [64] },
      { name: 'blk.4.attn_norm.weight', type: 'F32', dims: [64] },
    );
    return spec;
  }

  it('inside the file is set aside, with all tensors of its block', () => {
    const { shape, ignored } = describeSpec(withDraftBlock());

    expect(shape.layerCount).toBe(4);
    expect(shape.compressRatio).toHaveLength(4);
    expect(ignored.map(({ name }) => name)).toEqual([
      'blk.4.nextn.eh_proj.weight',
      'blk.4.nextn.enorm.weight',
      'blk.4.attn_norm.weight',
    ]);
  });

  it('that a converter announced but dropped takes no layer away', () => {
    const spec = tinyModel();
    setKey(spec, 'deepseek4.nextn_predict_layers', u32(1));

    expect(describeSpec(spec).shape.layerCount).toBe(4);
  });

  it('under the names of stages is set aside', () => {
    const spec = tinyModel();
    spec.tensors.push({ name: 'mtp.0.e_proj.weight', type: 'F32', dims: [64, 64] });

    expect(describeSpec(spec).ignored).toHaveLength(1);
  });

  it.each(['deepseek4-dspark', 'dflash'])(
    'alone, of architecture %s, is refused',
    (architecture) => {
      const spec = tinyModel();
      setKey(spec, 'general.architecture', text(architecture));

      expect(problemsOf(spec)).toEqual([
        expect.stringContaining(`'${architecture}' is that of a draft model`),
      ]);
    },
  );

  it('alone, under the architecture of the model, is refused', () => {
    const spec: GgufSpec = {
      metadata: [['general.architecture', text('deepseek4')]],
      tensors: [{ name: 'mtp.0.e_proj.weight', type: 'F32', dims: [64, 64] }],
    };

    expect(problemsOf(spec)).toEqual([expect.stringContaining('holds only a draft model')]);
  });
});

describe('another model', () => {
  it('is refused with its architecture, ours, and the key it lacks', () => {
    const message = messageOf(
      () =>
        describeSpec({
          metadata: [
            ['general.architecture', text('llama')],
            ['llama.block_count', u32(32)],
          ],
          tensors: [{ name: 'token_embd.weight', type: 'F32', dims: [8] }],
        }),
      ModelError,
    );

    expect(message).toMatch(/^required metadata key is missing: deepseek4\.block_count; /);
    expect(message).toContain("the architecture is 'llama', ds4 runs deepseek4");
    expect(message).toContain('model.gguf');
  });

  it('is refused without an architecture', () => {
    expect(problemsOf({ metadata: [], tensors: [{ name: 't', type: 'F32', dims: [8] }] })).toEqual([
      expect.stringContaining('key is missing: general.architecture'),
    ]);
  });

  it('is refused when its architecture is a number', () => {
    const spec = tinyModel();
    setKey(spec, 'general.architecture', u32(4));

    expect(problemsOf(spec)).toEqual([
      'metadata key general.architecture is u32 4, must be a string',
    ]);
  });

  it('cannot steer the terminal by its architecture', () => {
    const spec = tinyModel();
    setKey(spec, 'general.architecture', text('\u001b[2J'));

    expect(problemsOf(spec)[0]).toContain("'\\u{1b}[2J'");
  });
});

it('the same options make the same tiny model, byte for byte', () => {
  const bytes = writeGguf(weightedModel()).bytes();

  const same = writeGguf(weightedModel()).bytes();
  const other = writeGguf(weightedModel({ seed: 2 })).bytes();

  expect(same.equals(bytes)).toBe(true);
  expect(other.equals(bytes)).toBe(false);
});
