// Memory modes through the real program: where the weights are changes no word of an answer.
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needle, sum } from '../support/probes.js';
import { expectConsistent, parseStats } from '../support/stats-line.js';
import type { StatsLine } from '../support/stats-line.js';
import { run, temporaryFolder } from './program.js';
import type { Folder, Outcome } from './program.js';

/** The code word is beyond the window, so that compressed rows are needed for it, and the sum needs what was learnt by heart. */
const probes = [needle(1, 25), sum(47, 38)];
const turns = [...probes.map(({ prompt }) => prompt), '/quit', ''].join('\n');
const answers = probes.map(({ answer }) => `${answer}\n`).join('');

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

/** Both probes in one chat of the model that comes with ds4. Runs at the same time need lock files of their own. */
function ask(options: readonly string[], lock = 'lock'): Promise<Outcome> {
  return run(
    folder,
    ['--interactive', '--nothink', '--temp', '0', '-c', '1024', ...options, '--stats-json'],
    { stdin: { text: turns }, env: { DS4_LOCK_FILE: folder.file(lock) } },
  );
}

interface Mode {
  readonly options: string;
  /** What is said about it at the start. */
  readonly says: RegExp;
  /** A part of what is counted. */
  readonly counts?: Partial<Record<keyof StatsLine, object>>;
}

async function expectRight(_: string, { options, says, counts = {} }: Mode): Promise<void> {
  const { stdout, stderr, status } = await ask(options.split(' '));

  expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
  expect(stderr).toMatch(says);
  const stats = parseStats(stderr);
  expect(stats).toMatchObject({ source: 'ds4', version: 1, ...counts });
  expectConsistent(stats);
}

/** A title has room for all options only when they are an argument of their own. */
function titled(modes: readonly Mode[]): (readonly [string, Mode])[] {
  return modes.map((mode) => [mode.options, mode]);
}

const some: unknown = expect.toSatisfy((count: number) => count > 0, 'more than 0');

describe('on the CPU', () => {
  it.each(
    titled([
      { options: '--cpu', says: /mapped model/ },
      { options: '--cpu --no-mmap', says: /resident model/ },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 2',
        says: /expert cache: 2 experts .* in main memory, because --ssd-streaming-cache-experts 2/,
        counts: { experts: { slots: 2, slotsUsed: 2, misses: some, evictions: some } },
      },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 13',
        says: /expert cache: 13 experts/,
        counts: { experts: { slots: 13, deviceHits: some, misses: some, transit: some } },
      },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 13 --direct-io',
        says: /expert cache: 13 experts/,
        counts: { experts: { slots: 13 }, files: { readBytes: some } },
      },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 13 --expert-policy lfru',
        says: /expert cache: 13 experts/,
        counts: { experts: { slots: 13, evictions: some } },
      },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 1GB --mlock',
        says: /expert cache: 48 experts .*every expert has a slot/,
        counts: { experts: { slots: 48, evictions: 0 } },
      },
      {
        options: '--cpu --ssd-streaming --ssd-streaming-cold',
        says: /expert cache: 48 experts/,
        counts: { experts: { slots: 48, evictions: 0, transit: 0 } },
      },
    ]),
  )('the answers are right with %s', expectRight);
});

