// Files that cannot be read while experts are streamed from them, through the real program.
import { mkdirSync, readdirSync, truncateSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { openGguf } from '../../src/gguf/index.js';
import { endlessModel, Program, run, temporaryFolder } from '../e2e/program.js';
import type { Folder } from '../e2e/program.js';

let folder: Folder;
beforeEach(() => {
  folder = temporaryFolder();
});
afterEach(() => {
  folder.remove();
});

const question = ['-c', '512', '--nothink', '--temp', '0', '-p', 'What is 12 + 30?'];

describe('on a simulated machine', () => {
  /** A run whose temporary files would be here. */
  async function ask(
    options: string,
  ): Promise<Awaited<ReturnType<typeof run>> & { left: string[] }> {
    const temporary = folder.file('tmp');
    mkdirSync(temporary);
    const outcome = await run(folder, [...options.split(' '), ...question], {
      env: { TMPDIR: temporary },
    });
    return { ...outcome, left: readdirSync(temporary) };
  }

  it.each([
    ['while it is copied', '--sim vram=24,ram=64,fail=read:5:0'],
    [
      'while experts are streamed',
      '--sim vram=24,ram=64,fail=read:300:0 --ssd-streaming --ssd-streaming-cache-experts 6',
    ],
    [
      'while pages are loaded',
      '--sim vram=24,ram=64,fail=read:300:0 --weight-paging --weight-paging-slots 2',
    ],
  ])('a file that cannot be read any more %s is named with the offset', async (_, options) => {
    const { stdout, stderr, status, left } = await ask(options);

    const said = stderr.trimEnd().split('\n').at(-1);
    expect(said).toMatch(
      /^ds4: cannot read .*ds4-small\.gguf: Input\/output error after 0 of [0-9]+ bytes at offset [0-9]+$/,
    );
    expect(stdout.trim()).toBe('');
    expect(status).toBe(1);
    expect(left).toEqual([]);
  });

  it('a read that fails once is repeated, and counted', async () => {
    const { stdout, stderr, status } = await ask(
      '--sim vram=24,ram=64,fail=read:300 --ssd-streaming --ssd-streaming-cache-experts 6 --stats',
    );

    expect(stdout).toBe('12 + 30 = 42.\n');
    expect(stderr).toMatch(/reads that were repeated +1$/m);
    expect(status).toBe(0);
  });

  it.each([
    ['while the model is copied', '--direct-io'],
    ['while experts are streamed', '--direct-io --ssd-streaming --ssd-streaming-cache-experts 6'],
  ])(
    'a file system without reads past the page cache is one warning %s, and the answer is right',
    async (_, options) => {
      const { stdout, stderr, status } = await ask(
        `-q --stats --sim vram=24,ram=64,fail=direct:1:0 ${options}`,
      );

      expect(stdout).toBe('12 + 30 = 42.\n');
      expect(stderr.match(/the file system refuses reads past the page cache/g)).toHaveLength(1);
      // Rows of --stats that count nothing are left out.
      expect(stderr).not.toMatch(/ {2}past the page cache +[0-9]/);
      expect(status).toBe(0);
    },
  );

  it('memory that cannot be had for a copy is one warning, and the answer is right', async () => {
    const { stdout, stderr, status } = await ask('-q --sim vram=24,ram=64,fail=allocate:1');

    expect(stdout).toBe('12 + 30 = 42.\n');
    expect(stderr).toMatch(
      /^ds4: the model could not be copied into GPU memory: cannot allocate .*\nds4: prefill: .*\n$/,
    );
    expect(status).toBe(0);
  });

  it('without pinned memory the model is copied from the mapping, and the answer is right', async () => {
    const { stdout, stderr, status } = await ask('-q --sim vram=24,ram=64,fail=pin:1:0');

    expect(stdout).toBe('12 + 30 = 42.\n');
    expect(stderr).toMatch(/the pinned buffers through which weights are copied could not be had/);
    expect(status).toBe(0);
  });

  it('each reason is told once when no way is left', async () => {
    const { stdout, stderr, status } = await ask('-q --sim vram=24,ram=64,fail=allocate:1:0');

    const said = stderr.trimEnd().split('\n').at(-1) ?? '';
    expect(said).toMatch(
      /^ds4: the model could not be copied .*; then the weights outside the experts could not be copied .*there is no other way$/,
    );
    expect(said.match(/the model could not be copied/g)).toHaveLength(1);
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });
});

describe('a model file that is cut while its experts are streamed', () => {
  it('ends the run with its name', async () => {
    const path = endlessModel(folder.file('cut.gguf'));
    const program = new Program(folder, [
      ...[
        '-m',
        path,
        '--cpu',
        '--no-mmap',
        '--ssd-streaming',
        '--ssd-streaming-cache-experts',
        '3',
      ],
      ...['-c', '4096', '-n', '4000', '--nothink', '--temp', '0', '-p', 'hello'],
    ]);
    await program.until(() => program.stdout.length > 0, 'it answered');

    truncateSync(path, Math.min(...openGguf(path).tensors.map(({ offset }) => offset)));
    const { stderr, status } = await program.done;

    expect(stderr.trimEnd().split('\n').at(-1)).toMatch(
      // Between two steps, or by a read within one.
      /^ds4: cannot (go on with .*cut\.gguf: it shrank from [0-9]+ to [0-9]+ bytes|read .*cut\.gguf: the file ended after [0-9]+ of [0-9]+ bytes)/,
    );
    expect(status).toBe(1);
  });
});
