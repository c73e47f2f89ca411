import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  lookupsOf,
  policies,
  replayBelady,
  replayLfru,
  replayLru,
  replayPinned,
} from '../../../tools/expert-trace/caches.js';
import type { Lookup, PolicyName } from '../../../tools/expert-trace/caches.js';
import { chartText } from '../../../tools/expert-trace/chart.js';
import { parseTrace } from '../../../tools/expert-trace/trace.js';
import type { Evaluation } from '../../../tools/expert-trace/trace.js';

const header = 'ds4-expert-trace 2 layers=4 experts=16 used=2 hash=1\n';

function lookups(evaluations: readonly Evaluation[], hashLayers = 0): Lookup[] {
  return lookupsOf({ layerCount: 4, expertCount: 16, usedCount: 2, hashLayers, evaluations });
}

/** One token of one layer each. */
function decoded(...choices: number[][]): Lookup[] {
  return lookups(choices.map((experts) => ({ tokens: 1, layers: [{ layer: 0, experts }] })));
}

describe('the trace file', () => {
  it('gives each layer of an evaluation the experts that any token chose, once', () => {
    const { evaluations, hashLayers } = parseTrace(
      `${header}eval 2\n0 0 3,1\n1 0 1,2\n0 1 9,8\n1 1 9,8\n`,
    );

    expect(hashLayers).toBe(1);
    expect(evaluations).toEqual([
      {
        tokens: 2,
        layers: [
          { layer: 0, experts: [3, 1, 2] },
          { layer: 1, experts: [9, 8] },
        ],
      },
    ]);
  });

  it('keeps the whole lines of a trace that was cut', () => {
    const { evaluations } = parseTrace(`${header}eval 1\n0 0 3,1\n0 1 2,1`);

    expect(evaluations).toEqual([{ tokens: 1, layers: [{ layer: 0, experts: [3, 1] }] }]);
  });

  it.each([
    ['', 'line 1'],
    ['hello\n', 'line 1'],
    ['ds4-expert-trace 1 layers=4 experts=16 used=2\n', 'line 1: an expert trace of version 1'],
    [`${header}0 0 3,1\n`, 'line 2'],
    [`${header}eval 1\n0 0 3,\n`, 'line 3'],
    [`${header}eval 1\n0 4 3,1\n`, 'line 3: a layer or an expert'],
    [`${header}eval 1\n0 0 16,1\n`, 'line 3: a layer or an expert'],
  ])('%j is refused at its %s', (text, sentence) => {
    expect(() => parseTrace(text)).toThrow(sentence);
  });
});

describe('lookups', () => {
  it('tell apart the same expert of two layers and count tokens', () => {
    const found = lookups([
      { tokens: 3, layers: [{ layer: 0, experts: [1] }] },
      { tokens: 1, layers: [{ layer: 2, experts: [1, 5] }] },
    ]);

    expect(found.map(({ key, token, isBatch }) => [key, token, isBatch])).toEqual([
      [1, 0, true],
      [33, 3, false],
      [37, 3, false],
    ]);
    expect([...(found[1]?.together ?? [])]).toEqual([33, 37]);
  });
});

describe('LRU', () => {
  it('lets the key go that was not used for longest', () => {
    // 1 2 | hit 1 | 3 puts 2 out | 2 puts 1 out | hit 3
    const outcome = replayLru(decoded([1], [2], [1], [3], [2], [3]), 2);

    expect(outcome).toEqual({ lookups: 6, hits: 2, decodeLookups: 6, decodeHits: 2 });
  });

  it('puts nothing out that the same layer wants', () => {
    // The second token misses 3, and the older of 1 and 2 would be 1, which it wants too: 2 goes.
    expect(replayLru(decoded([1, 2], [3, 1], [1, 3]), 2).hits).toBe(3);
  });

  it('uses what is there before it brings in the rest, as the engine does', () => {
    // Of 3 and 1 the one that was there counts as used first, so 4 puts 1 out and 3 stays.
    expect(replayLru(decoded([1], [2], [3, 1], [4], [3]), 2).hits).toBe(2);
  });

  it('keeps what it has when the layer wants more than there are slots', () => {
    expect(replayLru(decoded([1, 2, 3], [1, 2, 3]), 2).hits).toBe(2);
  });

  it('fills free slots from a batch and evicts nothing for it', () => {
    const outcome = replayLru(
      lookups([
        { tokens: 1, layers: [{ layer: 0, experts: [1] }] },
        { tokens: 8, layers: [{ layer: 0, experts: [2, 3, 4] }] },
        { tokens: 1, layers: [{ layer: 0, experts: [1, 2] }] },
        { tokens: 1, layers: [{ layer: 0, experts: [3] }] },
      ]),
      2,
    );

    expect(outcome).toEqual({ lookups: 7, hits: 2, decodeLookups: 4, decodeHits: 2 });
  });
});

