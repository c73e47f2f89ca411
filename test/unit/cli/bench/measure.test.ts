import { expect, test } from 'vitest';
import { measure } from '../../../../src/cli/bench/measure.js';
import type { BenchSession, MeasureOptions, Row } from '../../../../src/cli/bench/measure.js';
import {
  benchOptions,
  checkBench,
  defaultBenchSettings,
  frontiers,
} from '../../../../src/cli/bench/options.js';
import { csvHeader, csvLine, svgText, tokenHash } from '../../../../src/cli/bench/report.js';
import type { Traffic } from '../../../../src/cli/bench/windows.js';
import { readOptions } from '../../../../src/cli/arguments.js';

const noTraffic: Traffic = {
  lookups: 0,
  slotHits: 0,
  hostHits: 0,
  inFlightHits: 0,
  misses: 0,
  promotions: 0,
  fileReadBytes: 0,
  uploadBytes: 0,
  busReadBytes: 0,
};

/** A session whose best token is always the position, with token 7 best of all; each evaluation takes 10 ms a token. */
function scriptedSession() {
  let now = 0;
  let position = 0;
  let checkpoint = -1;
  const evaluated: number[][] = [];
  const session: BenchSession = {
    prefillChunk: 40,
    eval: (tokens) => {
      now += 10 * tokens.length;
      position += tokens.length;
      evaluated.push([...tokens]);
      const ids = Int32Array.of(7, position, 1);
      return Promise.resolve({
        candidates: { ids, logits: Float32Array.of(3, 2, 1) },
        logits: undefined,
      });
    },
    checkpoint: () => {
      checkpoint = position;
      return Promise.resolve();
    },
    rewind: (to) => {
      position = checkpoint;
      return Promise.resolve(Math.min(checkpoint, to));
    },
    measure: () => ({ kvBytes: 1000 }),
  };
  return { session, evaluated, clock: () => now };
}

async function rowsOf(
  generate: number,
  more: Partial<MeasureOptions> = {},
  other?: BenchSession,
): Promise<{ rows: Row[]; evaluated: number[][] }> {
  const { session, evaluated, clock } = scriptedSession();
  const rows: Row[] = [];
  for await (const row of measure(other ?? session, {
    tokens: Array.from({ length: 200 }, (_, index) => index),
    frontiers: [100, 150],
    generate,
    replay: false,
    window: undefined,
    traffic: () => ({ ...noTraffic, lookups: evaluated.length }),
    excluded: new Set([7]),
    wantsLogits: false,
    vocab: 320,
    clock,
    onProgress: () => undefined,
    ...more,
  })) {
    rows.push(row);
  }
  return { rows, evaluated };
}

test('each frontier times its own interval, generates from there and goes back', async () => {
  const { rows, evaluated } = await rowsOf(3);
  expect(rows.map(({ context, prefillTokens }) => [context, prefillTokens])).toEqual([
    [100, 100],
    [150, 50],
  ]);
  expect(rows.map(({ prefillRate }) => prefillRate)).toEqual([100, 100]);
  // The stop token 7 is never chosen.
  expect(rows[0]?.tokens).toEqual([100, 101, 102]);
  expect(rows[1]?.tokens).toEqual([150, 151, 152]);
  // Chunks of 40, then the generated tokens, then on from where the generation began.
  expect(evaluated.map((tokens) => tokens.length)).toEqual([40, 40, 20, 1, 1, 1, 40, 10, 1, 1, 1]);
  expect(evaluated[6]?.[0]).toBe(100);
});

test('a replay decodes what follows in the prompt', async () => {
  const { rows, evaluated } = await rowsOf(3, { replay: true });
  expect(rows.map(({ tokens }) => tokens)).toEqual([
    [100, 101, 102],
    [150, 151, 152],
  ]);
  // Each has gone back before it goes on: the second frontier begins where the first one ended.
  expect(evaluated.slice(3, 7).map((tokens) => tokens[0])).toEqual([100, 101, 102, 100]);
});

test('the first generated token, which may build what later ones reuse, is told from the steady ones', async () => {
  const { session, clock } = scriptedSession();
  let late = 0;
  let isFirst = false;
  const { rows } = await rowsOf(
    5,
    {
      clock: () => clock() + late,
    },
    {
      ...session,
      checkpoint: () => {
        isFirst = true;
        return session.checkpoint();
      },
      eval: (tokens, request) => {
        late += isFirst ? 30 : 0;
        isFirst = false;
        return session.eval(tokens, request);
      },
    },
  );
  expect(
    rows.map(({ firstMs, steadyTokens, steadyRate, cycles }) => [
      firstMs,
      steadyTokens,
      steadyRate,
      cycles,
    ]),
  ).toEqual([
    [40, 4, 100, 5],
    [40, 4, 100, 5],
  ]);
  expect(rows[0]?.generateRate).toBeCloseTo(62.5);
});

