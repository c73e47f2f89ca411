// The folder that `make bundle` makes, as somebody would unpack and run it.
import { execFile } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from './program.js';
import type { Folder } from './program.js';

const checkout = resolve('.');
let folder: Folder;
let out: string;
let said: Outcome;

interface Outcome {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

async function start(
  program: string,
  args: readonly string[],
  options: { readonly cwd?: string; readonly env?: NodeJS.ProcessEnv } = {},
): Promise<Outcome> {
  try {
    const done = await promisify(execFile)(program, args, { encoding: 'utf8', ...options });
    return { status: 0, ...done };
  } catch (thrown) {
    const { code, stdout, stderr } = thrown as Outcome & { code: number };
    return { status: code, stdout, stderr };
  }
}

/** Makes a bundle of the checkout, or of a folder that looks like one. */
function bundle(
  args: readonly string[],
  root = checkout,
  env: NodeJS.ProcessEnv = process.env,
): Promise<Outcome> {
  return start(process.execPath, [join(root, 'tools', 'bundle.mjs'), ...args], { env });
}

/** Runs a program of the bundle where nothing but itself can be found. */
function runAlone(program: string, args: readonly string[]): Promise<Outcome> {
  return start(program, args, {
    cwd: '/',
    env: { PATH: '/nonexistent', DS4_LOCK_FILE: folder.file('lock') },
  });
}

/** Paths below, as `find` gives them; links are not followed, and nothing but files and folders may be there. */
function filesBelow(top: string): string[] {
  return readdirSync(top, { withFileTypes: true, recursive: true })
    .filter((entry) => !entry.isDirectory())
    .map((entry) => {
      expect(entry.isFile(), entry.name).toBe(true);
      return relative(top, join(entry.parentPath, entry.name));
    })
    .sort();
}

beforeAll(async () => {
  folder = temporaryFolder();
  out = folder.file('bundle');
  said = await bundle(['--backends', 'cpu', '--out', out, '--xz-level', '0']);
});
afterAll(() => {
  folder.remove();
});

const question = ['--cpu', '--nothink', '--temp', '0', '-n', '12', '-p', 'What is 3 + 4?'];

describe('a bundle', () => {
  it('is a folder and the same packed, within 60 MiB', async () => {
    const packed = join(out, 'ds4.tar.xz');
    expect(said).toMatchObject({ status: 0, stderr: '' });
    expect(said.stdout).toMatch(/^\/.*\/ds4\.tar\.xz: [0-9.]+ MiB \(cpu\)\n$/);
    expect(readdirSync(out).sort()).toEqual(['ds4', 'ds4.tar.xz']);
    // At its fastest xz packs worse than for a real bundle.
    expect(statSync(packed).size).toBeLessThan(60 * 2 ** 20);

    const { stdout } = await start('tar', ['-tvf', packed, '--numeric-owner']);

    const entries = stdout
      .trimEnd()
      .split('\n')
      .map((line) => line.split(/\s+/))
      .filter(([mode = '']) => !mode.startsWith('d'));
    expect(entries.map(([, , , , , path]) => path).sort()).toEqual(
      filesBelow(out).filter((path) => path.startsWith('ds4/')),
    );
    expect(new Set(entries.map(([, owner]) => owner))).toEqual(new Set(['0/0']));
    const programs = entries.filter(([mode = '']) => mode.includes('x')).map(([, , , , , p]) => p);
    expect(programs).toEqual(
      expect.arrayContaining(['ds4/ds4', 'ds4/ds4-bench', 'ds4/runtime/node']),
    );
  });

  it('answers without Node on the path, from another folder, and through a link', async () => {
    const link = folder.file('linked');
    symlinkSync(join(out, 'ds4', 'ds4'), link);

    const [direct, linked] = [
      await runAlone(join(out, 'ds4', 'ds4'), question),
      await runAlone(link, question),
    ];

    expect(direct).toMatchObject({ status: 0, stdout: expect.stringMatching(/7/) as unknown });
    expect(direct.stderr).toContain(join(out, 'ds4', 'models', 'ds4-small.gguf'));
    expect([linked.status, linked.stdout]).toEqual([0, direct.stdout]);
  });

  it.each([
    ['ds4', /^ds4\b[^]*--prompt/],
    ['ds4-bench', /^ds4-bench\b[^]*--ctx-start/],
  ])('helps with %s', async (program, text) => {
    const { status, stdout, stderr } = await runAlone(join(out, 'ds4', program), ['--help']);

    expect([status, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(text);
  });

  it('holds the program, its packages and nothing else', () => {
    interface Lock {
      packages: Record<string, { dev?: boolean; optional?: boolean }>;
    }
    const { packages } = JSON.parse(readFileSync('package-lock.json', 'utf8')) as Lock;
    const runtime = Object.entries(packages)
      .filter(([path, { dev }]) => path !== '' && dev !== true && existsSync(path))
      .map(([path]) => path);
    const compiled = filesBelow('dist')
      .filter((path) => !/\.(map|d\.ts)$/.test(path))
      .map((path) => `dist/${path}`);
    const all = filesBelow(join(out, 'ds4'));
    const packageOf = (path: string): string =>
      path.replace(/(node_modules\/(?:@[^/]+\/)?[^/]+)\/(?!.*node_modules\/).*$/, '$1');

    const inPackages = all.filter((path) => path.startsWith('node_modules/'));

    expect([...new Set(inPackages.map(packageOf))].sort()).toEqual(runtime.sort());
    expect(all.filter((path) => !path.startsWith('node_modules/'))).toEqual(
      [
        ...compiled,
        ...['LICENSE', 'README.md', 'package.json', 'ds4', 'ds4-bench'],
        ...['ds4', 'ds4-bench', 'launcher.cjs', 'package.json'].map((file) => `bin/${file}`),
        'lib/libds4-cpu.so',
        'models/ds4-small.gguf',
        'runtime/node',
      ].sort(),
    );
    // What others wrote comes with their terms.
    const terms = inPackages.filter((path) => /\/(licen[cs]e|copying)[^/]*$/i.test(path));
    expect(new Set(terms.map(packageOf))).toEqual(
      new Set(runtime.filter((path) => readdirSync(path).some((name) => /^licen/i.test(name)))),
    );
  });

  it('knows nothing of the folder that it was made from', () => {
    const guilty = filesBelow(join(out, 'ds4')).filter((path) =>
      readFileSync(join(out, 'ds4', path)).includes(`${checkout}/`),
    );

    expect(guilty).toEqual([]);
  });
});

describe('no bundle is made, and nothing is left behind,', () => {
  /** A checkout of which only so much is built. */
  function checkoutWith(name: string, built: Readonly<Record<string, string>>): string {
    const root = folder.file(name);
    mkdirSync(join(root, 'tools'), { recursive: true });
    copyFileSync(join(checkout, 'tools', 'bundle.mjs'), join(root, 'tools', 'bundle.mjs'));
    for (const [path, text] of Object.entries(built)) {
      mkdirSync(dirname(join(root, path)), { recursive: true });
      writeFileSync(join(root, path), text);
    }
    return root;
  }

  it('when it would be larger than it may be', async () => {
    const place = folder.file('large');
    mkdirSync(folder.file('programs'));
    // Packing so much that it becomes too large would take a minute.
    const poorXz = '#!/bin/sh\nfor file; do :; done\nrm "$file" && truncate -s 62M "$file.xz"\n';
    writeFileSync(folder.file('programs/xz'), poorXz, { mode: 0o755 });
    const env = { ...process.env, PATH: `${folder.file('programs')}:${process.env['PATH'] ?? ''}` };

    const outcome = await bundle(['--backends', 'cpu', '--out', place], checkout, env);

    expect([outcome.status, outcome.stdout]).toEqual([1, '']);
    expect(outcome.stderr).toBe(
      'ds4: the bundle has 62.0 MiB, more than the 60.0 MiB that it may have\n',
    );
    expect(readdirSync(place)).toEqual([]);
  });

  it.each([
    ['cpu', []],
    ['cuda', ['--backends', 'cuda']],
  ])('when the library of backend %s is not built', async (backend, args) => {
    const others = backend === 'cpu' ? {} : { 'build/cpu/libds4-cpu.so': '' };
    const root = checkoutWith(`without-${backend}`, others);

    const { status, stderr } = await bundle(args, root);

    const path = join(root, 'build', backend, `libds4-${backend}.so`);
    expect(stderr).toBe(
      `ds4: cannot bundle backend ${backend}: ${path} is not built; run make ${backend}\n`,
    );
    expect(status).toBe(1);
    expect(existsSync(join(root, 'build', 'bundle'))).toBe(false);
  });

  it.each([
    [['--backends', 'metal'], /cannot bundle backend 'metal': .*choose from cpu, cuda, rocm/],
    [['--xz-level', 'best'], /--xz-level takes a number from 0 to 9, not 'best'/],
    [['--nopack'], /cannot make a bundle: .*--nopack/],
  ])('when it is asked for with %j', async (args, sentence) => {
    const { status, stderr } = await bundle(['--out', folder.file('asked'), ...args]);

    expect(stderr).toMatch(sentence);
    expect(stderr.trimEnd().split('\n')).toHaveLength(1);
    expect(status).toBe(1);
    expect(existsSync(folder.file('asked'))).toBe(false);
  });

  it('when it fails half-way: an older one stays as it is', async () => {
    const root = checkoutWith('broken', {
      'build/cpu/libds4-cpu.so': 'no library',
      'dist/cli/main.js': '',
      'build/bundle/ds4/old': 'older',
    });

    const { status, stderr } = await bundle([], root);

    expect(stderr).toMatch(/^ds4: cannot make a bundle: strip failed: .*libds4-cpu\.so/);
    expect(status).toBe(1);
    expect(filesBelow(join(root, 'build', 'bundle'))).toEqual(['ds4/old']);
  });
});
