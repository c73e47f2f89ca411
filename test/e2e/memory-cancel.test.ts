// Ctrl+C while weights are on their way: it is heard at once, and what comes afterwards is as right as if it had never been.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needle, sum } from '../support/probes.js';
import { parseStats } from '../support/stats-line.js';
import type { StatsLine } from '../support/stats-line.js';
import { endlessWords, lastLine, Program, run, temporaryFolder } from './program.js';
import type { Folder } from './program.js';

const common = ['--nothink', '--temp', '0', '-c', '4096'];

let folder: Folder;
/** Answers in words, and does not end. */
let endless: string;
const question = 'Tell me about the lamp.';
/** What it answers, for a while. */
let right: string;
beforeAll(async () => {
  folder = temporaryFolder();
  endless = endlessWords(folder.file('words.gguf'));
  const asked = ['-m', endless, '--cpu', ...common, '-n', '1000', '-p', question];
  ({ stdout: right } = await run(folder, asked));
});
afterAll(() => {
  folder.remove();
});

/** Where weights are on their way while an answer is written. */
const modes: readonly {
  readonly name: string;
  readonly options: string;
  /** What shows that they were. */
  readonly count: (stats: StatsLine) => number | undefined;
}[] = [
  {
    name: 'experts come from a slow file',
    options:
      '--sim vram=24,ram=64,slow-ms=5 --ssd-streaming --ssd-streaming-cache-experts 2 --host-expert-cache 0',
    count: ({ experts }) => experts?.['misses'],
  },
  {
    name: 'experts move from main memory into slots, and others come from a slow file',
    options:
      '--sim vram=24,ram=64,slow-ms=5 --ssd-streaming --ssd-streaming-cache-experts 12 --host-expert-cache 0.002',
    count: ({ experts }) => experts?.['promotions'],
  },
  {
    name: 'experts that kernels read over the bus move into slots',
    options: '--sim vram=2.68,ram=64',
    count: ({ experts }) => experts?.['promotions'],
  },
  {
    name: 'pages come from a slow file',
    options: '--sim vram=24,ram=64,slow-ms=5 --weight-paging --weight-paging-slots 2',
    count: ({ pages }) => pages?.['loads'],
  },
  {
    name: 'experts come into main memory',
    options: '--cpu --ssd-streaming --ssd-streaming-cache-experts 2',
    count: ({ experts }) => experts?.['misses'],
  },
];

describe.each(modes)('while $name', ({ options, count }) => {
  it('Ctrl+C ends the answer, and the next one has the right words', async () => {
    const program = new Program(
      folder,
      ['-m', endless, '--interactive', ...common, ...options.split(' '), '--stats-json'],
      { stdin: 'open' },
    );

    let said = 0;
    for (const [turn, enough] of [10, 60, 200].entries()) {
      program.child.stdin?.write(`/reset\n${question}\n`);
      await program.until(() => program.stdout.length > said + enough, 'it answered');
      program.kill('SIGINT');
      await program.until(
        () => program.stderr.split('ds4: prefill:').length > turn + 1,
        'it ended the answer',
      );
      said = program.stdout.length;
    }
    program.child.stdin?.end('/quit\n');
    const { stdout, stderr, status, signal } = await program.done;

    const answers = stdout.split('Chat reset.\n').slice(1);
    expect(
      answers.map((answer) => right.startsWith(answer.trimEnd())),
      stdout,
    ).toEqual([true, true, true]);
    expect({ status, signal }, stderr).toEqual({ status: 0, signal: null });
    expect(count(parseStats(stderr))).toBeGreaterThan(0);
  });
});

describe.each(modes.filter(({ options }) => options.includes('slow-ms')))(
  'while a prompt is processed and $name',
  ({ options }) => {
    it('Ctrl+C takes the turn back, and the next answer is right', async () => {
      const [long, short] = [needle(1, 25), sum(47, 38)];
      const slow = options.replace('slow-ms=5', 'slow-ms=30');
      const program = new Program(folder, ['--interactive', ...common, ...slow.split(' ')], {
        stdin: 'open',
      });
      program.child.stdin?.write(`${long.prompt}\n`);
      await program.says(/processing [0-9]+ input tokens: 0\//);

      program.kill('SIGINT');
      await program.says('the turn is taken back');
      program.child.stdin?.end(`${short.prompt}\n/quit\n`);
      const { stdout, stderr, status, signal } = await program.done;

      expect(stderr.split('(100.0%)')).toHaveLength(2);
      expect({ stdout, status, signal }, stderr).toEqual({
        stdout: `${short.answer}\n`,
        status: 0,
        signal: null,
      });
    });
  },
);

describe('while a model is loaded from a slow file', () => {
  it.each([
    ['into the memory of a GPU', ''],
    ['into memory that a GPU shares', ',kind=integrated'],
    ['as far as it is not streamed', ' --ssd-streaming --ssd-streaming-cache-experts 2'],
    ['as far as it is not paged', ' --weight-paging --weight-paging-slots 2'],
    ['into pinned memory', ' --no-gpu-resident --no-mmap'],
    ['past the page cache', ' --direct-io'],
  ])('Ctrl+C ends the run %s with status 130', async (_, options) => {
    const { prompt } = sum(47, 38);
    const all = `--sim vram=24,ram=64,slow-ms=500${options} -p`.split(' ');
    const program = new Program(folder, [...common, ...all, prompt]);
    await program.says(/^ds4: SIM (chunk-copying|loading model tensors)/m);

    program.kill('SIGINT');
    const { stdout, stderr, status, signal } = await program.done;

    expect({ stdout, status, signal }, stderr).toEqual({ stdout: '', status: 130, signal: null });
    expect(stderr).not.toContain('loaded in');
    expect(lastLine(stderr)).not.toMatch(/could not|cannot/);
    // The lock is free again.
    expect((await run(folder, ['--cpu', ...common, '-p', prompt])).status).toBe(0);
  });
});
