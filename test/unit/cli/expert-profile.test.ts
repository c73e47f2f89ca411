import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import {
  ExpertProfile,
  parseProfile,
  profileText,
  updatedProfile,
} from '../../../src/cli/expert-profile.js';
import type { ProfiledExpert } from '../../../src/cli/expert-profile.js';
import type { ExpertUse, ModelEngine } from '../../../src/engine/index.js';
import '../../support/property-seed.js';

const shape = { layerCount: 4, expertCount: 8, expertUsed: 2 };
const header = 'ds4-expert-profile 1 layers=4 experts=8 used=2';
const scratch = mkdtempSync(join(tmpdir(), 'ds4-profile-'));
afterAll(() => {
  rmSync(scratch, { recursive: true });
});

const profiles = fc.uniqueArray(
  fc.record({
    layer: fc.nat(shape.layerCount - 1),
    expert: fc.nat(shape.expertCount - 1),
    hits: fc.maxSafeNat(),
  }),
  { selector: ({ layer, expert }) => layer * shape.expertCount + expert },
);

function failure(text: string): { message: string; exitCode: number } {
  try {
    parseProfile(text, shape);
  } catch (thrown) {
    return thrown as Error & { exitCode: number };
  }
  throw new Error('accepted');
}

function use(layer: number, expert: number, uses: number, isKept = true): ExpertUse {
  return { layer, expert, uses, isKept };
}

const numbers = (entries: readonly ProfiledExpert[]): number[][] =>
  entries.map(({ layer, expert, hits }) => [layer, expert, hits]);

describe('the text of a profile', () => {
  it('has the shape of the model first, then an expert in each line', () => {
    expect(profileText(shape, [{ layer: 3, expert: 0, hits: 17 }])).toBe(`${header}\n3 0 17\n`);
  });

  it('reads as what was written, in the same order', () => {
    fc.assert(
      fc.property(profiles, (experts) => {
        expect(parseProfile(profileText(shape, experts), shape)).toEqual(experts);
      }),
    );
  });

  it('may lack its last line feed, and every expert', () => {
    expect(numbers(parseProfile(`${header}\n1 2 3`, shape))).toEqual([[1, 2, 3]]);
    expect(parseProfile(header, shape)).toEqual([]);
    expect(parseProfile(`${header}\n`, shape)).toEqual([]);
  });

  it.each([
    ['', /^line 1: this is no expert profile/],
    ['1 2 3\n', /^line 1: this is no expert profile: it begins with "1 2 3"/],
    ['ds4-expert-trace 1 layers=4 experts=8 used=2\n', /^line 1: this is no expert profile/],
    ['ds4-expert-profile 2 layers=4 experts=8 used=2\n', /^line 1: .*version 2.*reads version 1/],
    [
      'ds4-expert-profile 1 layers=43 experts=256 used=6\n',
      /^line 1: .*43 layers with 256 experts/,
    ],
    ['ds4-expert-profile 1 layers=4 experts=8 used=3\n', /^line 1: .*3 used/],
    [`${header}\n0 1 2\n4 0 1\n`, /^line 3: there is no layer 4; the model has 0 to 3/],
    [`${header}\n0 8 1\n`, /^line 2: there is no expert 8; a layer has 0 to 7/],
    [`${header}\n0 1 9007199254740992\n`, /^line 2: .*more than can be counted/],
    [`${header}\n0 1 2\n1 1 2\n0 1 5\n`, /^line 4: expert 1 of layer 0 is in line 2 already/],
    [`${header}\n0 1\n`, /^line 2: "0 1" is not LAYER EXPERT HITS/],
    [`${header}\n\n0 1 2\n`, /^line 2: "" is not/],
    [`${header}\n0 1 2 3\n`, /^line 2: "0 1 2 3" is not/],
    [`${header}\n-1 1 2\n`, /^line 2: /],
    [`${header}\n0 01 2\n`, /^line 2: /],
    [`${header}\n0 1 2.5\n`, /^line 2: /],
    [`${header}\n0 1 1e3\n`, /^line 2: /],
    [`${header}\n0 1 99999999999999999\n`, /^line 2: /],
    [`${header}\n0 1 2\r\n`, /^line 2: "0 1 2\\r" is not/],
    [
      `${header}\n0 1 2 \u0007\u009b31m${'x'.repeat(500)}\n`,
      /^line 2: "0 1 2 \\u0007\?31mx{40,60}\.\.\."/,
    ],
  ])('%j is refused with the line and the reason', (text, sentence) => {
    const { message, exitCode } = failure(text);

    expect(message).toMatch(sentence);
    expect(message.length).toBeLessThan(250);
    expect(exitCode).toBe(1);
  });

  it('is either refused with a line or names experts that there are, whatever it holds', () => {
    const piece = fc.oneof(
      fc.constantFrom(`${header}\n`, '\n', ' ', '0', '3', '7', '8', '-', '\0', '\r', header),
      fc.nat(10).map(String),
      fc.string(),
    );
    const line = fc.tuple(fc.nat(4), fc.nat(8), fc.nat()).map((parts) => `${parts.join(' ')}\n`);
    const text = fc.oneof(
      fc.array(piece).map((parts) => parts.join('')),
      fc.array(line).map((lines) => `${header}\n${lines.join('')}`),
      fc.array(piece).map((parts) => `${header}\n${parts.join('')}`),
    );
    let accepted = 0;
    fc.assert(
      fc.property(text, (hostile) => {
        let experts: ProfiledExpert[];
        try {
          experts = parseProfile(hostile, shape);
        } catch (thrown) {
          expect((thrown as Error).message).toMatch(/^line [0-9]+: /);
          expect((thrown as { exitCode?: number }).exitCode).toBe(1);
          return;
        }
        accepted += 1;
        for (const { layer, expert, hits } of experts) {
          expect(layer).toBeLessThan(shape.layerCount);
          expect(expert).toBeLessThan(shape.expertCount);
          expect(Number.isSafeInteger(hits)).toBe(true);
        }
      }),
      { numRuns: 500 },
    );
    expect(accepted).toBeGreaterThan(0);
  });
});