test('windows share a decode among them, each with what was counted meanwhile', async () => {
  const { rows } = await rowsOf(5, { window: 2 });
  expect(rows[0]?.windows?.map(({ tokens, ms, traffic }) => [tokens, ms, traffic.lookups])).toEqual(
    [
      [2, 20, 2],
      [2, 20, 2],
      [1, 10, 1],
    ],
  );
  expect(csvLine(rows[0]!).split(',').length).toBe(csvHeader.split(',').length);
});

test('no generated tokens is prefill alone', async () => {
  const { rows } = await rowsOf(0);
  expect(rows.map((row) => csvLine(row))).toEqual([
    `100,100,100.00,0,0.00,0.000,0,0.00,1000,0,${tokenHash([])}`,
    `150,50,100.00,0,0.00,0.000,0,0.00,1000,0,${tokenHash([])}`,
  ]);
});

test('frontiers grow by steps or by a factor', () => {
  const settings = { ...defaultBenchSettings(), contextStart: 2048, contextMax: 9000 };
  expect(frontiers(settings)).toEqual([2048, 4096, 6144, 8192]);
  expect(frontiers({ ...settings, stepFactor: 2 })).toEqual([2048, 4096, 8192]);
});

test('values that do not go together are refused', () => {
  const prompt = { form: 'raw', path: 'x', text: new Uint8Array() } as const;
  const good = { ...defaultBenchSettings(), prompts: [prompt] };
  expect(() => {
    checkBench(good);
  }).not.toThrow();
  expect(() => {
    checkBench({ ...good, prompts: [] });
  }).toThrow('exactly one of --prompt-file, --chat-prompt-file and --token-file');
  expect(() => {
    checkBench({ ...good, contextStart: 5000, contextMax: 4096 });
  }).toThrow('--ctx-start 5000 is beyond --ctx-max 4096');
  expect(() => {
    checkBench({ ...good, contextMax: 4096, generate: 128, contextAlloc: 4224 });
  }).toThrow('--ctx-alloc 4224 is too small');
});

test('the command line knows its own options and those of ds4', () => {
  const bench = defaultBenchSettings();
  const argv = ['-m', 'x.gguf', '--ctx-max', '4096', '--gen-tokens', '5', '--gpu-resident'];
  expect(readOptions(argv, benchOptions(bench), bench.shared)).toEqual({ kind: 'run' });
  expect(bench).toMatchObject({
    contextMax: 4096,
    generate: 5,
    shared: { model: 'x.gguf', gpuResident: true },
  });
  const more = ['--replay', '--window', '64', '--stats-json', '--ssd-streaming', '--direct-io'];
  readOptions(more, benchOptions(bench), bench.shared);
  expect(bench).toMatchObject({
    replay: true,
    window: 64,
    shared: { stats: 'json', ssdStreaming: true, source: 'direct' },
  });
  expect(() => readOptions(['--ctx-max'], benchOptions(bench), bench.shared)).toThrow(
    '--ctx-max requires an argument',
  );
  expect(() => readOptions(['--ctx', '1'], benchOptions(bench), bench.shared)).toThrow(
    'unknown option: --ctx',
  );
});

test('a row is one line of the columns', async () => {
  const { rows } = await rowsOf(3);
  const [row] = rows;
  if (row === undefined) {
    throw new Error('no row');
  }
  expect(csvLine(row)).toBe(
    `100,100,100.00,3,100.00,10.000,2,100.00,1000,3,${tokenHash([100, 101, 102])}`,
  );
  expect(csvLine(row).split(',').length).toBe(csvHeader.split(',').length);
  expect(svgText('a < b', rows)).toMatch(/^<svg [^]*a &#60; b[^]*<\/svg>\n$/);
});

test('the hash of tokens is FNV-1a of 64 bits', () => {
  expect(tokenHash([])).toBe('cbf29ce484222325');
  // One token 'a' is the bytes 61 00 00 00.
  const bytes = [0x61, 0, 0, 0];
  const expected = bytes.reduce(
    (hash, byte) => BigInt.asUintN(64, (hash ^ BigInt(byte)) * 1_099_511_628_211n),
    14_695_981_039_346_656_037n,
  );
  expect(tokenHash([0x61])).toBe(expected.toString(16));
});