// A budget is what is free less 2 GiB, less 512 MiB that nobody counts.
describe('on a simulated GPU', () => {
  it.each(
    titled([
      {
        options: '--sim vram=24,ram=64',
        says: /weights: all 11\.72 MiB go into GPU memory, because they fit/,
        counts: { simulation: { mappedReadBytes: 0 } },
      },
      {
        options: '--sim vram=24,ram=64 --check-tensors --direct-io',
        says: /weights: all 11\.72 MiB go into GPU memory/,
      },
      {
        options: '--sim vram=2.62,ram=64 --gpu-resident',
        says: /weights: all 11\.72 MiB go into GPU memory, because --gpu-resident asks for it/,
        counts: { simulation: { mappedReadBytes: 0 } },
      },
      {
        options: '--backend sim --sim vram=2.6,ram=64',
        says: /5\.06 MiB of experts stay in main memory and are read over the bus, those in frequent use copied/,
        counts: { experts: { slots: 12, deviceHits: some, hostHits: some, promotions: some } },
      },
      {
        options: '--sim vram=2.6,ram=64 --expert-policy lfru',
        says: /those in frequent use copied/,
        counts: { experts: { slots: 12, promotions: some } },
      },
      {
        options: '--sim vram=2.593,ram=64',
        says: /of the 6\.66 MiB of weights outside the experts do not fit into GPU memory/,
        counts: { experts: { slots: 0, deviceHits: 0 } },
      },
      {
        options: '--sim vram=24,ram=64 --no-gpu-resident',
        says: /read over the bus at each use, which is slow, because --no-gpu-resident/,
        counts: {
          experts: { hostHits: some, deviceHits: 0 },
          simulation: { mappedReadBytes: some },
        },
      },
      {
        options: '--sim vram=24,ram=64 --no-gpu-resident --mlock --check-tensors',
        says: /SIM registered .* model mapping for device access/,
      },
      {
        options: '--sim vram=24,ram=64 --no-gpu-resident --no-mmap',
        says: /they are read into pinned memory of our own/,
        counts: { experts: { hostHits: some } },
      },
      {
        options: '--sim vram=24,ram=64 --ssd-streaming',
        says: /expert cache: 48 experts .* in GPU memory/,
        counts: { experts: { slots: 48, evictions: 0, transit: 0 } },
      },
      {
        options:
          '--sim vram=24,ram=64 --ssd-streaming --ssd-streaming-cache-experts 6 --host-expert-cache 0.001',
        says: /expert cache: 6 experts .* in GPU memory/,
        counts: { experts: { slots: 6, hostPlaces: 9, hostHits: some, misses: some } },
      },
      {
        options:
          '--sim vram=24,ram=64 --ssd-streaming --ssd-streaming-cache-experts 2 --host-expert-cache 0 --direct-io',
        says: /expert cache: 2 experts/,
        counts: { experts: { slots: 2, hostPlaces: 0, hostHits: 0, evictions: some } },
      },
      ...[1, 2, 8].map((count) => ({
        options: `--sim vram=24,ram=64 --weight-paging --weight-paging-slots ${count}`,
        says: new RegExp(`6 layers take turns in ${Math.min(count, 6)} slots?`),
        counts: { pages: { loads: some, hits: some, prefetched: count === 8 ? 0 : some } },
      })),
      {
        options: '--sim vram=24,ram=64 --weight-paging --weight-paging-slots 3 --ssd-streaming',
        says: /6 layers take turns in 3 slots/,
        counts: { pages: { loads: some }, experts: { misses: some } },
      },
      {
        options: '--sim vram=24,ram=64,kind=integrated',
        says: /SIM backend initialized on simulated integrated GPU/,
      },
      {
        options: '--sim vram=24,ram=64,kind=integrated --no-gpu-resident',
        says: /experts are used in place, because --no-gpu-resident was given/,
        counts: { experts: { hostHits: some, deviceHits: 0 } },
      },
      {
        options:
          '--sim vram=24,ram=64,kind=integrated --ssd-streaming --ssd-streaming-cache-experts 13',
        says: /expert cache: 13 experts/,
        counts: { experts: { slots: 13, hostPlaces: 0, misses: some } },
      },
    ]),
  )('the answers are right with %s', expectRight);
});

describe('counters', () => {
  const stableFiles = ['reads', 'readBytes', 'directBytes', 'uploadBytes'] as const;

  it.each([
    '--cpu --ssd-streaming --ssd-streaming-cache-experts 13',
    '--sim vram=2.6,ram=64',
    '--sim vram=24,ram=64 --ssd-streaming --ssd-streaming-cache-experts 6 --host-expert-cache 0.001',
  ])('of two equal runs are equal with %s', async (options) => {
    const runs = await Promise.all(['one', 'two'].map((lock) => ask(options.split(' '), lock)));
    const [one, two] = runs.map(({ stderr }) => parseStats(stderr));

    expect(one?.experts?.['lookups']).toBeGreaterThan(0);
    expect(two?.experts).toEqual(one?.experts);
    expect(stableFiles.map((name) => two?.files?.[name])).toEqual(
      stableFiles.map((name) => one?.files?.[name]),
    );
    expect(two?.simulation?.['mappedReadBytes']).toBe(one?.simulation?.['mappedReadBytes']);
  });

  it('are a table with --stats, in which the parts make up the whole', async () => {
    const { stderr, status } = await run(folder, [
      ...['--cpu', '--ssd-streaming', '--ssd-streaming-cache-experts', '13', '-c', '256'],
      ...['--nothink', '--temp', '0', '--stats', '-p', 'What is 12 + 30?'],
    ]);

    const figure = (label: string): number =>
      Number(new RegExp(`^ds4: +${label} +([0-9]+)`, 'm').exec(stderr)?.[1]);
    expect(figure('experts looked up')).toBeGreaterThan(0);
    expect(figure('in a slot') + figure('on the way') + figure('missed')).toBe(
      figure('experts looked up'),
    );
    expect(stderr).toMatch(/^ds4: read from the file +[0-9.]+ [KM]iB +[0-9.]+ [KM]iB a token/m);
    expect(stderr).not.toContain('simulated');
    expect(status).toBe(0);
  });
});

describe('--perplexity-file', () => {
  it('gives the same line wherever the experts are', async () => {
    const text = folder.file('text', needle(2, 12).prompt);
    const score = (lock: string, options: string): Promise<Outcome> =>
      run(folder, [...options.split(' '), '--perplexity-file', text, '-c', '512', '-q'], {
        env: { DS4_LOCK_FILE: folder.file(lock) },
      });

    const [plain, streamed, simulated] = await Promise.all([
      score('lock-plain', '--cpu'),
      score('lock-streamed', '--cpu --ssd-streaming --ssd-streaming-cache-experts 4'),
      score('lock-simulated', '--sim vram=24,ram=64 --no-gpu-resident'),
    ]);

    expect(plain.stdout).not.toBe('');
    expect(streamed.stdout).toBe(plain.stdout);
    expect(simulated.stdout).toBe(plain.stdout);
  });
});

