// What a long prompt takes of main memory while experts are streamed: no more than the plan has stated.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { plannedOptions } from '../../src/cli/planned-options.js';
import { Engine, simulate } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import type { ModelDescription } from '../../src/model/index.js';
import { deviceBytesOf, hostBytesOf, planLoad } from '../../src/plan/index.js';
import type { GpuFacts, LoadPlan, PlanRequest } from '../../src/plan/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';
import { tinyModel } from '../support/tiny-model.js';
import { writeGguf } from '../support/gguf-writer.js';

const mib = 2 ** 20;
const threads = 2;
const promptTokens = 500;
/** For threads, tables, what the file's header became, and the runtime's own comings and goings. */
const besidesBytes = 64 * mib;

let folder: string;
let description: ModelDescription;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds4-prefill-'));
  const path = join(folder, 'large.gguf');
  const dims = {
    embedding: 1024,
    width: 1024,
    experts: 48,
    layers: 6,
    ratios: [0, 4, 16, 4, 0, 4, 0],
  };
  writeGguf(tinyModel({ dims, weights: 'outside' })).save(path);
  description = describeModel(openGguf(path));
});
afterAll(() => {
  rmSync(folder, { recursive: true });
});

function statusBytes(line: string): number {
  const kib = new RegExp(`^${line}:\\s*([0-9]+) kB$`, 'm').exec(
    readFileSync('/proc/self/status', 'utf8'),
  );
  return Number(kib?.[1]) * 1024;
}

interface Prefill {
  readonly plan: LoadPlan;
  /** How much more memory this process had at its worst than before; that of a simulated device counts too. */
  readonly grown: number;
  readonly readBytes: number;
}

async function prefill(
  backend: 'cpu' | 'sim',
  gpu: GpuFacts | undefined,
  request: PlanRequest,
): Promise<Prefill> {
  const plan = planLoad(
    description,
    { memoryAvailable: 4096 * mib, threads, gpu },
    { context: 2 * promptTokens, ...request },
  );
  await using engine = new Engine({ description, backend, threads, ...plannedOptions(plan) });
  const before = statusBytes('VmRSS');
  // Makes the peak what there is now.
  writeFileSync('/proc/self/clear_refs', '5');
  await engine.load();
  await using session = await engine.openSession({
    context: plan.context,
    prefillChunk: plan.prefillChunk,
    checkpoints: plan.checkpoints,
  });
  const { vocab } = description.shape;
  const tokens = Int32Array.from({ length: promptTokens }, (_, index) => (index * 7 + 5) % vocab);
  for (let first = 0; first < promptTokens; first += plan.prefillChunk) {
    await session.eval(tokens.subarray(first, first + plan.prefillChunk), { logitsRows: 1 });
  }
  const grown = statusBytes('VmHWM') - before;
  return { plan, grown, readBytes: engine.telemetry().files.readBytes };
}

const card: GpuFacts = {
  backend: 'sim',
  index: 0,
  name: 'a card',
  kind: 'discrete',
  totalBytes: simulatedMachine.vramBytes,
  freeBytes: simulatedMachine.vramBytes,
};

describe.each([2, 16])('a long prompt with %i readers', (readThreads) => {
  const common: PlanRequest = {
    source: 'read',
    readThreads,
    prefillChunk: 256,
    gpu: { copyChunkMib: 16, budgetGib: 1 },
    experts: { streaming: true, cache: { kind: 'experts', count: 12 }, hostTier: false },
  };

  test('on the processor takes what the plan states and little else', async () => {
    const { plan, grown, readBytes } = await prefill('cpu', undefined, common);

    const stated = hostBytesOf(plan);
    // Every expert has passed through, and there were far more of them than memory was stated for.
    expect(readBytes).toBeGreaterThan(description.bytes.total);
    expect(description.bytes.routed).toBeGreaterThan(stated + 2 * besidesBytes);
    expect(grown).toBeLessThan(stated + besidesBytes);
    expect(grown).toBeGreaterThan((plan.weights.fetchBytes ?? Infinity) / 2);
  });

  test('on a simulated GPU takes what the plan states and little else', async () => {
    simulate(simulatedMachine);

    const { plan, grown, readBytes } = await prefill('sim', card, common);

    const device = plan.backend === 'cpu' ? 0 : deviceBytesOf(plan);
    const stated = hostBytesOf(plan) + device;
    expect(plan.weights.place).toBe('streamExperts');
    expect(readBytes).toBeGreaterThan(description.bytes.total);
    expect(grown).toBeLessThan(stated + besidesBytes);
  });
});
