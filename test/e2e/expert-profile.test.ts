// Warm starts through the real program: what one run has learnt about experts, the next one begins with.
import { existsSync, readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needle, sum } from '../support/probes.js';
import { expectConsistent, parseStats } from '../support/stats-line.js';
import { run, runBench, temporaryFolder } from './program.js';
import type { Folder, Outcome } from './program.js';

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

describe('--expert-profile', () => {
  const header = 'ds4-expert-profile 1 layers=6 experts=8 used=2';
  const streamed = ['--cpu', '--ssd-streaming', '--ssd-streaming-cache-experts', '24'];

  /** One token of an answer: nearly all that is counted is what the cache had at the start. */
  function begin(options: readonly string[]): Promise<Outcome> {
    return run(folder, [
      ...['-p', 'What is 12 + 30?', '-n', '1', '--nothink', '--temp', '0', '-c', '256'],
      ...[...options, '--stats-json'],
    ]);
  }

  /** The lines of a profile behind its header. */
  function linesOf(path: string): number[][] {
    const [first, ...lines] = readFileSync(path, 'utf8').trimEnd().split('\n');
    expect(first).toBe(header);
    return lines.map((line) => line.split(' ').map(Number));
  }

  /** A profile with every expert of the model, in an order of no meaning. */
  function fullProfile(name: string): string {
    const lines = Array.from({ length: 48 }, (_, index) => {
      const number = (index * 29) % 48;
      return `${number % 6} ${Math.floor(number / 6)} ${48 - index}\n`;
    });
    return folder.file(name, `${header}\n${lines.join('')}`);
  }

  it('lets a run begin with the experts of the one before, and changes no answer', async () => {
    const profile = folder.file('profile');
    const cold = await begin([...streamed, '--expert-profile', profile]);
    expect(cold.status, cold.stderr).toBe(0);
    const written = linesOf(profile);

    const warm = await begin([...streamed, '--expert-profile', profile]);

    const [before, after] = [cold, warm].map(({ stderr }) => parseStats(stderr).experts ?? {});
    expect(warm.stdout).toBe(cold.stdout);
    expect(before?.['seeded']).toBe(0);
    expect(after?.['seeded']).toBe(24);
    expect(after?.['lookups']).toBe(before?.['lookups']);
    expect(after?.['hitRate']).toBeGreaterThan(before?.['hitRate'] ?? 1);
    expect(after?.['deviceHits']).toBeGreaterThan(before?.['deviceHits'] ?? 48);
    expect(warm.stderr).toMatch(/^ds4: expert profile .*profile: 24 of \d+ experts read in /m);
    // What was counted is what was looked up, and what was there before counts half.
    expect(written.reduce((sum, [, , hits = 0]) => sum + hits, 0)).toBe(before?.['lookups']);
    const hitsOf = (lines: number[][], [layer, expert]: readonly number[]): number =>
      lines.find((line) => line[0] === layer && line[1] === expert)?.[2] ?? 0;
    const rewritten = linesOf(profile);
    for (const line of written) {
      const [, , hits = 0] = line;
      expect(hitsOf(rewritten, line)).toBe(hits + Math.floor(hits / 2));
    }
  });

  it('reads no more experts than --ssd-streaming-preload-experts says, the first of the file', async () => {
    const profile = fullProfile('limited');
    const { stderr, status } = await begin([
      ...[...streamed, '--expert-profile', profile, '--ssd-streaming-preload-experts', '7'],
    ]);

    expect(status, stderr).toBe(0);
    expect(parseStats(stderr).experts).toMatchObject({ seeded: 7 });
    expect(stderr).toContain('7 of 7 experts read');
  });

  it('is not read into a cold cache, but written', async () => {
    const profile = fullProfile('cold');
    const { stderr, status } = await begin([
      ...[...streamed, '--expert-profile', profile, '--ssd-streaming-cold'],
    ]);

    expect(status, stderr).toBe(0);
    expect(parseStats(stderr).experts).toMatchObject({ seeded: 0 });
    expect(stderr).not.toContain('experts read in');
    expect(linesOf(profile)[0]).not.toEqual([0, 0, 48]);
  });

  it.each([
    '--sim vram=24,ram=64 --ssd-streaming --ssd-streaming-cache-experts 6 --host-expert-cache 0.001',
    '--sim vram=2.6,ram=64',
  ])('serves a chat with %s', async (options) => {
    const profile = fullProfile('chat');
    const { stdout, stderr, status } = await run(
      folder,
      [
        ...['--interactive', '--nothink', '--temp', '0', '-c', '1024', '--stats-json'],
        ...[...options.split(' '), '--expert-profile', profile],
      ],
      { stdin: { text: turns } },
    );

    expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
    const stats = parseStats(stderr);
    expectConsistent(stats);
    const { slots = 0, hostPlaces = 0, seeded = 0 } = stats.experts ?? {};
    expect(seeded).toBe(slots + hostPlaces);
    expect(linesOf(profile).length).toBeGreaterThan(seeded);
  });

  it('serves --perplexity-file and ds4-bench', async () => {
    const profile = folder.file('others');
    const text = folder.file('scored', needle(2, 12).prompt);
    const scored = await run(folder, [
      ...[...streamed, '--perplexity-file', text, '-c', '512', '-q', '--expert-profile', profile],
    ]);
    expect(scored.status, scored.stderr).toBe(0);
    const lines = linesOf(profile);
    expect(lines.length).toBeGreaterThan(24);

    const bench = await runBench([
      ...['--prompt-file', text, '--ctx-start', '16', '--ctx-max', '16', '-n', '2'],
      ...[...streamed, '--expert-profile', profile],
    ]);
    expect(bench.status, bench.stderr).toBe(0);
    expect(bench.stderr).toContain('24 of ');
    expect(linesOf(profile)).not.toEqual(lines);
  });

  it('is left alone where every expert stays in memory', async () => {
    const profile = folder.file('whole');
    const { stderr, status } = await begin(['--cpu', '--expert-profile', profile]);

    expect(status, stderr).toBe(0);
    expect(stderr).toMatch(/^ds4: --expert-profile .*whole is neither used nor written: /m);
    expect(existsSync(profile)).toBe(false);
  });

  it.each([
    ['damaged', `${header}\n0 1 5\n0 1 five\n`, /line 3: "0 1 five" is not LAYER EXPERT HITS/],
    [
      'foreign',
      'ds4-expert-profile 1 layers=43 experts=256 used=6\n',
      /line 1: it belongs to a model of 43/,
    ],
    ['beyond', `${header}\n6 0 5\n`, /line 2: there is no layer 6/],
  ])('that is %s is refused with its line before the model is loaded', async (name, text, line) => {
    const profile = folder.file(name, text);
    const { stdout, stderr, status } = await begin([...streamed, '--expert-profile', profile]);

    expect(stderr).toMatch(line);
    expect(stderr).toMatch(/^ds4: cannot use the expert profile .*; delete it to begin a new one/m);
    expect(stderr).not.toContain('loaded in');
    expect(stdout).toBe('');
    expect(status).toBe(1);
    expect(readFileSync(profile, 'utf8')).toBe(text);
  });

  it('is needed by --ssd-streaming-preload-experts', async () => {
    const { stdout, stderr, status } = await begin([
      ...[...streamed, '--ssd-streaming-preload-experts', '7'],
    ]);

    expect(stderr).toMatch(/^ds4: --ssd-streaming-preload-experts needs --expert-profile FILE/m);
    expect(stdout).toBe('');
    expect(status).toBe(2);
  });
});