describe('--expert-trace', () => {
  const layers = 6;
  const used = 2;
  const hashLayers = 3;

  function parse(text: string): { evals: number[]; choices: number[][] } {
    const [header, ...lines] = text.trimEnd().split('\n');
    expect(header).toBe(
      `ds4-expert-trace 2 layers=${layers} experts=8 used=${used} hash=${hashLayers}`,
    );
    const evals = lines.flatMap((line) => /^eval ([0-9]+)$/.exec(line)?.[1] ?? []).map(Number);
    const choices = lines
      .filter((line) => !line.startsWith('eval'))
      .map((line) => line.split(/[ ,]/).map(Number));
    return { evals, choices };
  }

  it('has a line for each token and layer, and the same lines whether experts are streamed or not', async () => {
    const trace = async (name: string, ...options: string[]): Promise<string> => {
      const file = folder.file(name);
      const { status, stderr } = await ask([...options, '--expert-trace', file], `lock-${name}`);
      expect(status, stderr).toBe(0);
      expect(parseStats(stderr).evaluations).toBeGreaterThan(2);
      return readFileSync(file, 'utf8');
    };

    const [plain, streamed] = await Promise.all([
      trace('plain', '--cpu'),
      trace('streamed', '--cpu', '--ssd-streaming', '--ssd-streaming-cache-experts', '5'),
    ]);

    const { evals, choices } = parse(plain);
    const tokens = evals.reduce((total, count) => total + count, 0);
    expect(choices).toHaveLength(tokens * layers);
    expect([...new Set(choices.map(([position]) => position))]).toHaveLength(tokens);
    choices.forEach(([, layer = -1, ...experts]) => {
      expect(layer).toBeLessThan(layers);
      expect(new Set(experts).size).toBe(used);
      expect(Math.max(...experts)).toBeLessThan(8);
    });
    expect(streamed).toBe(plain);
  });

  it('that cannot be written is refused before the model is read', async () => {
    const { stdout, stderr, status } = await ask(['--cpu', '--expert-trace', '/missing/trace']);

    expect(stderr).toMatch(/^ds4: cannot write the expert trace \/missing\/trace: /m);
    expect(stderr).not.toContain('loaded in');
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });
});

// The budget is what is free less 512 MiB, and copies of experts fill it: two sessions have no room side by side.
describe('another context in a chat on a GPU that is full', () => {
  const [probe = sum(1, 1)] = probes;

  function chat(lines: readonly string[], failure = ''): Promise<Outcome> {
    const options = `--interactive --nothink --temp 0 -c 1024 --gpu-vram 1 --sim vram=0.6,ram=64${failure}`;
    return run(folder, options.split(' '), { stdin: { text: `${lines.join('\n')}\n` } });
  }

  it('takes the place of the old one, and the conversation goes on', async () => {
    const asked = ['/ctx 1500', '/ctx 700', '/reset', probe.prompt, '/status', '/quit'];
    const { stdout, stderr, status } = await chat([probe.prompt, ...asked]);

    const answer = `${probe.answer}\n`;
    expect(stdout, stderr).toContain(
      `${answer}Context: 1500 tokens.\nContext: 700 tokens.\nChat reset.\n${answer}`,
    );
    expect(stdout).toMatch(/experts in main memory[^]*of 700 tokens used/);
    expect(status).toBe(0);
  });

  it('that cannot fit is refused before anything changes', async () => {
    const { stdout, stderr, status } = await chat([probe.prompt, '/ctx 900000', '/status']);

    expect(stderr).toMatch(
      /\/ctx: a context of 900000 needs .*the largest context that fits is [0-9]+.*; the context of 1024 stays/,
    );
    expect(stdout).toMatch(/[1-9][0-9]* of 1024 tokens used, 1 turns/);
    expect(status).toBe(0);
  });

  it('that cannot be had gives the old one back, empty, and the conversation goes on', async () => {
    const lines = [probe.prompt, '/ctx 700', '/reset', probe.prompt, '/status'];
    const { stdout, stderr, status } = await chat(lines, ',fail=allocate:9');

    expect(stderr).toMatch(/\/ctx: cannot allocate .*; the context of 1024 stays/);
    expect(stdout.split(`${probe.answer}\n`)).toHaveLength(3);
    expect(stdout).toContain('of 1024 tokens used, 1 turns');
    expect(status).toBe(0);
  });

  it('ends the chat when not even the old one can be had again', async () => {
    const lines = [probe.prompt, '/ctx 700', probe.prompt];
    const { stdout, stderr, status } = await chat(lines, ',fail=allocate:9:0');

    expect(stdout).toBe(`${probe.answer}\n`);
    expect(stderr).toMatch(
      /cannot allocate .*; the context of 1024 that was there before cannot be had any more either: cannot allocate /,
    );
    expect(status).toBe(1);
  });
});