describe('layers that are read ahead', () => {
  const large = (layers: number[][]): Evaluation => ({
    tokens: 16,
    layers: layers.map((experts, layer) => ({ layer, experts })),
  });
  const then = (layer: number, experts: number[]): Evaluation => ({
    tokens: 1,
    layers: [{ layer, experts }],
  });

  it.each(['LRU', 'LFRU'] as const)('take free slots of %s with all that they lack', (name) => {
    const trace = lookups([large([[1, 2], [3]]), then(1, [3, 9]), then(2, [4])]);

    // Nothing is there for the batch itself; of layer 1 all is there afterwards, and layer 2 finds no room.
    expect(policies[name](trace, 18)).toMatchObject({ hits: 2, decodeHits: 2 });
    // One slot less, and only what was wanted comes in.
    expect(policies[name](trace, 17)).toMatchObject({ hits: 1, decodeHits: 1 });
  });

  it('are none for a batch that needs few experts, and none behind the last layer', () => {
    const [few] = lookups([{ ...large([[1]]), tokens: 15 }]);
    const many = lookups([large([[1], [2], [3], [4]])]);

    expect(few?.ahead).toEqual([]);
    expect(many.map(({ ahead }) => ahead[0])).toEqual([16, 32, 48, undefined]);
  });

  it('count as used when they were wanted before, and leave first when they never were', () => {
    const fill = [large([[0], [0]]), ...Array.from({ length: 15 }, (_, key) => then(0, [key]))];

    // Slots: 0 of layer 0 and all of layer 1. 14 misses put out what nobody wanted, and not the first of layer 1.
    expect(replayLfru(lookups([...fill, then(1, [0])]), 17).hits).toBe(2);
  });
});

describe('foresight', () => {
  const step = (tokens: number, ...layers: number[][]): Evaluation => ({
    tokens,
    layers: layers.map((experts, layer) => ({ layer, experts })),
  });

  it('is for the first layers of at most eight tokens, and is told with their first lookup', () => {
    const found = lookups([step(9, [1]), step(8, [1, 2], [3], [4]), step(1, [5], [6])], 2);

    expect(found.map(({ foresight }) => foresight && [...foresight.keys])).toEqual([
      undefined,
      ...[[1, 2, 19], undefined, undefined, undefined],
      ...[[5, 22], undefined],
    ]);
    expect(found[1]?.foresight?.lastToken).toBe(0);
    // What the eight tokens used is what the next step may not give up.
    expect(found[5]?.foresight?.lastToken).toBe(9);
  });

  describe.each(['LRU', 'LFRU'] as const)('of %s', (name) => {
    const hits = (evaluations: Evaluation[], hashLayers: number, capacity: number): number =>
      policies[name](lookups(evaluations, hashLayers), capacity).hits;

    it('makes no hit of what it fetches', () => {
      expect(hits([step(1, [1]), step(1, [2])], 1, 4)).toBe(0);
      expect(hits([step(1, [1]), step(1, [1])], 1, 4)).toBe(1);
    });

    it('keeps what the first layers want from the start of the step', () => {
      // The third step lacks 5 of layer 0. Expert 2 of layer 1 was not used for longest, but it is wanted now: 3 goes.
      const steps = [step(1, [], [2]), step(1, [], [3]), step(1, [4]), step(1, [5], [2])];

      expect(hits(steps, 2, 3)).toBe(1);
      expect(hits(steps, 0, 3)).toBe(0);
    });

    it('gives up nothing that the last step used', () => {
      // Of layer 3 something could go for 2, but the last step used it. So 2 is fetched when layer 0 is computed, and takes
      // the slot of what layer 1 is about to want.
      const first = step(1, [], [1], [], [5]);

      expect(hits([first, step(1, [2], [1])], 2, 2)).toBe(0);
      // A step later it may go.
      expect(hits([first, step(1), step(1, [2], [1])], 2, 2)).toBe(1);
    });

    it('of several tokens takes free slots and evicts nothing', () => {
      const full = [step(1, [1]), step(1, [2]), step(2, [3, 4]), step(1, [1]), step(1, [2])];

      expect(hits(full, 1, 2)).toBe(2);
      expect(hits([step(2, [3, 4]), step(1, [3, 4])], 1, 2)).toBe(2);
    });
  });

  it('counts what it fetched as used when its layer is computed', () => {
    // 2 of layer 1 was there before 1 of layer 0 was used again, and is used after it: 1 leaves for layer 3.
    const steps = [step(1, [1]), step(1, [1], [2]), step(1, [], [], [], [6]), step(1, [], [2])];

    expect(replayLru(lookups(steps, 2), 2).hits).toBe(2);
  });
});

