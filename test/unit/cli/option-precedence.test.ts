// An option wins over the variable that says the same; docs/cli.md has the pairs.
import { describe, expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { chooseBackend, simulationOf } from '../../../src/cli/backend-choice.js';
import { readEnvironment } from '../../../src/cli/environment.js';
import { planRun } from '../../../src/cli/planning.js';
import type { Run } from '../../../src/cli/run.js';
import { sayStats } from '../../../src/cli/stats.js';
import type { LoadPlan } from '../../../src/plan/index.js';
import { model } from '../plan/machines.js';

const card = '--plan-for vram=48,ram=256,kind=discrete';
const large = '--plan-for vram=140,ram=256,kind=discrete';
const streaming = `${card} --ssd-streaming`;

function runOf(words: string, variables: Record<string, string>): Run {
  const request = parseArguments(words.split(' '));
  if (request.kind !== 'run') {
    throw new Error('not a run');
  }
  return {
    settings: request.settings,
    environment: readEnvironment(variables),
  } as unknown as Run;
}

/** Without what it says. */
async function planned(
  words: string,
  variables: Record<string, string> = {},
): Promise<{ plan: Omit<LoadPlan, 'reasons'>; texts: string }> {
  const run = runOf(`--inspect ${words}`, variables);
  const { reasons, ...plan } = planRun(run, await chooseBackend(run), model).plan;
  return { plan, texts: reasons.map(({ text }) => text).join('\n') };
}

describe('an option wins over its variable, and the plan says so', () => {
  it.each<[option: string, variable: string, value: string, before: string]>([
    ['--prefill-chunk 1024', 'DS4_METAL_PREFILL_CHUNK', '512', large],
    ['--no-gpu-resident', 'DS4_CUDA_COPY_MODEL_CHUNKED', '1', large],
    ['--no-gpu-resident', 'DS4_CUDA_COPY_MODEL', '1', large],
    ['--upload-buffer-mib 32', 'DS4_CUDA_MODEL_COPY_CHUNK_MB', '128', large],
    ['--ssd-streaming-cache-experts 300', 'DS4_ROCM_STREAM_FREE_RESERVE_GIB', '4.5', streaming],
    ['--ssd-streaming-cache-experts 300', 'DS4_ROCM_STREAM_FREE_RESERVE_GB', '4', streaming],
    ['--ssd-streaming-cache-experts 10GB', 'DS4_SSD_AUTO_CACHE_PCT', '50', streaming],
    ['--host-expert-cache 1', 'DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK', '0', streaming],
    ['--direct-io', 'DS4_ROCM_STREAM_NO_DIRECT', '1', streaming],
    ['--direct-io', 'DS4_CUDA_NO_DIRECT_IO', '1', streaming],
  ])('%s before %s=%s', async (option, variable, value, machine) => {
    const both = await planned(`${machine} ${option}`, { [variable]: value });
    const alone = await planned(`${machine} ${option}`);

    expect(both.plan).toEqual(alone.plan);
    expect(both.texts).toMatch(new RegExp(`${variable} has no effect`));
    expect(alone.texts).not.toContain(variable);
  });

  it.each([
    ['DS4_METAL_PREFILL_CHUNK', '512', large],
    ['DS4_CUDA_MODEL_COPY_CHUNK_MB', '128', large],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', '4.5', streaming],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GB', '4', streaming],
    ['DS4_SSD_AUTO_CACHE_PCT', '50', streaming],
    ['DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK', '0', streaming],
    ['DS4_ROCM_STREAM_MODEL_CACHE_GB', '2', streaming],
    ['DS4_ROCM_STREAM_READ_WORKERS', '3', streaming],
    ['DS4_ROCM_STREAM_NO_DIRECT', '1', streaming.replace('ram=256', 'ram=64')],
    ['DS4_CUDA_NO_DIRECT_IO', '1', streaming.replace('ram=256', 'ram=64')],
    ['DS4_CUDA_NO_MODEL_COPY', '', large],
    ['DS4_CUDA_DIRECT_MODEL', '', large],
    ['DS4_CUDA_WEIGHT_CACHE', '', large],
    ['DS4_CUDA_WEIGHT_PRELOAD', '', large],
    ['DS4_ROCM_REGISTERED_WEIGHTS', '0', streaming],
    ['DS4_CUDA_KEEP_MODEL_PAGES', '', large.replace('ram=256', 'ram=64')],
  ])('%s=%s counts where no option says the same', async (variable, value, machine) => {
    const set = await planned(machine, { [variable]: value });

    expect(set.plan).not.toEqual((await planned(machine)).plan);
    expect(set.texts).not.toMatch(new RegExp(`${variable}.*has no effect`));
  });

  it('--gpu-vram and DS4_ROCM_STREAM_MODEL_CACHE_GB are both limits: the smaller one counts', async () => {
    const limited = { DS4_ROCM_STREAM_MODEL_CACHE_GB: '2' };
    const deviceBytes = async (words: string, variables = {}): Promise<number> => {
      const { weights } = (await planned(`${streaming} ${words}`, variables)).plan;
      return 'deviceBytes' in weights ? weights.deviceBytes : 0;
    };

    expect(await deviceBytes('--gpu-vram 20', limited)).toBeLessThanOrEqual(2 * 2 ** 30);
    expect(await deviceBytes('--gpu-vram 3 -c 1024', limited)).toBe(
      await deviceBytes('--gpu-vram 3 -c 1024'),
    );
  });

  it('--sim is the machine, whatever DS4_SIM describes', () => {
    const variables = { DS4_SIM: 'vram=99' };

    expect(simulationOf(runOf('--sim vram=8', variables))).toMatchObject({
      vramBytes: 8 * 2 ** 30,
    });
    expect(simulationOf(runOf('--nothink', variables))).toMatchObject({
      vramBytes: 99 * 2 ** 30,
    });
  });
});

