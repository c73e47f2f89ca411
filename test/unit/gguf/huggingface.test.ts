import { gguf as huggingFaceGguf } from '@huggingface/gguf';
import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import type { Metadata } from '../../../src/gguf/index.js';

/** What @huggingface/gguf, an independent reader, makes of the same file. */
async function independent(path: string): Promise<{
  metadata: Record<string, unknown>;
  tensors: { name: string; shape: number[]; dtype: number; offset: number }[];
  dataOffset: number;
}> {
  const { metadata, tensorInfos, tensorDataOffset } = await huggingFaceGguf(path, {
    allowLocalFile: true,
  });
  return {
    metadata: metadata as Record<string, unknown>,
    tensors: tensorInfos.map(({ name, shape, dtype, offset }) => ({
      name,
      shape: shape.map(Number),
      dtype,
      offset: Number(offset),
    })),
    dataOffset: Number(tensorDataOffset),
  };
}

/** The value through whichever getter fits what the other reader found. */
function ours(metadata: Metadata, key: string, theirs: unknown): unknown {
  if (Array.isArray(theirs)) {
    return typeof theirs[0] === 'string'
      ? metadata.strings(key)
      : Array.from(metadata.floats(key) ?? []);
  }
  switch (typeof theirs) {
    case 'string':
      return metadata.string(key);
    case 'boolean':
      return metadata.boolean(key);
    default:
      return metadata.float(key);
  }
}

describe.each(['a-f16', 'a-q8_0', 'b-iq2'])('%s', (fixture) => {
  const path = `test/fixtures/${fixture}.gguf`;

  it('has the metadata that an independent reader finds', async () => {
    const theirs = await independent(path);

    const { metadata } = openGguf(path);

    // The reader adds the counts of the header as keys of its own.
    const keys = Object.keys(theirs.metadata).filter(
      (key) => !['version', 'tensor_count', 'kv_count'].includes(key),
    );
    expect(metadata.keys().sort()).toEqual(keys.sort());
    for (const key of keys) {
      expect([key, ours(metadata, key, theirs.metadata[key])]).toEqual([key, theirs.metadata[key]]);
    }
  });

  it('has the tensors that an independent reader finds', async () => {
    const theirs = await independent(path);

    const { tensors } = openGguf(path);

    expect(
      tensors.map(({ name, dims, type, offset }) => ({
        name,
        shape: dims,
        dtype: type,
        offset: offset - theirs.dataOffset,
      })),
    ).toEqual(theirs.tensors);
  });
});