describe('LFRU', () => {
  it('spares a key that was used often, where LRU does not', () => {
    const trace = decoded([1], [1], [1], [2], [3], [1]);

    expect(replayLfru(trace, 2).hits).toBe(3);
    expect(replayLru(trace, 2).hits).toBe(2);
  });

  it('forgets old uses', () => {
    // Key 1 has 7 uses when 5000 other tokens pass; 192 tokens of credit are long gone, so 1 leaves before 2.
    const busy = Array.from({ length: 7 }, () => [1]);
    const pause: Evaluation = { tokens: 5000, layers: [] };
    const trace = [
      ...busy.map((experts): Evaluation => ({ tokens: 1, layers: [{ layer: 0, experts }] })),
      pause,
      ...[[2], [3], [2], [1]].map((experts): Evaluation => ({
        tokens: 1,
        layers: [{ layer: 0, experts }],
      })),
    ];

    expect(replayLfru(lookups(trace), 2).hits).toBe(6 + 1);
  });

  it('halves uses after each 1024 tokens', () => {
    const at = (tokens: number, experts: number[]): Evaluation[] => [
      { tokens: 1, layers: [{ layer: 0, experts }] },
      ...(tokens > 1 ? [{ tokens: tokens - 1, layers: [] }] : []),
    ];
    // Three uses of 1 count as one after token 1024 and as two with the next: no more than the two uses of 2, which
    // come later. Without halving 1 would have four and stay.
    const trace = [...at(1, [1]), ...at(1, [1]), ...at(1100, [1]), ...at(1, [1]), ...at(1, [2])];
    const then = [...at(1, [2]), ...at(1, [3]), ...at(1, [1])];

    expect(replayLfru(lookups([...trace, ...then]), 2).hits).toBe(3 + 1);
  });

  it('obeys the rules of layers and batches', () => {
    expect(replayLfru(decoded([1, 2], [3, 1], [1, 3]), 2).hits).toBe(3);
    expect(
      replayLfru(
        lookups([
          { tokens: 1, layers: [{ layer: 0, experts: [1, 2] }] },
          { tokens: 8, layers: [{ layer: 0, experts: [3, 4] }] },
          { tokens: 1, layers: [{ layer: 0, experts: [1, 2] }] },
        ]),
        2,
      ).hits,
    ).toBe(2);
  });
});

describe('the static pin', () => {
  it('holds what the first half wanted most, and reads each once', () => {
    // Half of the tokens: 1 three times, 2 once, 3 once.
    const trace = decoded([1], [1], [2], [1], [3], [4], [4], [4], [1]);

    expect(replayPinned(trace, 1).hits).toBe(3);
  });
});

describe('Belady', () => {
  it('keeps what comes back first', () => {
    // With one slot it keeps 1 and refuses 2 and 3.
    expect(replayBelady(decoded([1], [2], [1], [3], [1]), 1).hits).toBe(2);
    // With two it gives up 1, which comes back last.
    expect(replayBelady(decoded([1], [2], [3], [2], [3], [1]), 2).hits).toBe(2);
  });

  const evaluation = fc.record({
    tokens: fc.constantFrom(1, 1, 1, 5),
    layers: fc.uniqueArray(
      fc.record({
        layer: fc.nat(3),
        experts: fc.uniqueArray(fc.nat(7), { minLength: 1, maxLength: 5 }),
      }),
      { selector: ({ layer }) => layer, maxLength: 4 },
    ),
  });

  it.each(['LRU', 'LFRU', 'static pin'] as const)('is never worse than %s', (name: PolicyName) => {
    fc.assert(
      fc.property(
        fc.array(evaluation, { maxLength: 40 }),
        fc.integer({ min: 1, max: 12 }),
        fc.nat(4),
        (evaluations, capacity, hashLayers) => {
          const trace = lookups(evaluations, hashLayers);

          expect(replayBelady(trace, capacity).hits).toBeGreaterThanOrEqual(
            policies[name](trace, capacity).hits,
          );
        },
      ),
    );
  });

  it.each(Object.keys(policies) as PolicyName[])(
    'is no better than %s with room for all: each key is missed once',
    (name) => {
      const trace = decoded([1, 2], [2, 3], [3, 1], [1, 2], [2, 3]);

      // The static pin leaves out what only the second half wants, which is nothing here.
      expect(policies[name](trace, 16)).toMatchObject({ lookups: 10, hits: 7 });
    },
  );
});

describe('the chart', () => {
  it('draws a line for each policy and a mark for each capacity', () => {
    const text = chartText(
      'Hits < 1',
      [8, 16, 32],
      [
        { policy: 'LRU', rates: [0, 0.5, 1] },
        { policy: 'Belady', rates: [0.25, 0.75, 1] },
      ],
    );

    expect(text).toContain('Hits &#60; 1');
    expect(text.match(/<polyline/g)).toHaveLength(2);
    expect(text).toContain('points="60.0,328.0 355.0,187.0 650.0,46.0"');
    for (const capacity of [8, 16, 32]) {
      expect(text).toContain(`>${capacity}</text>`);
    }
  });
});