it('only a variable that forbids the copy wins over its option, with a warning', async () => {
  const { plan, texts } = await planned(`${large} --gpu-resident`, { DS4_CUDA_NO_MODEL_COPY: '' });

  expect(plan.weights.place).toBe('mappedExperts');
  expect(texts).toContain('--gpu-resident has no effect: DS4_CUDA_NO_MODEL_COPY forbids the copy');
});

describe('variables about what this program does not do', () => {
  it.each([
    ['DS4_CUDA_Q8_F16_CACHE_MB', '0'],
    ['DS4_CUDA_Q8_F16_CACHE_RESERVE_MB', '512'],
    ['DS4_CUDA_NO_Q8_F16_CACHE', ''],
  ])('%s=%s is answered with a sentence, whatever the plan', async (variable, value) => {
    for (const machine of [large, streaming, `${large} --cpu`, '--plan-for vram=60+60,ram=64']) {
      const { texts } = await planned(machine, { [variable]: value });

      expect(texts.split(`${variable} has no effect: Q8_0 weights are`)).toHaveLength(2);
    }
  });
});

it('variables for a GPU are said to have no effect on the processor', async () => {
  const names = [
    'DS4_CUDA_COPY_MODEL_CHUNKED',
    'DS4_CUDA_NO_MODEL_COPY',
    'DS4_CUDA_KEEP_MODEL_PAGES',
  ];
  const { texts } = await planned(
    `${large} --cpu`,
    Object.fromEntries(names.map((name) => [name, '1'])),
  );

  for (const name of names) {
    expect(texts).toContain(`${name} has no effect with the cpu backend`);
  }
});

it('--stats-json wins over the variables that ask for --stats', () => {
  const said: string[] = [];
  const terminal = {
    timing: (text: string) => said.push(`text ${text}`),
    raw: (text: string) => said.push(`json ${text}`),
  };
  const run = runOf('--stats-json', { DS4_ROCM_STREAM_CACHE_STATS: '' });
  const empty = new Proxy({}, { get: () => 0 });
  const groups = { experts: empty, files: empty, pages: empty, device: empty, simulation: empty };
  const engine = { telemetry: () => ({ tokensDone: 1, evals: 1, ...groups }) as never };

  sayStats({ ...run, terminal } as never, { engine, plan: { weights: {} } });

  expect(said).toHaveLength(1);
  expect(said[0]).toMatch(/^json \{/);
});
