// One model on several simulated GPUs through the real program: the answers are those of one.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needle, sum } from '../support/probes.js';
import { expectConsistent, parseStats } from '../support/stats-line.js';
import { run, temporaryFolder } from './program.js';
import type { Folder, Outcome } from './program.js';

const probes = [needle(1, 25), sum(47, 38)];
const [first, second] = probes.map(({ prompt }) => prompt);
const answers = probes.map(({ answer }) => `${answer}\n`).join('');

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

const quiet = ['--nothink', '--temp', '0'];

function ask(options: string, lines = [first, second, '/quit', '']): Promise<Outcome> {
  return run(
    folder,
    ['--interactive', ...quiet, '-c', '1024', ...options.split(' '), '--stats-json'],
    { stdin: { text: lines.join('\n') } },
  );
}

// A budget is what is free less 2 GiB, less 512 MiB that nobody counts: here some 90 MiB, and kernels want 64 of them.
const split = '--sim devices=2,vram=2.59 --gpu-devices 0,1';

describe('a model that one GPU has no room for', () => {
  it.each([
    [
      split,
      /layers 0 to \d with the embedding go to sim device 0.*\n.*output head go(es)? to sim device 1/,
    ],
    [
      '--sim devices=2,vram=2.59 --gpu-devices 1,0',
      /embedding go to sim device 1.*\n.*to sim device 0/,
    ],
    [
      '--sim devices=2,vram=2.59 --gpu-vram auto',
      /embedding go to sim device 0.*\n.*to sim device 1/,
    ],
    ['--sim devices=2,vram=1,used=0.41 --gpu-vram 1,1', /budgets 1,1 GB; auto=false/],
    ['--sim devices=3,vram=1,used=0.414 --gpu-vram 1,1,1', /output head (go|goes) to sim device 2/],
    ['--sim devices=2,vram=2.582 --gpu-vram auto', /output head .* left to the processor/],
    [`${split} --gpu-resident`, /--gpu-resident makes no difference with several GPUs/],
    ['--sim devices=2,vram=2.59,kind=integrated --gpu-vram auto', /to sim device 1/],
  ])('is answered alike with %s', async (options, says) => {
    const { stdout, stderr, status } = await ask(options);

    expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
    expect(stderr).toMatch(says);
    expect(stderr).toContain('SIM backend initialized on');
    expectConsistent(parseStats(stderr));
  });

  it.each([
    [12, 0],
    [90, 1],
  ])(
    'keeps the layers of a GPU whose copy fails (upload %i, device %i), with their experts in main memory',
    async (upload, device) => {
      const { stdout, stderr, status } = await ask(
        split.replace('2.59', `2.59,fail=send:${upload}`),
      );

      expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
      expect(stderr).toContain(
        `device ${device}: the model could not be copied into GPU memory: cannot upload weights`,
      );
      const { experts, simulation } = parseStats(stderr);
      expect(experts?.['lookups']).toBeGreaterThan(0);
      expect(simulation?.['pinnedBytes']).toBeGreaterThan(0);
    },
  );

  it('may get another context in a chat', async () => {
    const lines = [first, '/ctx 700', '/reset', first, '/quit', ''];
    const { stdout, stderr, status } = await ask(split, lines);

    const answer = `${probes[0]?.answer ?? ''}\n`;
    expect(stdout, stderr).toContain(`${answer}Context: 700 tokens.\n`);
    expect(stdout.endsWith(answer)).toBe(true);
    expect(stderr.match(/memory: KV /g)).toHaveLength(2);
    expect(status).toBe(0);
  });

  it('is shown part by part by --inspect', async () => {
    const options = ['-c', '1024', ...split.split(' '), '--inspect'];
    const text = await run(folder, options);
    const json = await run(folder, [...options, '--json']);

    expect(text.stdout).toMatch(/ {2}layers 0 to \d, device 0: 0\.\d+ of 0\.\d+ GiB/);
    expect(text.stdout).toMatch(/routed experts +\S+ +GPU memory, device 1/);
    const { plan } = JSON.parse(json.stdout) as {
      plan: {
        weights: { bytes: number; deviceBytes: number };
        memory: { deviceBytes: number; deviceBudgetBytes: number };
        parts: { device: { index: number }; layers: object; memory: { deviceBytes: number } }[];
      };
    };
    expect(plan.parts.map(({ device }) => device.index)).toEqual([0, 1]);
    expect(plan.weights.deviceBytes).toBe(plan.weights.bytes);
    expect(plan.parts.reduce((bytes, { memory }) => bytes + memory.deviceBytes, 0)).toBe(
      plan.memory.deviceBytes,
    );
    expect(plan.memory.deviceBytes).toBeLessThanOrEqual(plan.memory.deviceBudgetBytes);
  });
});

it('a model that the first GPU has room for stays there', async () => {
  const { stdout, stderr, status } = await ask('--sim devices=2,vram=24 --gpu-devices 0,1');

  expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
  expect(stderr).toMatch(/GPU config: 2 devices \[0,1\] requested, budgets 22,22 GB; auto=true/);
  expect(stderr).toContain('sim device 1 (simulated discrete GPU) stays empty');
});

describe('several GPUs are refused', () => {
  it.each([
    ['--gpu-vram auto --ssd-streaming', 1, /--ssd-streaming is for one GPU.*shared by 2 \(0, 1\)/],
    ['--gpu-devices 0,1 --weight-paging', 1, /--weight-paging is for one GPU/],
    ['--gpu-devices 0,2', 2, /devices 0\.\.1/],
  ])('with %s', async (options, expected, sentence) => {
    const { stderr, status } = await run(folder, [
      '--sim',
      'devices=2,vram=24',
      ...options.split(' '),
      '-p',
      'hi',
    ]);

    expect(stderr).toMatch(sentence);
    expect(status).toBe(expected);
  });

  it('but one of them with a budget may stream', async () => {
    const { stdout, stderr, status } = await ask(
      '--sim devices=2,vram=24,ram=64 --gpu-devices 1 --gpu-vram 3 --ssd-streaming',
    );

    expect({ stdout, status }, stderr).toEqual({ stdout: answers, status: 0 });
    expect(stderr).toContain('GPU config: 1 device [1] requested, budgets 3 GB; auto=false');
  });
});
