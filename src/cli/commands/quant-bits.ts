import type { ModelDescription } from '../../model/index.js';

/** Bits per weight of the routed experts, which are nearly all of a model, rounded; the name people give a file by. */
export function quantBits({ tensors }: ModelDescription): number {
  let bits = 0;
  let values = 0;
  for (const { role, tensor } of tensors) {
    if (role === 'expertGate' || role === 'expertUp' || role === 'expertDown') {
      bits += 8 * tensor.bytes;
      values += tensor.dims.reduce((product, dim) => product * dim, 1);
    }
  }
  return values === 0 ? 0 : Math.round(bits / values);
}
