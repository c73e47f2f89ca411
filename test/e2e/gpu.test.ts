import { spawnSync } from 'node:child_process';
import { existsSync, rmSync, symlinkSync } from 'node:fs';
import { resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { run, temporaryFolder } from './program.js';
import type { Folder, Outcome } from './program.js';

const cpuLibrary = resolve('build/cpu/libds4-cpu.so');
/** The GPU backend on an emulated card of 16 GiB; `make gpu-emulated` builds it. */
const emulated = resolve('build/emulated');
const hasEmulated = existsSync(`${emulated}/libds4-cuda.so`);

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

/** Few tokens in and out, because an emulated card is slow. */
const question = ['-sys', '', '--nothink', '--temp', '0', '-n', '3', '-p', '12 + 30'];
const patienceMs = 600_000;

function ask(options: readonly string[], libraries: string, env = {}): Promise<Outcome> {
  return run(folder, [...options, ...question], { env: { DS4_LIBRARY_DIR: libraries, ...env } });
}

describe('a GPU library that cannot be loaded', () => {
  let libraries: Folder;
  beforeAll(() => {
    libraries = temporaryFolder();
    libraries.file('libds4-cuda.so', 'not a library');
    symlinkSync(cpuLibrary, libraries.file('libds4-cpu.so'));
  });
  afterAll(() => {
    libraries.remove();
  });

  it('is an error when it was asked for', async () => {
    const { stdout, stderr, status } = await ask(['--cuda'], libraries.path);

    expect(stderr).toMatch(/^ds4: backend cuda cannot be used: cannot load .*libds4-cuda\.so/);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });

  it('leaves the work to the CPU otherwise, and one line says why, even with -q', async () => {
    const { stdout, stderr, status } = await ask(['-q'], libraries.path);

    expect(stderr.match(/backend cpu, because backend cuda cannot be used/g)).toHaveLength(1);
    expect(stdout).not.toBe('');
    expect(status).toBe(0);
  });

  it('is named by --version', async () => {
    const { stdout, status } = await run(folder, ['--version'], {
      env: { DS4_LIBRARY_DIR: libraries.path },
    });

    expect(stdout).toMatch(
      /backends: cpu \(.*\), no cuda \(cannot load .*\), no rocm \(not built\), no sim \(not built\)$/m,
    );
    expect(status).toBe(0);
  });
});

/** A library that the system's loader refuses for want of `needed`. */
function libraryThatNeeds(needed: string, path: string, directory: Folder): void {
  const source = directory.file('one.cpp', 'extern "C" int ds4_one() { return 1; }\n');
  const missing = directory.file(needed);
  for (const options of [
    ['-o', missing, `-Wl,-soname,${needed}`],
    ['-o', path, '-Wl,--no-as-needed', missing],
  ]) {
    const { status, stderr } = spawnSync('g++', ['-shared', '-fPIC', source, ...options]);
    expect(String(stderr)).toBe('');
    expect(status).toBe(0);
  }
  rmSync(missing);
}

const hasCompiler = spawnSync('g++', ['--version']).status === 0;

describe.skipIf(!hasCompiler)('a GPU library whose driver is not installed', () => {
  let libraries: Folder;
  beforeAll(() => {
    libraries = temporaryFolder();
    libraryThatNeeds('libamdhip64.so.77', libraries.file('libds4-rocm.so'), libraries);
    symlinkSync(cpuLibrary, libraries.file('libds4-cpu.so'));
  });
  afterAll(() => {
    libraries.remove();
  });

  it('is an error that names the file and what to install, when it was asked for', async () => {
    const { stdout, stderr, status } = await ask(['--rocm'], libraries.path);

    expect(stderr).toMatch(
      /^ds4: backend rocm cannot be used: the driver's library libamdhip64\.so\.77 is not on this machine, and .*libds4-rocm\.so needs it; install AMD's ROCm runtime .*--cpu\n$/,
    );
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });

  it('leaves the work to the CPU otherwise, and is nothing to warn of', async () => {
    const { stdout, stderr, status } = await ask(['-q'], libraries.path);

    expect(stderr).not.toContain('libamdhip64');
    expect(stdout).not.toBe('');
    expect(status).toBe(0);
  });

  it('is a broken library when what it needs is no part of a driver', async () => {
    const others = temporaryFolder();
    libraryThatNeeds('libanything.so.1', others.file('libds4-rocm.so'), others);

    const { stderr, status } = await ask(['--rocm'], others.path);

    expect(stderr).toMatch(/cannot load the rocm backend from .*: libanything\.so\.1: cannot open/);
    expect(status).toBe(1);
    others.remove();
  });
});

describe.skipIf(!hasEmulated)('on an emulated card', { timeout: patienceMs }, () => {
  let expected: string;
  beforeAll(async () => {
    const { stdout, status } = await run(folder, ['--cpu', ...question]);
    expect(stdout).not.toBe('');
    expect(status).toBe(0);
    expected = stdout;
  });

  it('a model is copied whole and answers as on the CPU', async () => {
    const { stdout, stderr, status } = await ask([], emulated);

    expect(stderr).toMatch(/CUDA backend initialized on Emulated card \(sm_90\) dev=0/);
    expect(stderr).toMatch(/CUDA chunk-copying .* model image/);
    expect(stderr).toMatch(/CUDA model chunk copy complete in [0-9.]+s \(.* tensors\)/);
    expect(stderr).toMatch(/weights: all .* go into GPU memory/);
    expect(stdout).toBe(expected);
    expect(status).toBe(0);
  });

  it.each([
    [['--no-gpu-resident'], {}],
    [['--gpu-resident'], { DS4_CUDA_NO_MODEL_COPY: '1' }],
  ])(
    'its experts stay in main memory with %j and %j, and it answers the same',
    async (options, env) => {
      const { stdout, stderr, status } = await ask(options, emulated, env);

      expect(stderr).toMatch(/CUDA registered .* model mapping for device access/);
      expect(stderr).not.toContain('copy complete');
      expect(stderr.includes('DS4_CUDA_NO_MODEL_COPY forbids')).toBe(
        'DS4_CUDA_NO_MODEL_COPY' in env,
      );
      expect(stdout).toBe(expected);
      expect(status).toBe(0);
    },
  );

  // The patience is far beyond what the emulated card needs for a step on a busy machine: it is the stop that must be found.
  it.each([
    ['its model is copied', 20],
    ['it evaluates', 300],
  ])('that stops answering while %s is one sentence and status 1', async (_, works) => {
    const script = folder.file(
      'stop.mjs',
      `import koffi from ${JSON.stringify(import.meta.resolve('koffi'))};
       koffi.load(${JSON.stringify(`${emulated}/libds4-cuda.so`)})
         .func('void _ZN3ds48emulated4hangEmj(uint64_t, uint32_t)')(${works}, 10000);`,
    );

    const { stdout, stderr, status, signal } = await ask(['-q'], emulated, {
      NODE_OPTIONS: `--import=${script}`,
    });

    expect(stderr).toMatch(/^ds4: .*device 0 has not answered for 10 s and counts as lost; .*\n$/);
    expect(expected.startsWith(stdout.trimEnd())).toBe(true);
    expect(signal).toBeNull();
    expect(status).toBe(1);
  });

  it('says where it was asked to go, and which options have no effect there', async () => {
    const placement = ['--gpu-vram', '8', '--gpu-devices', '0'];

    const { stderr, status } = await ask(
      [...placement, '--threads', '2', '--warm-weights'],
      emulated,
    );

    expect(stderr).toContain('ds4: GPU config: 1 device [0] requested, budgets 8 GB; auto=false\n');
    expect(stderr).toContain('--threads has no effect');
    expect(stderr).toContain('--warm-weights has no effect');
    expect(status).toBe(0);
  });

  it.each([
    [['--gpu-devices', '1'], 2, /--gpu-devices: .*device 1/],
    [['--gpu-vram', '8,8'], 2, /--gpu-vram has 2 budgets/],
    [['--rocm'], 1, /backend rocm cannot be used/],
    [['--gpu-vram', '1', '-c', '4000000'], 1, /cuda device 0 .*needs .*can be used.*--cpu/],
  ])('refuses %j with status %i', async (options, expectedStatus, sentence) => {
    const { stdout, stderr, status } = await ask(options, emulated);

    expect(stderr).toMatch(sentence);
    expect(stdout).toBe('');
    expect(status).toBe(expectedStatus);
  });

  it('--inspect shows the plan and loads nothing', async () => {
    const { stdout, stderr, status } = await run(folder, ['--inspect', '--json'], {
      env: { DS4_LIBRARY_DIR: emulated },
    });

    expect(JSON.parse(stdout)).toMatchObject({
      plan: {
        backend: 'cuda',
        device: { index: 0, name: 'Emulated card', kind: 'discrete' },
        weights: { place: 'device' },
        kv: { place: 'device' },
      },
    });
    expect(stderr).not.toContain('chunk-copying');
    expect(status).toBe(0);
  });
});
