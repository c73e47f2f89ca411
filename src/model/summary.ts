import { ggmlTypeName, printable } from '../gguf/index.js';
import type { GgufFile } from '../gguf/index.js';
import { describeModel } from './describe.js';
import type { ModelDescription } from './describe.js';
import { ModelError } from './errors.js';
import { architecture } from './read-shape.js';

/** Tensors of one element type. */
export interface TypeSummary {
  readonly type: string;
  readonly count: number;
  readonly bytes: number;
}

/**
 * What `--inspect` shows: plain data, safe to print, `undefined` where the file does not tell. Works for every file
 * that can be opened, also for one that cannot run.
 */
export interface ModelSummary {
  readonly name: string | undefined;
  readonly architecture: string | undefined;
  readonly family: ModelDescription['family'];
  readonly files: readonly { readonly path: string; readonly bytes: number }[];
  readonly gguf: { readonly version: number; readonly keys: number; readonly tensors: number };
  readonly layers: number | undefined;
  readonly trainedContext: number | undefined;
  readonly attention: {
    readonly heads: number | undefined;
    readonly kvHeads: number | undefined;
    readonly headDim: number | undefined;
    readonly slidingWindow: number | undefined;
  };
  readonly indexer: {
    readonly heads: number | undefined;
    readonly headDim: number | undefined;
    readonly topK: number | undefined;
  };
  readonly experts: {
    readonly count: number | undefined;
    readonly used: number | undefined;
    readonly shared: number | undefined;
    readonly groups: number | undefined;
    readonly groupsUsed: number | undefined;
  };
  readonly fileBytes: number;
  /** Of all tensors, used or not, without padding. */
  readonly tensorBytes: number;
  /** Values of all tensors but tables of token or expert ids. */
  readonly parameters: number;
  /** Most bytes first. */
  readonly types: readonly TypeSummary[];
  /** Tensors that the graph does not use, such as those of a draft model. */
  readonly ignoredTensors: number;
  /** Why the file cannot run; empty for one that can. */
  readonly problems: readonly string[];
}

/** Reads what can be read. Never throws for a file that `openGguf` accepted. */
export function summariseModel(source: GgufFile | ModelDescription): ModelSummary {
  const gguf = 'gguf' in source ? source.gguf : source;
  const { description, problems } =
    'gguf' in source ? { description: source, problems: [] } : attempt(source);
  const { metadata, tensors } = gguf;
  const text = (key: string): string | undefined => {
    const value = metadata.string(key);
    return value === undefined ? undefined : printable(value);
  };
  const found = metadata.string('general.architecture') ?? architecture;
  const number = (key: string): number | undefined => metadata.integer(`${found}.${key}`);
  return {
    name: text('general.name'),
    architecture: text('general.architecture'),
    family: description?.family ?? 'other',
    files: gguf.files,
    gguf: { version: gguf.version, keys: metadata.keys().length, tensors: tensors.length },
    layers: description?.shape.layerCount ?? number('block_count'),
    trainedContext: number('context_length'),
    attention: {
      heads: number('attention.head_count'),
      kvHeads: number('attention.head_count_kv'),
      headDim: number('attention.key_length'),
      slidingWindow: number('attention.sliding_window'),
    },
    indexer: {
      heads: number('attention.indexer.head_count'),
      headDim: number('attention.indexer.key_length'),
      topK: number('attention.indexer.top_k'),
    },
    experts: {
      count: number('expert_count'),
      used: number('expert_used_count'),
      shared: number('expert_shared_count'),
      groups: number('expert_group_count'),
      groupsUsed: number('expert_group_used_count'),
    },
    fileBytes: gguf.files.reduce((bytes, file) => bytes + file.bytes, 0),
    tensorBytes: tensors.reduce((bytes, tensor) => bytes + tensor.bytes, 0),
    parameters: parametersOf(gguf),
    types: typesOf(gguf),
    ignoredTensors: description?.ignored.length ?? 0,
    problems,
  };
}

function attempt(gguf: GgufFile): {
  description: ModelDescription | undefined;
  problems: readonly string[];
} {
  try {
    return { description: describeModel(gguf), problems: [] };
  } catch (error) {
    if (error instanceof ModelError) {
      return { description: undefined, problems: error.problems };
    }
    throw error;
  }
}

/** Integers are ids, not weights. */
const integerType = /^I(8|16|32|64)$/;

function parametersOf({ tensors }: GgufFile): number {
  return tensors
    .filter(({ type }) => !integerType.test(ggmlTypeName(type)))
    .reduce((sum, { dims }) => sum + dims.reduce((product, dim) => product * dim, 1), 0);
}

function typesOf({ tensors }: GgufFile): TypeSummary[] {
  const types = new Map<string, { count: number; bytes: number }>();
  for (const { type, bytes } of tensors) {
    const name = ggmlTypeName(type);
    const entry = types.get(name) ?? { count: 0, bytes: 0 };
    types.set(name, { count: entry.count + 1, bytes: entry.bytes + bytes });
  }
  return [...types]
    .map(([type, { count, bytes }]) => ({ type, count, bytes }))
    .sort((a, b) => b.bytes - a.bytes);
}
