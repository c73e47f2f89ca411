// What is refused before anything is loaded, and what --inspect says about machines that are not here.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { run, temporaryFolder } from './program.js';
import type { Folder } from './program.js';

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

describe('options that contradict each other', () => {
  it.each([
    ['--gpu-resident --ssd-streaming', '--gpu-resident', '--ssd-streaming'],
    ['--weight-paging --gpu-resident', '--gpu-resident', '--weight-paging'],
    ['--direct-io --mmap', '--direct-io', '--mmap'],
    ['--mmap --no-mmap', '--mmap', '--no-mmap'],
    ['--cpu --sim vram=8', '--sim', '--backend cpu'],
    ['--sim vram=8 --gpu-vram 0', '--sim', '--gpu-vram 0'],
    ['--sim vram=8 --gpu-devices 1', '--sim', '--gpu-devices 1'],
    ['--sim vram=8 --gpu-vram 1,1', '--sim', '--gpu-vram 1,1'],
    ['--sim vram=8 --plan-for vram=1,ram=1 --inspect', '--sim', '--plan-for'],
    ['--inspect --stats', '--stats', '--inspect'],
  ])('are named with status 2: %s', async (options, one, other) => {
    const { stdout, stderr, status } = await run(folder, [...options.split(' '), '-p', 'hi']);

    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain(one);
    expect(stderr).toContain(other);
    expect(stdout).toBe('');
    expect(status).toBe(2);
  });
});

describe('what does not fit', () => {
  it.each([
    [
      '--cpu --ssd-streaming --ssd-streaming-cache-experts 1',
      /--ssd-streaming-cache-experts 1 is less than the 2 experts \(0\.21 MiB\) that one token needs/,
    ],
    [
      '--plan-for vram=24,ram=64 --inspect --ssd-streaming --ssd-streaming-cache-experts 1',
      /plan: +cannot run as asked: --ssd-streaming-cache-experts 1 is less than the 2 experts/,
    ],
    [
      '--plan-for vram=24,ram=64 --inspect --ssd-streaming --ssd-streaming-cache-experts 100000',
      /cannot run as asked: --ssd-streaming-cache-experts 100000 is more than the 48 experts \(5\.06 MiB\)/,
    ],
    [
      '--plan-for vram=24,ram=64 --inspect --ssd-streaming --host-expert-cache 5000',
      /cannot run as asked: --host-expert-cache 5000 asks for 5000\.00 GiB of main memory, and the machine has 64\.00 GiB/,
    ],
    [
      '--plan-for vram=2.55,ram=64 --inspect',
      /cannot run as asked: cuda device 0 .*a context of 1024 needs 91\.50 MiB, 51\.20 MiB of 2\.55 GiB free can be used/,
    ],
    [
      '--plan-for vram=2.595,ram=0.02 --inspect',
      /the buffers of 1 reader of weights need 16\.03 MiB of main memory, .* free; free some memory/,
    ],
    [
      '--plan-for vram=0,ram=0.02 --inspect',
      /a context of 1024 needs [0-9.]+ MiB for its KV cache and buffers, 20\.48 MiB are free; the largest context that fits is [0-9]+: try --ctx [0-9]+/,
    ],
  ])('is said with the numbers: %s', async (options, sentence) => {
    const args = [...options.split(' '), '-c', '1024'];
    const inspects = args.includes('--inspect');

    const outcome = await run(folder, [...args, ...(inspects ? [] : ['-p', 'hi'])]);

    expect(inspects ? outcome.stdout : outcome.stderr).toMatch(sentence);
    expect(outcome.stderr).not.toContain('loaded in');
    expect(outcome.status).toBe(inspects ? 0 : 1);
  });
});

interface Row {
  readonly place: string;
  readonly part: string;
  readonly bytes: number;
}

interface Report {
  readonly planRefusal: string | null;
  readonly plan: {
    readonly backend: string;
    readonly weights: { readonly bytes: number; readonly place: string };
    readonly kv: object;
    readonly places: readonly Row[];
    readonly memory: {
      readonly deviceBytes?: number;
      readonly deviceBudgetBytes?: number;
      readonly hostBytes: number;
      readonly hostAvailableBytes: number;
    };
    readonly estimate: { readonly seconds: number; readonly tokensPerSecond: number };
    /** When several devices share the model. */
    readonly parts?: readonly { readonly layers: object; readonly memory: object }[];
  };
}

async function inspect(options: string): Promise<Report> {
  const { stdout, status } = await run(folder, [
    ...['--inspect', '--json', '-c', '1024'],
    ...options.split(' '),
  ]);
  expect(status).toBe(0);
  return JSON.parse(stdout) as Report;
}

