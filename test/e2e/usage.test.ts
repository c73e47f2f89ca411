import { createServer } from 'node:net';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bin, environment, model, run, temporaryFolder } from './program.js';
import type { Folder } from './program.js';

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

describe('help and version', () => {
  it('prints the page on stdout, without escapes', async () => {
    const { stdout, stderr, status } = await run(folder, ['--help']);

    expect(stdout).toContain('Usage: ds4 ');
    expect(stdout).toContain('Prompt And Sampling:');
    expect(stdout).not.toContain('\u001b');
    expect(stderr).toBe('');
    expect(status).toBe(0);
  });

  it('prints a topic', async () => {
    const { stdout, status } = await run(folder, ['--help', 'distributed']);

    for (const option of ['--role', '--layers', '--listen', '--coordinator']) {
      expect(stdout).toContain(option);
    }
    expect(status).toBe(0);
  });

  it('refuses an unknown topic', async () => {
    const { stdout, stderr, status } = await run(folder, ['--help', 'nonsense']);

    expect(stdout).toBe('');
    expect(stderr).toMatch(/^ds4: .*'nonsense'/);
    expect(status).toBe(2);
  });

  it('prints one line with the version and the backends', async () => {
    const { stdout, stderr, status } = await run(folder, ['--version']);

    expect(stdout).toMatch(/^ds4 [0-9.]+, .*cpu.*\n$/);
    expect(stderr).toBe('');
    expect(status).toBe(0);
  });

  it('loads commander and the option table for help, and no other package and no native code', async () => {
    const log = folder.file('modules', '');
    const hook = folder.file(
      'hook.mjs',
      `import { appendFileSync } from 'node:fs';
       export async function load(url, context, next) {
         appendFileSync(${JSON.stringify(log)}, url + '\\n');
         return next(url, context);
       }`,
    );
    const register = folder.file(
      'register.mjs',
      `import { register } from 'node:module';
       register(${JSON.stringify(`file://${hook}`)});`,
    );

    const { status } = await run(folder, ['--help'], {
      env: { NODE_OPTIONS: `--import=file://${register}` },
    });

    const urls = readFileSync(log, 'utf8').split('\n');
    const packages = urls.flatMap(
      (url) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1] ?? [],
    );
    const rooms = urls.flatMap((url) => /\/dist\/([a-z]+)\//.exec(url)?.[1] ?? []);
    expect(status).toBe(0);
    expect([...new Set(packages)]).toEqual(['commander']);
    expect([...new Set(rooms)].sort()).toEqual(['cli', 'error']);
    expect(urls.filter((url) => /\/(chat|load|terminal|style)\.js$/.test(url))).toEqual([]);
  });
});

describe('the launcher', () => {
  it('works through a symbolic link, from any folder', () => {
    const link = join(folder.path, 'linked-ds4');
    symlinkSync(bin, link);

    const { stdout, status } = spawnSync(link, ['--version'], { cwd: '/', encoding: 'utf8' });

    expect(stdout).toMatch(/^ds4 /);
    expect(status).toBe(0);
  });

  it('says to run make when the program is not built', () => {
    const copy = join(folder.path, 'copy');
    mkdirSync(copy);
    cpSync(join(bin, '..'), join(copy, 'bin'), { recursive: true });

    const { stderr, status } = spawnSync(join(copy, 'bin', 'ds4'), ['--help'], {
      encoding: 'utf8',
    });

    expect(stderr).toMatch(/^ds4: .*not built.*make/);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(status).toBe(1);
  });
});

