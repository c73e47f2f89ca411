import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import { describeModel, summariseModel } from '../../../src/model/index.js';
import { deepseekSpec, ds4Types, flashDims, proDims } from '../../support/gguf-deepseek.js';
import { scratchFolder } from '../../support/gguf-scratch.js';
import { removeKey } from '../../support/gguf-spec.js';

const scratch = scratchFolder();

const q2 = ds4Types(
  () => 'IQ2_XXS',
  () => 'Q2_K',
);
const q4 = ds4Types(
  () => 'Q4_K',
  () => 'Q4_K',
);
const mxfp4 = ds4Types(
  () => 'MXFP4',
  () => 'MXFP4',
);
const mixed = ds4Types(
  (layer) => (layer >= 37 ? 'Q4_K' : 'IQ2_XXS'),
  (layer) => (layer >= 37 ? 'Q4_K' : 'Q2_K'),
);

/** Tensor data of a file: every tensor padded to the alignment. */
function paddedBytes(tensors: readonly { readonly tensor: { readonly bytes: number } }[]): number {
  return tensors.reduce((sum, { tensor }) => sum + Math.ceil(tensor.bytes / 32) * 32, 0);
}

describe('a file of the size of a released model', () => {
  it.each([
    ['Flash IQ2_XXS/Q2_K', 'flash', flashDims, q2, 1328, 86_714_777_664],
    ['Flash Q4_K', 'flash', flashDims, q4, 1328, 164_628_168_768],
    ['Flash mixed', 'flash', flashDims, mixed, 1328, 97_586_413_632],
    ['Flash MXFP4', 'flash', flashDims, mxfp4, 1328, 155_971_125_312],
    // 838.03 and 432.71 GiB: the published files have 426 + 412 and about 430.
    ['PRO Q4_K', 'pro', proDims, q4, 1894, 899_827_146_560],
    ['PRO IQ2_XXS/Q2_K', 'pro', proDims, q2, 1894, 464_621_969_216],
  ] as const)(
    '%s is recognised, and its tensors have exactly the published bytes',
    (_, family, dims, types, count, bytes) => {
      const path = scratch.save('released.gguf', deepseekSpec(dims, types));

      const model = describeModel(openGguf(path));

      expect(model.family).toBe(family);
      expect(model.tensors).toHaveLength(count);
      expect(model.ignored).toEqual([]);
      expect(paddedBytes(model.tensors)).toBe(bytes);
      expect(model.bytes.routed + model.bytes.nonRouted).toBe(model.bytes.total);
    },
  );

  it('splits its bytes into experts and the rest as published: 72.56 GiB of experts', () => {
    const path = scratch.save('flash.gguf', deepseekSpec(flashDims, q2));

    const { bytes } = describeModel(openGguf(path));

    expect((bytes.routed / 2 ** 30).toFixed(2)).toBe('72.56');
  });

  it.each([
    ['Flash', flashDims, 284],
    ['PRO', proDims, 1573],
  ])('%s has the published number of parameters', (_, dims, billions) => {
    const path = scratch.save('parameters.gguf', deepseekSpec(dims, q2));

    expect(Math.round(summariseModel(openGguf(path)).parameters / 1e9)).toBe(billions);
  });

  it('says which layers a model cut by layers has not', () => {
    const spec = deepseekSpec(proDims, q4);
    spec.tensors = spec.tensors.filter(({ name }) => {
      const layer = Number(/^blk\.(\d+)\./.exec(name)?.[1] ?? -1);
      return layer <= 30 && !name.startsWith('output');
    });
    const gguf = openGguf(scratch.save('first-half.gguf', spec));

    const { problems } = summariseModel(gguf);

    expect(problems[0]).toContain('no tensors of layers 31 to 60, of 61 layers');
    expect(problems.slice(1)).toEqual([
      'required tensor is missing: output_hc_fn.weight [28672, 4]',
      'required tensor is missing: output_hc_base.weight [4]',
      'required tensor is missing: output_hc_scale.weight [1]',
      'required tensor is missing: output_norm.weight [7168]',
      'required tensor is missing: output.weight [7168, 129280]',
    ]);
  });

  it('takes the vocabulary from the output matrix when the key is absent', () => {
    const spec = deepseekSpec(flashDims, q2);
    removeKey(spec, 'deepseek4.vocab_size');

    expect(describeModel(openGguf(scratch.save('vocab.gguf', spec))).shape.vocab).toBe(129_280);
  });
});