describe('--plan-for', () => {
  it.each([
    ['vram=24,ram=64', { place: 'device', pinnedBytes: 0 }, 'device'],
    ['vram=24,ram=64,kind=integrated', { place: 'device' }, 'device'],
    [
      'vram=2.6,ram=64',
      { place: 'mappedExperts', source: 'mmap', experts: { slots: 12, hostBytes: 0 } },
      'pinnedMapping',
    ],
    ['vram=2.595,ram=64', { place: 'mappedExperts' }, 'pinnedMapping'],
    [
      'vram=24,ram=64 --no-gpu-resident --no-mmap',
      { place: 'mappedExperts', pinCopies: true },
      'pinnedMemory',
    ],
    [
      'vram=24,ram=64 --ssd-streaming --ssd-streaming-cache-experts 6 --expert-policy lfru',
      { place: 'streamExperts', experts: { slots: 6, policy: 'lfru' } },
      'file',
    ],
    ['vram=24,ram=64 --weight-paging --weight-paging-slots 2', { pageSlots: 2 }, 'pinnedMapping'],
    ['vram=0,ram=8', { place: 'host', source: 'mmap' }, 'mapping'],
    ['vram=0,ram=8 --no-mmap', { place: 'host', source: 'read' }, 'memory'],
    [
      'vram=0,ram=8 --ssd-streaming --ssd-streaming-cache-experts 6',
      { place: 'streamExperts', experts: { slots: 6 } },
      'file',
    ],
  ])('%s: every weight has one place, within what there is', async (machine, weights, place) => {
    const { plan } = await inspect(`--plan-for ${machine}`);

    const { deviceBytes = 0, deviceBudgetBytes = 0, hostBytes, hostAvailableBytes } = plan.memory;
    expect(plan.backend).toBe(machine.startsWith('vram=0') ? 'cpu' : 'cuda');
    expect(plan.weights).toMatchObject(weights);
    expect(plan.places.find(({ part }) => part === 'experts')?.place).toBe(place);
    expect(plan.places.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(plan.weights.bytes);
    expect(deviceBytes).toBeLessThanOrEqual(deviceBudgetBytes);
    expect(hostBytes).toBeLessThanOrEqual(hostAvailableBytes);
    expect(plan.estimate.tokensPerSecond).toBeCloseTo(1 / plan.estimate.seconds);
  });

  it('asks no library, and shows places, sums and an estimate as a table', async () => {
    const { stdout, stderr, status } = await run(
      folder,
      ['--inspect', '--plan-for', 'vram=2.6,ram=64', '-c', '1024'],
      { env: { DS4_LIBRARY_DIR: folder.path } },
    );

    expect(stdout).toMatch(/^routed experts +0-5 +mapping, pinned +0\.0049$/m);
    expect(stdout).toMatch(/^12 expert slots +GPU memory +0\.0012$/m);
    expect(stdout).toMatch(/^GPU memory: 0\.[0-9]{4} of 0\.1000 GiB$/m);
    expect(stdout).toMatch(/^estimate: .* ms a token \([0-9]+ tokens\/s\), from nominal rates/m);
    expect(stderr).not.toContain('cannot');
    expect(status).toBe(0);
  });

  it('plans as the same machine does when it is simulated', async () => {
    const machine = 'vram=2.6,ram=64';

    const [planned, simulated] = await Promise.all([
      inspect(`--backend sim --plan-for ${machine}`),
      inspect(`--sim ${machine}`),
    ]);

    expect(simulated.plan.weights.place).toBe('mappedExperts');
    expect(planned.plan.weights).toEqual(simulated.plan.weights);
    expect(planned.plan.kv).toEqual(simulated.plan.kv);
    expect(planned.plan.memory).toEqual(simulated.plan.memory);
    expect(planned.plan.places).toEqual(simulated.plan.places);
  });

  it('shows the parts of a model that several GPUs share, and plans as if they were there', async () => {
    const machine = '--plan-for vram=2.59+2.59,ram=64';
    const { stdout } = await run(folder, ['--inspect', '-c', '1024', ...machine.split(' ')]);
    const [planned, simulated] = await Promise.all([
      inspect(`--backend sim ${machine}`),
      inspect('--sim vram=2.59,devices=2,ram=64 --gpu-vram auto'),
    ]);

    expect(stdout).toMatch(/ {2}layers 0 to \d, device 0: 0\.\d+ of 0\.\d+ GiB/);
    expect(stdout).toMatch(/ {2}layers \d to 5, device 1: 0\.\d+ of 0\.\d+ GiB/);
    expect(planned.plan.parts?.map(({ layers }) => layers)).toHaveLength(2);
    expect(planned.plan.parts?.map(({ layers, memory }) => ({ layers, memory }))).toEqual(
      simulated.plan.parts?.map(({ layers, memory }) => ({ layers, memory })),
    );
    expect(planned.plan.memory).toEqual(simulated.plan.memory);
  });
});