describe('usage errors', () => {
  it.each([
    [['--frobnicate'], 'ds4: unknown option: --frobnicate'],
    [['hello'], 'ds4: unknown option: hello'],
    [['--ctx=4096'], 'ds4: unknown option: --ctx=4096'],
    [['-p'], 'ds4: missing value for -p'],
    [['--listen', '127.0.0.1'], 'ds4: --listen requires an argument'],
    [['-c', '8k', '-p', 'hi'], 'ds4: invalid value for -c: 8k'],
    [['-n', '0'], 'ds4: invalid value for -n: 0'],
    [['--temp', 'nan'], 'ds4: invalid value for --temp: nan'],
    [['--top-p', '1.5'], 'ds4: invalid value for --top-p: 1.5'],
    [['--seed', '0'], 'ds4: invalid value for --seed: 0'],
    [['-t', 'x'], 'ds4: invalid value for -t: x'],
    [['--prompt-file', 'missing.txt'], 'ds4: failed to open prompt file: missing.txt'],
    [['--backend', 'vulkan', '-p', 'hi'], 'ds4: invalid backend: vulkan'],
    [['--gpu-vram', 'abc', '-m', model], "ds4: --gpu-vram: not a number: 'abc'"],
    [['--dump-tokens'], 'ds4: --dump-tokens needs a prompt: -p or --prompt-file'],
    [['--gpu-resident', '--ssd-streaming', '-p', 'hi'], 'ds4: --gpu-resident and --ssd-streaming'],
    [['--ctx', '2147483648'], 'ds4: invalid value for --ctx: 2147483648'],
  ])('%j', async (args, first) => {
    const { stdout, stderr, status } = await run(folder, args);

    expect(stderr.startsWith(first)).toBe(true);
    expect(stderr.split('\n').every((line) => line === '' || line.startsWith('ds4: '))).toBe(true);
    expect(stdout).toBe('');
    expect(status).toBe(2);
  });

  it.each(['5', '5:', ':5', '9:3', '1:2:3', 'a:b', '0:OUTPUT'])('--layers %s', async (layers) => {
    const { stderr, status } = await run(folder, [
      '--role',
      'worker',
      '--coordinator',
      '127.0.0.1',
      '9000',
      '--layers',
      layers,
    ]);

    expect(stderr).toMatch(`ds4: invalid --layers ${layers}: `);
    expect(status).toBe(2);
  });

  it('says that stdin holds no prompt', async () => {
    const { stderr, status } = await run(folder, ['-m', model], { stdin: 'ignore' });

    expect(stderr).toMatch(/^ds4: no prompt: stdin is empty/);
    expect(status).toBe(2);
  });
});

describe('what this build cannot do', () => {
  it.each([
    [['--backend', 'rocm'], /backend rocm .*libds4-rocm\.so.*make rocm/],
    [['--cuda'], /backend cuda .*libds4-cuda\.so.*make cuda/],
    [['--metal'], /backend metal .*libds4-metal/],
    [['--gpu-resident'], /--gpu-resident .*libds4-cuda\.so/],
    [['--cpu', '--check-tensors'], /--check-tensors .*cpu/],
    [['--ssd-streaming-full-layers', '2'], /--ssd-streaming-full-layers .*layers that stay whole/],
    [['--cpu', '--weight-paging'], /--weight-paging .*cpu.*cuda, rocm and sim/],
    [['--sim', 'vram=8'], /backend sim .*libds4-sim\.so.*make sim/],
    [['--mtp', 'draft.gguf'], /--mtp .*draft models/],
    [['--kv-tiered', '25,25,50'], /--kv-tiered .*KV tiers/],
  ])('%j is refused in one sentence before the model is read', async (args, sentence) => {
    const { stdout, stderr, status } = await run(
      folder,
      [...args, '-p', 'hi', '-m', 'missing.gguf'],
      { env: { DS4_LIBRARY_DIR: folder.path } },
    );

    expect(stderr).toMatch(sentence);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });

  it('does not start as a coordinator, whether its port is free or not', async () => {
    const server = createServer();
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
    const { port } = server.address() as { port: number };

    const { stdout, status } = await run(folder, [
      '-m',
      model,
      '--role',
      'coordinator',
      '--layers',
      '0:3',
      '--listen',
      '127.0.0.1',
      String(port),
      '-p',
      'hi',
    ]);
    server.close();

    expect(stdout).toBe('');
    expect(status).toBe(1);
  });
});

describe('the model, when none is named,', () => {
  it('is ds4flash.gguf of the current folder', async () => {
    const here = temporaryFolder();
    writeFileSync(here.file('ds4flash.gguf'), 'x'.repeat(40));

    const { stderr, status } = await run(here, ['-p', 'hi']);
    here.remove();

    expect(stderr).toContain('ds4flash.gguf');
    expect(status).toBe(1);
  });

  it('is the small one that comes with ds4, and one line says so', async () => {
    const { stdout, stderr, status } = await run(folder, ['-n', '4', '-p', 'hi']);

    expect(stderr.match(/small model that comes with ds4/g)).toHaveLength(1);
    expect(stdout.length).toBeGreaterThan(1);
    expect(status).toBe(0);
  });

  it('is asked for when even that one is missing', () => {
    const copy = join(folder.path, 'without-models');
    const root = join(bin, '..', '..');
    for (const part of ['bin', 'dist', 'package.json']) {
      cpSync(join(root, part), join(copy, part), { recursive: true });
    }
    for (const part of ['node_modules', 'build']) {
      symlinkSync(join(root, part), join(copy, part));
    }

    const { stderr, status } = spawnSync(join(copy, 'bin', 'ds4'), ['-p', 'hi'], {
      cwd: folder.path,
      env: environment(folder),
      encoding: 'utf8',
    });

    expect(stderr).toMatch(/^ds4: no model: name a GGUF file with -m .*ds4-small\.gguf/m);
    expect(status).toBe(1);
  });
});
