import type { GgufSpec, ScalarType, WrittenTensor, WrittenValue, Scalar } from './gguf-writer.js';

export function u32(value: number): WrittenValue {
  return { type: 'u32', value };
}

export function f32(value: number): WrittenValue {
  return { type: 'f32', value };
}

export function text(value: string): WrittenValue {
  return { type: 'string', value };
}

export function list(element: ScalarType, values: ArrayLike<Scalar>): WrittenValue {
  return { type: 'array', element, values };
}

/** The value of a key; fails when the file has none. */
export function valueOf(spec: GgufSpec, key: string): WrittenValue {
  const entry = spec.metadata.find(([name]) => name === key);
  if (entry === undefined) {
    throw new Error(`the file has no key ${key}`);
  }
  return entry[1];
}

/** Sets or adds a key. */
export function setKey(spec: GgufSpec, key: string, value: WrittenValue): void {
  const entry = spec.metadata.find(([name]) => name === key);
  if (entry === undefined) {
    spec.metadata.push([key, value]);
  } else {
    entry[1] = value;
  }
}

export function removeKey(spec: GgufSpec, key: string): void {
  valueOf(spec, key);
  spec.metadata = spec.metadata.filter(([name]) => name !== key);
}

/** The tensor of that name, to be changed in place; fails when the file has none. */
export function tensorOf(spec: GgufSpec, name: string): WrittenTensor {
  const tensor = spec.tensors.find((candidate) => candidate.name === name);
  if (tensor === undefined) {
    throw new Error(`the file has no tensor ${name}`);
  }
  return tensor;
}

export function removeTensor(spec: GgufSpec, name: string): void {
  tensorOf(spec, name);
  spec.tensors = spec.tensors.filter((tensor) => tensor.name !== name);
}
