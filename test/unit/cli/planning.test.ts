import { describe, expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { chooseBackend } from '../../../src/cli/backend-choice.js';
import { readEnvironment } from '../../../src/cli/environment.js';
import { planRun } from '../../../src/cli/planning.js';
import type { Run } from '../../../src/cli/run.js';
import { PlanError } from '../../../src/plan/index.js';
import { model } from '../plan/machines.js';

/** Plans for a machine that is only described, so no library is asked. */
async function planned(words: string, variables: Record<string, string> = {}) {
  const request = parseArguments(['--inspect', ...words.split(' ')]);
  if (request.kind !== 'run') {
    throw new Error('not a run');
  }
  const run = { settings: request.settings, environment: readEnvironment(variables) };
  return planRun(run as unknown as Run, await chooseBackend(run), model);
}

describe('a described machine', () => {
  it('is planned for as it is described', async () => {
    const { plan, facts } = await planned('--plan-for vram=48,ram=64,kind=discrete -c 32768');

    expect(facts.memoryAvailable).toBe(64 * 2 ** 30);
    expect(plan).toMatchObject({
      backend: 'cuda',
      device: { name: 'described GPU', kind: 'discrete', freeBytes: 48 * 2 ** 30 },
      weights: { place: 'streamExperts', source: 'direct' },
    });
  });

  it('with several GPUs has a part of the model on each', async () => {
    const { plan, split, facts } = await planned('--plan-for vram=48+48,ram=64');

    expect(facts.gpus?.map(({ index }) => index)).toEqual([0, 1]);
    expect(split?.parts.map(({ layers }) => layers.first)).toEqual([0, expect.any(Number)]);
    expect(split?.parts.at(-1)?.layers.last).toBe(42);
    expect(plan.weights.place).toBe('device');
  });

  it('without GPU memory is a CPU', async () => {
    const { plan } = await planned('--plan-for vram=0,ram=128,kind=discrete');

    expect(plan).toMatchObject({ backend: 'cpu', weights: { place: 'host' } });
  });

  it('that cannot run the model is refused', async () => {
    await expect(planned('--plan-for vram=2,ram=4,kind=discrete')).rejects.toBeInstanceOf(
      PlanError,
    );
  });
});

describe('what options and variables ask of the planner', () => {
  const machine = '--plan-for vram=48,ram=256,kind=discrete';

  it.each<[string, Record<string, string>, object]>([
    ['', {}, { place: 'mappedExperts', pinCopies: false }],
    ['--no-mmap', {}, { place: 'mappedExperts', pinCopies: true, source: 'read' }],
    ['--mlock', {}, { place: 'mappedExperts', lock: true }],
    ['--weight-paging --weight-paging-slots 5', {}, { pageSlots: 5 }],
    [
      '--ssd-streaming --ssd-streaming-cache-experts 300 --expert-policy lfru',
      {},
      { place: 'streamExperts', experts: { slots: 300, policy: 'lfru' } },
    ],
    [
      '--ssd-streaming --host-expert-cache 0',
      { DS4_ROCM_STREAM_READ_WORKERS: '5' },
      { place: 'streamExperts', readThreads: 5, experts: { hostBytes: 0 } },
    ],
    [
      '--ssd-streaming',
      { DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK: '0', DS4_ROCM_STREAM_NO_DIRECT: '1' },
      { place: 'streamExperts', source: 'read', experts: { hostBytes: 0 } },
    ],
    // An option wins over a variable.
    [
      '--ssd-streaming --host-expert-cache 1',
      { DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK: '0' },
      { place: 'streamExperts', experts: { hostBytes: 151 * 7_077_888 } },
    ],
    // These say themselves that they have no effect without streaming.
    ['--ssd-streaming-cache-experts 300', {}, { place: 'mappedExperts' }],
  ])('%s %j', async (options, variables, weights) => {
    const { plan } = await planned(`${machine} ${options}`.trim(), variables);

    expect(plan.weights).toMatchObject(weights);
  });

  it('the reserve of the variable wins over the usual one', async () => {
    const slots = async (variables: Record<string, string>): Promise<number> =>
      (await planned(`${machine} --ssd-streaming`, variables)).plan.weights.experts?.slots ?? 0;

    expect(await slots({ DS4_ROCM_STREAM_FREE_RESERVE_GIB: '4.5' })).toBeGreaterThan(
      await slots({}),
    );
  });

  it('a size that the machine can never have is refused, also where the CPU could take the place of the GPU', async () => {
    await expect(planned(`${machine} --ssd-streaming --host-expert-cache 257`)).rejects.toThrow(
      /--host-expert-cache 257 asks for 257\.00 GiB of main memory, and the machine has 256\.00 GiB/,
    );
    await expect(
      planned(`${machine} --ssd-streaming --ssd-streaming-cache-experts 49GB`),
    ).rejects.toThrow(/49GB asks for 49\.00 GiB, and .* has 48\.00 GiB/);
  });

  it('the size of a buffer is the option, before the variable', async () => {
    const { plan } = await planned(`${machine} --upload-buffer-mib 32`, {
      DS4_CUDA_MODEL_COPY_CHUNK_MB: '128',
    });

    expect(plan).toMatchObject({ upload: { slotBytes: 32 * 2 ** 20 } });
  });
});

describe('--simulate-used-memory', () => {
  const used = '--simulate-used-memory 200GB';

  it.each([
    ['a card', '--plan-for vram=48,ram=256', '--plan-for vram=48,ram=56'],
    [
      'shared memory',
      '--plan-for vram=256,ram=256,kind=integrated',
      '--plan-for vram=256,ram=56,kind=integrated',
    ],
    ['several cards', '--plan-for vram=30+30,ram=256', '--plan-for vram=30+30,ram=56'],
    ['the processor', '--plan-for vram=0,ram=256', '--plan-for vram=0,ram=56'],
  ])(
    'leaves the plan of a machine with so much less, and says so once: %s',
    async (_name, machine, smaller) => {
      const { plan, facts } = await planned(`${machine} ${used}`);
      const { reasons: said, ...rest } = plan;
      const { reasons: others, ...expected } = (await planned(smaller)).plan;
      const sentence =
        'main memory: 200.00 GiB count as taken, because --simulate-used-memory was given; 56.00 GiB are left';

      expect(rest).toEqual(expected);
      expect(said.filter(({ text }) => text !== sentence)).toEqual(others);
      expect(said.filter(({ text }) => text === sentence)).toEqual([
        { kind: 'headline', text: sentence },
      ]);
      expect(facts).toMatchObject({ memoryAvailable: 56 * 2 ** 30, memoryTotal: 56 * 2 ** 30 });
    },
  );

  it('of more than is free is refused with both numbers and status 1', async () => {
    const ended = planned(`--plan-for vram=48,ram=128 ${used}`);

    await expect(ended).rejects.toThrow(
      /^--simulate-used-memory 200: only 128\.00 GiB of main memory are free; name less$/,
    );
    await expect(ended).rejects.toMatchObject({ exitCode: 1 });
  });
});
