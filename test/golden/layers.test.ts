// What every layer computes on the float32 path: streams, block outputs, expert choices, compressed rows and indexer
// selections against the reference values.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Engine, TapKind, TapRecord } from '../../src/engine/index.js';
import { evaluate, openEngine } from './evaluate.js';
import { GoldenSet, report, rowErrors } from './golden-set.js';

const tags = ['a-f32', 'a-f16', 'a-q8_0', 'b-iq2', 'b-q4k', 'b-mxfp4'].filter(
  (tag) => GoldenSet.find(tag) !== undefined,
);
const allTaps: TapKind[] = [
  'hidden',
  'attentionOut',
  'ffnOut',
  'experts',
  'compressedRow',
  'indexerScores',
  'indexerRows',
];

describe.each(tags)('%s, layer by layer', (tag) => {
  const golden = GoldenSet.find(tag)!;
  const { layers, sequences } = golden.info;
  let engine: Engine;

  beforeAll(async () => {
    engine = await openEngine(golden.modelPath, { arithmetic: 'exact', roundTrips: false });
  });
  afterAll(async () => {
    await engine.close();
  });

  /** Values of one kind, all layers in order, of one position (or of every position for undefined). */
  function gather(
    taps: readonly TapRecord[],
    kind: TapKind,
    layer: number,
    position?: number,
  ): Float32Array {
    const chosen = taps
      .filter((tap) => tap.kind === kind && tap.layer === layer)
      .filter((tap) => position === undefined || tap.position === position)
      .sort((a, b) => a.position - b.position);
    return Float32Array.from(chosen.flatMap((tap) => [...tap.values]));
  }

  function compare(name: string, got: Float32Array, bound = 1e-4): void {
    const want = golden.floats(name);
    const columns = want.shape.at(-1)!;
    const errors = rowErrors(got, want.values, columns);
    report(`${tag} ${name}`, errors);
    expect(errors.worst).toBeLessThanOrEqual(bound);
  }

  function everyLayer(collect: (layer: number) => Float32Array): Float32Array {
    return Float32Array.from(
      Array.from({ length: layers }, (_, layer) => [...collect(layer)]).flat(),
    );
  }

  test.each(sequences)(
    '$name: streams, outputs, choices and rows match',
    async ({ name, length }) => {
      const tokens = golden.integers(`${name}/tokens`).values;
      const last = length - 1;
      await using session = await engine.openSession({ context: 1024, prefillChunk: 128 });

      const { taps } = await evaluate(session, tokens, 128, { taps: allTaps });

      compare(
        `${name}/hidden_last`,
        everyLayer((layer) => gather(taps, 'hidden', layer, last)),
      );
      compare(
        `${name}/attn_out_last`,
        everyLayer((layer) => gather(taps, 'attentionOut', layer, last)),
      );
      compare(
        `${name}/ffn_out_last`,
        everyLayer((layer) => gather(taps, 'ffnOut', layer, last)),
      );
      for (const [suffix, kind] of [
        ['hidden', 'hidden'],
        ['attn_out', 'attentionOut'],
        ['ffn_out', 'ffnOut'],
      ] as const) {
        if (golden.has(`${name}/${suffix}`)) {
          compare(
            `${name}/${suffix}`,
            everyLayer((layer) => gather(taps, kind, layer)),
          );
        }
      }
      expectExperts(name, taps);
      expectRows(name, taps, last);
    },
  );

  function expectExperts(name: string, taps: readonly TapRecord[]): void {
    const ids = golden.integers(`${name}/expert_ids`);
    const weights = golden.floats(`${name}/expert_weights`).values;
    const used = ids.shape.at(-1)!;
    const got: number[][] = [];
    for (let layer = 0; layer < layers; layer += 1) {
      const values = gather(taps, 'experts', layer);
      for (let at = 0; at < values.length; at += 2 * used) {
        got.push([...values.subarray(at, at + 2 * used)]);
      }
    }
    let worst = 0;
    got.forEach((row, index) => {
      const expected = new Map(
        Array.from({ length: used }, (_, k) => [
          ids.values[index * used + k]!,
          weights[index * used + k]!,
        ]),
      );
      expect(new Set(row.slice(0, used))).toEqual(new Set(expected.keys()));
      row.slice(0, used).forEach((id, k) => {
        worst = Math.max(worst, Math.abs(row[used + k]! - expected.get(id)!));
      });
    });
    process.stdout.write(
      `${tag} ${name} expert weights: worst difference ${worst.toExponential(2)}\n`,
    );
    expect(got).toHaveLength(ids.values.length / used);
    expect(worst).toBeLessThanOrEqual(1e-4);
  }

  function expectRows(name: string, taps: readonly TapRecord[], last: number): void {
    for (let layer = 0; layer < layers; layer += 1) {
      if (golden.has(`${name}/compressed_rows.${layer}`)) {
        compare(`${name}/compressed_rows.${layer}`, gather(taps, 'compressedRow', layer));
      }
      if (golden.has(`${name}/indexer_scores_last.${layer}`)) {
        compare(
          `${name}/indexer_scores_last.${layer}`,
          gather(taps, 'indexerScores', layer, last),
          1e-3,
        );
        const rows = golden.integers(`${name}/indexer_rows_last.${layer}`).values;
        expect([...gather(taps, 'indexerRows', layer, last)]).toEqual([...rows]);
      }
    }
  }

  test('a single layer, fed the reference streams, gives the next reference streams', async () => {
    const name = 's40';
    const tokens = golden.integers(`${name}/tokens`).values;
    const hidden = golden.floats(`${name}/hidden`);
    const perLayer = hidden.values.length / layers;

    for (let layer = 1; layer < layers; layer += 1) {
      const slice = { first: layer, last: layer, embedding: false, head: false };
      await using single = await openEngine(golden.modelPath, {
        arithmetic: 'exact',
        roundTrips: false,
        slice,
      });
      await using session = await single.openSession({ context: 64, prefillChunk: 64 });
      const before = hidden.values.slice((layer - 1) * perLayer, layer * perLayer);

      const { hidden: after } = await session.eval(tokens, { hidden: before, wantHidden: true });

      const errors = rowErrors(
        after!,
        hidden.values.slice(layer * perLayer, (layer + 1) * perLayer),
        hidden.shape.at(-1)!,
      );
      report(`${tag} layer ${layer} alone`, errors);
      expect(errors.worst).toBeLessThanOrEqual(2e-5);
    }
  });
});
