import { describe, expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { chooseBackend, decideBackend, simulationOf } from '../../../src/cli/backend-choice.js';
import type { BackendChoice } from '../../../src/cli/backend-choice.js';
import { readEnvironment } from '../../../src/cli/environment.js';
import type { Settings } from '../../../src/cli/settings.js';
import type { BackendState, DeviceInfo } from '../../../src/engine/index.js';

const notBuilt = (backend: string): BackendState => ({
  kind: 'notBuilt',
  reason: `there is no /x/libds4-${backend}.so; build it with: make ${backend}`,
});
const noDriver: BackendState = { kind: 'noDevice', reason: 'no CUDA driver is installed' };
const broken: BackendState = { kind: 'broken', reason: 'cannot load it: no libcudart' };

function device(index: number): DeviceInfo {
  return {
    kind: 'discrete',
    index,
    cores: 132,
    totalBytes: 2 ** 37,
    freeBytes: 2 ** 37,
    name: 'NVIDIA H200',
    arch: 'sm_90',
  };
}
const one: BackendState = { kind: 'ready', devices: [device(0)] };
const two: BackendState = { kind: 'ready', devices: [device(0), device(1)] };

interface Machine {
  readonly cuda?: BackendState;
  readonly rocm?: BackendState;
  readonly sim?: BackendState;
}

function settings(line: string): Settings {
  const request = parseArguments(line.split(' ').filter((word) => word !== ''));
  if (request.kind !== 'run') {
    throw new Error(request.kind);
  }
  return request.settings;
}

function choose(line: string, machine: Machine = {}): BackendChoice {
  return decideBackend(settings(line), (backend) => machine[backend] ?? notBuilt(backend));
}

function failure(line: string, machine: Machine = {}): { message: string; exitCode: number } {
  try {
    choose(line, machine);
  } catch (thrown) {
    return thrown as Error & { exitCode: number };
  }
  throw new Error('accepted');
}

describe('without being asked, the backend', () => {
  it('is the CPU when no GPU library is built, and one line says so', () => {
    const { backend, notes, warnings } = choose('');

    expect(backend).toBe('cpu');
    expect(notes).toHaveLength(1);
    expect(notes[0]).toMatch(/^backend cpu, because .*libds4-cuda\.so.*libds4-rocm\.so/);
    expect(warnings).toEqual([]);
  });

  it('is the CPU when the library finds no device, and one line has its reason', () => {
    const { backend, notes, warnings } = choose('', { cuda: noDriver });

    expect(backend).toBe('cpu');
    expect(notes).toEqual([
      'backend cpu, because backend cuda cannot be used: no CUDA driver is installed',
    ]);
    expect(warnings).toEqual([]);
  });

  it('is the CPU with a warning when the library cannot be loaded', () => {
    const { backend, notes, warnings } = choose('', { rocm: broken });

    expect(backend).toBe('cpu');
    expect(notes).toEqual([]);
    expect(warnings.join()).toContain('no libcudart');
  });

  it.each([
    [{ cuda: one, rocm: one }, 'cuda'],
    [{ cuda: noDriver, rocm: one }, 'rocm'],
    [{ rocm: one }, 'rocm'],
  ])('is the first GPU backend that has a device: %#', (machine, backend) => {
    const choice = choose('', machine);

    expect(choice.backend).toBe(backend);
    expect(choice.device?.index).toBe(0);
    expect(choice.isAsked).toBe(false);
    expect(choice.notes).toEqual([]);
  });

  it('takes the first of two devices and says so', () => {
    const choice = choose('', { cuda: two });

    expect(choice.device?.index).toBe(0);
    expect(choice.notes.join()).toMatch(/cuda device 0 of 2.*--gpu-devices/);
  });
});

describe('a backend that was asked for', () => {
  it('needs no reason', () => {
    expect(choose('--cpu', { cuda: one })).toMatchObject({ backend: 'cpu', notes: [] });
    expect(choose('--gpu-vram 0', { cuda: one })).toMatchObject({ backend: 'cpu', notes: [] });
    expect(choose('--rocm', { cuda: one, rocm: one })).toMatchObject({
      backend: 'rocm',
      isAsked: true,
    });
  });

  it.each([
    ['--backend cuda', 'cuda', 'libds4-cuda.so', {}],
    ['--rocm', 'rocm', 'libds4-rocm.so', { cuda: one }],
    ['--metal', 'metal', 'libds4-metal', { cuda: one }],
    ['--cuda', 'cuda', 'no CUDA driver is installed', { cuda: noDriver, rocm: one }],
    ['--cpu --gpu-vram 40', 'cuda', 'libds4-cuda.so', {}],
  ])('is refused with its name and reason, and never replaced: %s', (line, name, text, machine) => {
    const { message, exitCode } = failure(line, machine);

    expect(message).toContain(`backend ${name} `);
    expect(message).toContain(text);
    expect(exitCode).toBe(1);
  });

  it('gives way to a placement option, which says so', () => {
    const choice = choose('--cpu --gpu-vram 40', { cuda: one });

    expect(choice.backend).toBe('cuda');
    expect(choice.warnings.join()).toMatch(/--gpu-vram .*--backend cpu has no effect/);
    expect(choose('--cuda --gpu-vram 0', { cuda: one })).toMatchObject({
      backend: 'cpu',
      warnings: [expect.stringContaining('--backend cuda') as string],
    });
  });

  it('may be asked for by an option that only a GPU can serve', () => {
    for (const line of ['--gpu-resident', '--check-tensors', '--gpu-devices 0']) {
      expect(choose(line, { rocm: one })).toMatchObject({ backend: 'rocm', isAsked: true });
    }
    expect(failure('--gpu-resident', { cuda: noDriver }).message).toMatch(
      /^--gpu-resident needs a GPU: .*no CUDA driver/,
    );
  });
});

describe('placement options', () => {
  it.each(['--gpu-vram auto', '--gpu-devices 0'])(
    '%s is a usage error without a GPU backend, and status 1 without a device',
    (line) => {
      expect(failure(line).exitCode).toBe(2);
      expect(failure(line, { cuda: noDriver }).exitCode).toBe(1);
    },
  );

  it.each([
    ['--gpu-devices 2', /device 2.*0\.\.1/],
    ['--gpu-vram 40,40,40', /3 budgets.*2 devices/],
  ])('%s is a usage error on a machine with two devices', (line, sentence) => {
    const { message, exitCode } = failure(line, { cuda: two });

    expect(message).toMatch(sentence);
    expect(exitCode).toBe(2);
  });

  it.each([
    ['--gpu-devices 1', [1]],
    ['--gpu-devices 0,1', [0, 1]],
    ['--gpu-vram 40,12', [0, 1]],
    ['--gpu-vram 40,12 --gpu-devices 1,0', [1, 0]],
    ['--gpu-vram auto', [0, 1]],
    ['--gpu-vram auto --gpu-devices 1', [1]],
    ['--gpu-vram 40', [0]],
    ['', [0]],
  ])('%j takes the devices %j of two, in this order', (line, indices) => {
    const { device, devices, warnings } = choose(line, { cuda: two });

    expect(devices.map(({ index }) => index)).toEqual(indices);
    expect(device?.index).toBe(indices[0]);
    expect(warnings).toEqual([]);
  });
});

describe('the simulated backend', () => {
  it('is taken when a machine is described, and only then', () => {
    expect(choose('--sim vram=4', { cuda: one, sim: one })).toMatchObject({
      backend: 'sim',
      isAsked: true,
      notes: [],
      warnings: [],
    });
    expect(choose('', { sim: one }).backend).toBe('cpu');
  });

  it('is never replaced', () => {
    const { message, exitCode } = failure('--sim vram=4', { cuda: one });

    expect(message).toMatch(/^backend sim cannot be used: .*libds4-sim\.so/);
    expect(exitCode).toBe(1);
  });

  it('needs a machine', () => {
    const { message, exitCode } = failure('--backend sim', { sim: one });

    expect(message).toMatch(/--backend sim .*--sim vram=.*DS4_SIM/);
    expect(exitCode).toBe(2);
  });

  const machine = readEnvironment({ DS4_SIM: 'vram=4' });

  it.each([
    ['', 4],
    ['--backend sim', 4],
    ['--gpu-vram 2', 4],
    ['--sim vram=8', 8],
    ['--cuda', undefined],
    ['--cpu', undefined],
    ['--gpu-vram 0', undefined],
    ['--gpu-devices 0', undefined],
  ])('takes DS4_SIM unless an option says otherwise: %j', (line, gib) => {
    const found = simulationOf({ settings: settings(line), environment: machine });

    expect(found?.vramBytes).toBe(gib === undefined ? undefined : gib * 2 ** 30);
  });
});

describe('a machine to plan for', () => {
  const environment = readEnvironment({});
  const plan = (line: string): Promise<BackendChoice> =>
    chooseBackend({ settings: settings(`--inspect ${line}`), environment });

  it('needs no GPU here', async () => {
    expect(await plan('--plan-for vram=24,ram=64 --gpu-resident')).toMatchObject({
      backend: 'cuda',
      device: { kind: 'discrete', freeBytes: 24 * 2 ** 30 },
    });
    expect(await plan('--plan-for vram=24,ram=64,kind=integrated --rocm')).toMatchObject({
      backend: 'rocm',
      device: { kind: 'integrated' },
    });
  });

  it('may have several, of which as many are used as have a budget', async () => {
    const several = await plan('--plan-for vram=24+12+8,ram=64');
    const bounded = await plan('--plan-for vram=24+12+8,ram=64 --gpu-vram 10,10');

    expect(several.devices.map(({ index, freeBytes }) => [index, freeBytes / 2 ** 30])).toEqual([
      [0, 24],
      [1, 12],
      [2, 8],
    ]);
    expect(bounded.devices.map(({ index }) => index)).toEqual([0, 1]);
    await expect(plan('--plan-for vram=24+12,ram=64 --gpu-vram 4,4,4')).rejects.toThrow(
      'the machine has 2 GPUs',
    );
  });

  it('may have none either', async () => {
    expect(await plan('--plan-for vram=0,ram=64')).toMatchObject({
      backend: 'cpu',
      device: undefined,
    });
  });
});

describe('options that the CPU cannot serve', () => {
  it('--weight-paging is refused with the backends that have it', () => {
    const { message, exitCode } = failure('--cpu --weight-paging');

    expect(message).toMatch(/^--weight-paging .*cuda, rocm and sim/);
    expect(exitCode).toBe(1);
    expect(choose('--weight-paging', { cuda: one })).toMatchObject({ isAsked: true });
    expect(failure('--weight-paging', { cuda: noDriver }).message).toMatch(
      /^--weight-paging needs/,
    );
  });

  it('memory options of a GPU get a warning beside the reason for the CPU', () => {
    const { warnings } = choose('--host-expert-cache 1 --ssd-streaming', { rocm: broken });

    expect(warnings.join()).toMatch(/no libcudart.*--host-expert-cache has no effect/);
  });

  it('--gpu-resident has no effect there, and a warning says so', () => {
    expect(choose('--cpu --gpu-resident').warnings.join()).toContain('--gpu-resident');
    expect(failure('--gpu-resident').exitCode).toBe(1);
  });

  it('--check-tensors is refused', () => {
    const { message, exitCode } = failure('--cpu --check-tensors');

    expect(message).toMatch(/^--check-tensors /);
    expect(exitCode).toBe(1);
  });
});
