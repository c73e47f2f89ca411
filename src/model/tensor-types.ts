import type { TensorClass } from './catalogue.js';

/** Numbers of the element types, as the file format has them. */
const f32 = 0;
const f16 = 1;
const q8_0 = 8;
const q2_K = 10;
const q4_K = 12;
const q5_K = 13;
const q6_K = 14;
const iq2_XXS = 16;
const i32 = 26;
const bf16 = 30;
const mxfp4 = 39;

/** Everything native/quant decodes. */
const matrixTypes = [f32, f16, bf16, q8_0, q2_K, q4_K, q5_K, q6_K, iq2_XXS, mxfp4] as const;

/** Element types the engine takes for each class of tensor; all backends take the same. */
export const acceptedTypes: Readonly<Record<TensorClass, readonly number[]>> = {
  vector: [f32],
  table: [i32],
  matrix: matrixTypes,
  experts: matrixTypes,
};