describe('a profile after a run', () => {
  it('begins with the cache in its order, whatever the hits, and goes on with the rest by theirs', () => {
    const uses = [use(0, 5, 2), use(1, 1, 90), use(2, 2, 3, false), use(3, 3, 7, false)];

    expect(numbers(updatedProfile(uses, []))).toEqual([
      [0, 5, 2],
      [1, 1, 90],
      [3, 3, 7],
      [2, 2, 3],
    ]);
  });

  it('counts what it had before half, and drops what nobody wants any more', () => {
    const before = [
      { layer: 0, expert: 0, hits: 10 },
      { layer: 0, expert: 1, hits: 41 },
      { layer: 0, expert: 2, hits: 1 },
    ];

    expect(numbers(updatedProfile([use(0, 0, 4), use(3, 3, 6, false)], before))).toEqual([
      [0, 0, 9],
      [0, 1, 20],
      [3, 3, 6],
    ]);
  });

  it('keeps what is in the cache because of it, and forgets what only filled a slot', () => {
    const before = [{ layer: 1, expert: 1, hits: 1 }];

    expect(numbers(updatedProfile([use(1, 1, 0), use(2, 2, 0)], before))).toEqual([[1, 1, 0]]);
  });

  it('is a profile of the same model', () => {
    fc.assert(
      fc.property(profiles, profiles, fc.nat(20), (now, before, keptCount) => {
        const uses = now.map(({ layer, expert, hits }, index) =>
          use(layer, expert, hits % 1000, index < keptCount),
        );
        const after = updatedProfile(
          uses,
          before.map((entry) => ({ ...entry, hits: entry.hits % 1000 })),
        );
        expect(parseProfile(profileText(shape, after), shape)).toEqual(after);
      }),
    );
  });
});

/** An engine that lists these. */
function engineWith(uses: readonly ExpertUse[]): ModelEngine {
  return { listExperts: () => Promise.resolve([...uses]) } as unknown as ModelEngine;
}

function open(path: string, limits: Partial<{ cold: boolean; most: number }> = {}): ExpertProfile {
  return new ExpertProfile(path, shape, { cold: false, most: undefined, ...limits });
}

describe('the file of a profile', () => {
  const two = [
    { layer: 1, expert: 1, hits: 8 },
    { layer: 0, expert: 7, hits: 5 },
  ];
  function fileWith(name: string, text = profileText(shape, two)): string {
    const path = join(scratch, name);
    writeFileSync(path, text);
    return path;
  }

  it('that is not there begins empty, and is there afterwards', async () => {
    const path = join(scratch, 'new');
    const profile = open(path);
    expect(profile.seeds).toEqual([]);

    await profile.save(engineWith([use(2, 6, 3)]));

    expect(readFileSync(path, 'utf8')).toBe(`${header}\n2 6 3\n`);
    expect(open(path).seeds).toEqual([{ layer: 2, expert: 6, hits: 3 }]);
  });

  it('gives its first experts, as many as are asked for, and none to a cold start', async () => {
    const path = fileWith('limits');

    expect(open(path).seeds).toEqual(two);
    expect(open(path, { most: 1 }).seeds).toEqual(two.slice(0, 1));
    const cold = open(path, { cold: true });
    expect(cold.seeds).toEqual([]);
    await cold.save(engineWith([]));
    expect(numbers(open(path).seeds as ProfiledExpert[])).toEqual([
      [1, 1, 4],
      [0, 7, 2],
    ]);
  });

  it('stays a link to what it is', async () => {
    const target = fileWith('target');
    const link = join(scratch, 'link');
    symlinkSync(target, link);

    await open(link).save(engineWith([use(3, 3, 9)]));

    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(readFileSync(target, 'utf8')).toBe(`${header}\n3 3 9\n1 1 4\n0 7 2\n`);
  });

  it('leaves nothing beside it, and is not harmed by a write that fails', async () => {
    const folder = join(scratch, 'folder');
    mkdirSync(folder);
    const path = join(folder, 'profile');
    const profile = open(path);
    await profile.save(engineWith([use(0, 0, 1)]));
    expect(readdirSync(folder)).toEqual(['profile']);

    // What would be written beside it is there already, as if by somebody else.
    mkdirSync(`${path}.${process.pid}.new`);
    await expect(profile.save(engineWith([use(0, 0, 2)]))).rejects.toThrow(
      /^cannot write the expert profile .*profile: /,
    );
    expect(readFileSync(path, 'utf8')).toBe(`${header}\n0 0 1\n`);
  });

  it.each([
    ['a folder', () => scratch, /no regular file/],
    ['a damaged file', () => fileWith('damaged', 'hello'), /line 1: this is no expert profile/],
    ['a huge file', () => fileWith('huge', ' '.repeat(17 << 20)), /too many/],
    [
      'a file in a missing folder',
      () => join(scratch, 'missing', 'f'),
      /cannot write .*no such file/,
    ],
  ])('that is %s is a failure with status 1 before anything is loaded', (_, path, sentence) => {
    const failing = (): unknown => open(path());

    expect(failing).toThrow(sentence);
    expect(failing).toThrow(expect.objectContaining({ exitCode: 1 }) as Error);
  });
});
