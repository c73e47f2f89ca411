// The model that comes with ds4, through the program as a newcomer starts it: no model named.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needle, sum } from '../support/probes.js';
import type { Probe } from '../support/probes.js';
import { lastLine, run, temporaryFolder, timingLine } from './program.js';
import type { Folder } from './program.js';

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

function ask(probe: Probe, ...options: string[]) {
  return run(folder, ['--nothink', '--temp', '0', ...options, '-p', probe.prompt], {
    cwd: folder.path,
  });
}

describe('without a model named', () => {
  it('the small model answers, and one line says that it is used', async () => {
    const { stdout, stderr, status } = await ask(sum(12, 30));

    expect({ stdout, status }).toEqual({ stdout: '12 + 30 = 42.\n', status: 0 });
    expect(stderr.split('\n').filter((line) => line.includes('small model'))).toHaveLength(1);
    expect(lastLine(stderr)).toMatch(timingLine);
  });

  it('it greets in clean English and stops by itself', async () => {
    const { stdout, stderr } = await ask({ name: 'greeting', prompt: 'Hello!', answer: '' });

    expect(stdout).toMatch(/^Hello! [A-Z][A-Za-z ]+ help you\?\n$/);
    expect(stderr).not.toContain('limit of -n');
  });

  it('it thinks first when it is not told otherwise', async () => {
    const args = ['--temp', '0', '-p', 'What is 37 + 48?'];

    const { stdout } = await run(folder, args, { cwd: folder.path });

    expect(stdout).toMatch(/^7 \+ 8 = 15\..*\n37 \+ 48 = 85\.\n$/);
  });
});

describe('sums', () => {
  it.each([sum(10, 99), sum(47, 38), sum(85, 15), sum(64, 29), sum(33, 56)])(
    '$name',
    async (probe) => {
      expect((await ask(probe)).stdout).toBe(`${probe.answer}\n`);
    },
  );
});

describe('code words in a long text', () => {
  it.each([
    { probe: needle(0, 2), options: [] },
    { probe: needle(1, 25), options: [] },
    { probe: needle(2, 60), options: [] },
    { probe: needle(3, 150), options: [] },
    { probe: needle(4, 300), options: [] },
    { probe: needle(5, 60), options: ['--quality'] },
    { probe: needle(5, 60), options: ['--prefill-chunk', '7'] },
    { probe: needle(5, 60), options: ['-t', '1', '--no-mmap'] },
  ])('$probe.name $options', async ({ probe, options }) => {
    const { stdout, status } = await ask(probe, ...options);

    expect({ stdout, status }).toEqual({ stdout: `${probe.answer}\n`, status: 0 });
  });
});

describe('a chat', () => {
  it('remembers what was said two turns ago', async () => {
    const turns = 'My name is Nora.\nWhat is 20 + 22?\nWhat is my name?\n/quit\n';

    const { stdout, status } = await run(folder, ['--interactive', '--nothink', '--temp', '0'], {
      cwd: folder.path,
      stdin: { text: turns },
    });

    expect(status).toBe(0);
    expect(stdout).toMatch(/Hello Nora!\n20 \+ 22 = 42\.\nYour name is Nora\.\n$/);
  });
});
