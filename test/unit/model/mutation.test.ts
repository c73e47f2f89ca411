import fc from 'fast-check';
import { expect, it } from 'vitest';
import { GgufError } from '../../../src/gguf/index.js';
import {
  describeModel,
  ModelError,
  summariseModel,
  vocabularyOf,
} from '../../../src/model/index.js';
import { damages, mutantOf, openInMemory, telling } from '../../support/gguf-mutants.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { GgufSpec } from '../../support/gguf-writer.js';
import { tinyModel as weightedModel } from '../../support/tiny-model.js';
import type { TinyOptions } from '../../support/tiny-model.js';

/** Nothing here looks at weights. */
function tinyModel(options: TinyOptions = {}): GgufSpec {
  return weightedModel({ ...options, weights: 'zero' });
}

const written = writeGguf(
  tinyModel({ dims: { layers: 2, ratios: [4, 16], hashLayers: 1 }, type: 'F32' }),
);

/** Everything that happens to a file before the engine gets it. */
function examine(header: Buffer, dataBytes: number): 'refused' | 'described' {
  try {
    const gguf = openInMemory(header, dataBytes);
    expect(summariseModel(gguf).gguf.version).toBe(3);
    const model = describeModel(gguf);
    vocabularyOf(gguf, model.shape.vocab);
    return 'described';
  } catch (error) {
    if (error instanceof GgufError || error instanceof ModelError) {
      expect(error.message.length).toBeLessThan(8000);
      return 'refused';
    }
    throw error;
  }
}

it('a damaged model is refused with a sentence or described', () => {
  const outcomes = { refused: 0, described: 0 };

  fc.assert(
    fc.property(damages, (list) => {
      const { header, cut } = mutantOf(written.header, list);
      outcomes[examine(header, cut ? 0 : written.dataBytes)] += 1;
    }),
    { numRuns: 3000 },
  );

  // Damage that never or always matters would be no test.
  expect(outcomes.refused).toBeGreaterThan(300);
  expect(outcomes.described).toBeGreaterThan(10);
});

it.each([...written.fields.keys()].filter((field) => field.startsWith('key.deepseek4.')))(
  'a model is refused with a sentence or described whatever %s says',
  (field) => {
    const original = Buffer.from(written.header);
    for (const value of telling) {
      examine(written.patch(field, value).header, written.dataBytes);
      original.copy(written.header);
    }
  },
);
