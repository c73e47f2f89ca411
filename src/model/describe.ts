import { ggmlTypeName } from '../gguf/index.js';
import type { GgufFile, GgufTensor } from '../gguf/index.js';
import { architectureProblem } from './architecture.js';
import { tensorCatalogue } from './catalogue.js';
import type { TensorSpec } from './catalogue.js';
import { ModelError } from './errors.js';
import { familyOf } from './family.js';
import type { ModelFamily } from './family.js';
import { readShape } from './read-shape.js';
import type { TensorRole } from './roles.js';
import type { ModelShape } from './shape.js';
import { acceptedTypes } from './tensor-types.js';

/** A tensor and its place in the graph. */
export interface ModelTensor {
  readonly role: TensorRole;
  /** -1 outside the layers. */
  readonly layer: number;
  readonly tensor: GgufTensor;
}

/** A model that is complete: every hyper-parameter is believable, every tensor is there in the right shape and type. */
export interface ModelDescription {
  /** `general.name`, as the file has it: not safe to print. */
  readonly name: string | undefined;
  readonly family: ModelFamily;
  readonly shape: ModelShape;
  /** In the order of the graph. */
  readonly tensors: readonly ModelTensor[];
  /** Draft model blocks and whatever else the graph does not use. */
  readonly ignored: readonly GgufTensor[];
  readonly gguf: GgufFile;
  readonly bytes: {
    /** Of `tensors`, without padding. */
    readonly total: number;
    /** Of the routed experts. */
    readonly routed: number;
    readonly nonRouted: number;
  };
}

/**
 * Recognises a DeepSeek-V4 model of any size, in ds4's own files and in llama.cpp's, and checks it completely.
 *
 * @throws ModelError with everything that is missing or wrong.
 */
export function describeModel(gguf: GgufFile): ModelDescription {
  const path = gguf.files[0]?.path ?? '';
  const foreign = architectureProblem(gguf);
  if (foreign !== undefined) {
    throw new ModelError(path, [foreign]);
  }
  const { shape, problems } = readShape(gguf);
  if (problems.length > 0) {
    throw new ModelError(path, problems);
  }
  const { tensors, ignored } = assignTensors(gguf, shape, path);
  const routed = sum(tensors.filter(({ role }) => isRouted(role)));
  const total = sum(tensors);
  return {
    name: gguf.metadata.string('general.name'),
    family: familyOf(shape),
    shape,
    tensors,
    ignored,
    gguf,
    bytes: { total, routed, nonRouted: total - routed },
  };
}

function isRouted(role: TensorRole): boolean {
  return role === 'expertGate' || role === 'expertUp' || role === 'expertDown';
}

function sum(tensors: readonly ModelTensor[]): number {
  return tensors.reduce((bytes, { tensor }) => bytes + tensor.bytes, 0);
}

function assignTensors(
  gguf: GgufFile,
  shape: ModelShape,
  path: string,
): { tensors: readonly ModelTensor[]; ignored: readonly GgufTensor[] } {
  const byName = new Map(gguf.tensors.map((tensor) => [tensor.name, tensor]));
  const tensors: ModelTensor[] = [];
  const missing: TensorSpec[] = [];
  const wrong: string[] = [];
  for (const spec of tensorCatalogue(shape)) {
    const tensor = byName.get(spec.name);
    if (tensor === undefined) {
      missing.push(spec);
      continue;
    }
    byName.delete(spec.name);
    wrong.push(...tensorProblems(spec, tensor));
    tensors.push({ role: spec.role, layer: spec.layer, tensor });
  }
  const problems = [...missingProblems(missing, shape), ...wrong, ...pairProblems(tensors)];
  if (problems.length > 0) {
    throw new ModelError(path, problems);
  }
  return { tensors, ignored: [...byName.values()] };
}

function dimsText(dims: readonly number[]): string {
  return `[${dims.join(', ')}]`;
}

/** Trailing ones carry no meaning, and writers differ in whether they keep them. */
function sameDims(found: readonly number[], expected: readonly number[]): boolean {
  const length = Math.max(found.length, expected.length);
  return Array.from({ length }, (_, dim) => dim).every(
    (dim) => (found[dim] ?? 1) === (expected[dim] ?? 1),
  );
}

function tensorProblems(spec: TensorSpec, tensor: GgufTensor): string[] {
  const problems: string[] = [];
  if (!sameDims(tensor.dims, spec.dims)) {
    problems.push(
      `tensor ${spec.name} has the dimensions ${dimsText(tensor.dims)}, expected ${dimsText(spec.dims)}`,
    );
  }
  const accepted = acceptedTypes[spec.class];
  if (!accepted.includes(tensor.type)) {
    problems.push(
      `tensor ${spec.name} has the type ${ggmlTypeName(tensor.type)}, ` +
        `which no backend of ds4 computes with there; supported: ${accepted.map(ggmlTypeName).join(', ')}`,
    );
  }
  return problems;
}

/** Gate and up are multiplied with the same rounded input, so one layer's must share a type. */
function pairProblems(tensors: readonly ModelTensor[]): string[] {
  const gates = new Map(
    tensors.filter(({ role }) => role === 'expertGate').map((entry) => [entry.layer, entry.tensor]),
  );
  return tensors.flatMap(({ role, layer, tensor }) => {
    const gate = role === 'expertUp' ? gates.get(layer) : undefined;
    return gate !== undefined && gate.type !== tensor.type
      ? [
          `tensor ${tensor.name} has the type ${ggmlTypeName(tensor.type)}, ` +
            `must have that of ${gate.name}, ${ggmlTypeName(gate.type)}`,
        ]
      : [];
  });
}

/** A model cut by layers lacks hundreds of tensors: then the cut is the news, not their names. */
function missingProblems(missing: readonly TensorSpec[], shape: ModelShape): string[] {
  if (missing.length === 0) {
    return [];
  }
  const perLayer = new Map<number, number>();
  for (const { layer } of missing) {
    perLayer.set(layer, (perLayer.get(layer) ?? 0) + 1);
  }
  const specCounts = new Map<number, number>();
  for (const { layer } of tensorCatalogue(shape)) {
    specCounts.set(layer, (specCounts.get(layer) ?? 0) + 1);
  }
  const empty = [...perLayer.keys()].filter(
    (layer) => layer >= 0 && perLayer.get(layer) === specCounts.get(layer),
  );
  const problems: string[] = [];
  if (empty.length > 0) {
    problems.push(
      `the file has no tensors of ${layerList(empty)}, of ${shape.layerCount} layers: ` +
        'it is a part of a model cut by layers, or incomplete',
    );
  }
  const whole = new Set(empty);
  for (const { name, layer, dims } of missing) {
    if (!whole.has(layer)) {
      problems.push(`required tensor is missing: ${name} ${dimsText(dims)}`);
    }
  }
  return problems;
}

/** `layer 3`, `layers 0 to 30`, `layers 1, 5, 6`. Ascending. */
function layerList(layers: readonly number[]): string {
  const [first = 0] = layers;
  const last = layers.at(-1) ?? first;
  if (layers.length === 1) {
    return `layer ${first}`;
  }
  return layers.length === last - first + 1
    ? `layers ${first} to ${last}`
    : `layers ${layers.slice(0, 10).join(', ')}${layers.length > 10 ? ' and more' : ''}`;
}
