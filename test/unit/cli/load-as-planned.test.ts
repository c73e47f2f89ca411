import { describe, expect, it } from 'vitest';
import { loadAsPlanned } from '../../../src/cli/load-as-planned.js';
import { CancelledError, DeviceError, NoMemoryError } from '../../../src/engine/index.js';
import type { LoadStep } from '../../../src/engine/index.js';
import { PlanError, planLoad } from '../../../src/plan/index.js';
import type { LoadPlan, PlanFailure, PlanRequest } from '../../../src/plan/index.js';
import { card, gib, model } from '../plan/machines.js';

function noMemoryFor(step: LoadStep): NoMemoryError {
  const failure = new NoMemoryError('ds4_model_open', 2, 'needs 81 GiB, 80 GiB free');
  failure.loadStep = step;
  return failure;
}

const noMemory = noMemoryFor('weights');
const deviceLost = new DeviceError('ds4_model_open', 5, 'the device said no');
deviceLost.loadStep = 'weights';

/** The real planner for a card, and a loader that fails as told. */
function scripted(
  failures: Error[],
  {
    vramGib = 140,
    ramGib = 256,
    request = {},
  }: { vramGib?: number; ramGib?: number; request?: PlanRequest } = {},
) {
  const asked: (readonly PlanFailure[])[] = [];
  const tried: LoadPlan[] = [];
  const facts = {
    memoryAvailable: ramGib * gib,
    ...(vramGib > 0 ? { gpu: card(vramGib) } : {}),
  };
  return {
    asked,
    tried,
    places: () => tried.map(({ weights }) => weights.place),
    steps: {
      plan: (known: readonly PlanFailure[]) => {
        asked.push([...known]);
        return planLoad(model, facts, { context: 4096, ...request, failures: known });
      },
      load: (plan: LoadPlan) => {
        tried.push(plan);
        const failure = failures.shift();
        return failure === undefined ? Promise.resolve('engine') : Promise.reject(failure);
      },
    },
  };
}

function failing(...steps: LoadStep[]): Error[] {
  return steps.map(noMemoryFor);
}

function readers({ weights }: LoadPlan): number | undefined {
  return weights.readThreads;
}

describe('loading as planned', () => {
  it('asks the planner once when the load succeeds', async () => {
    const { steps, asked } = scripted([]);

    expect(await loadAsPlanned(steps)).toMatchObject({ loaded: 'engine' });
    expect(asked).toEqual([[]]);
  });

  it.each([noMemory, deviceLost])('plans again after %s, with that fact', async (failure) => {
    const { steps, asked, places } = scripted([failure]);

    const result = await loadAsPlanned(steps);

    expect(asked).toEqual([[], [{ step: 'copy', reason: failure.message }]]);
    expect(places()).toEqual(['device', 'mappedExperts']);
    expect(result.plan.weights.place).toBe('mappedExperts');
  });

  it('goes from the mapping to pinned copies to the file, and there to less and less', async () => {
    const { steps, tried } = scripted(
      failing('weights', 'map', 'pin', 'hostTier', 'slots', 'slots'),
      { vramGib: 96 },
    );

    const { plan } = await loadAsPlanned(steps);

    expect(
      tried.map(({ backend, weights }) =>
        backend === 'cpu'
          ? 'cpu'
          : [
              weights.place,
              weights.pinCopies,
              weights.place === 'streamExperts' && weights.experts!.hostBytes > 0,
            ].join(),
      ),
    ).toEqual([
      'device,false,false',
      'mappedExperts,false,false',
      'mappedExperts,true,false',
      'streamExperts,false,true',
      'streamExperts,false,false',
      'streamExperts,false,false',
      'streamExperts,false,false',
    ]);
    const slots = tried.slice(4).map(({ weights }) => weights.experts!.slots);
    expect(slots).toEqual([slots[0], Math.floor(slots[0]! / 2), Math.floor(slots[0]! / 4)]);
    expect(plan.reasons.filter(({ kind }) => kind === 'warning')).toHaveLength(6);
  });

  it('announces each plan that it tries', async () => {
    const { steps, tried } = scripted([noMemory]);
    const announced: LoadPlan[] = [];

    await loadAsPlanned({ ...steps, announce: (plan) => announced.push(plan) });

    expect(announced).toEqual(tried);
  });

  it('ends when the planner has nothing new, and then the first failure is told first', async () => {
    const slots = Array.from({ length: 100 }, () => noMemoryFor('slots'));
    const { steps, tried } = scripted([deviceLost, ...slots]);

    const ended = loadAsPlanned(steps);

    await expect(ended).rejects.toBeInstanceOf(PlanError);
    await expect(ended).rejects.toThrow(
      /^the model could not be copied into GPU memory: the device said no; then .*no other way$/,
    );
    expect(tried.length).toBeLessThan(12);
  });

  it('halves the cache of the CPU too', async () => {
    const { steps, tried } = scripted(failing('slots'), {
      vramGib: 0,
      request: { experts: { streaming: true } },
    });

    await loadAsPlanned(steps);

    const [first = 0, second = 0] = tried.map(({ weights }) => weights.experts?.slots);
    expect(second).toBe(Math.floor(first / 2));
  });

  it('copies from the mapping when there are no pinned buffers, to the same places', async () => {
    const { steps, tried, places } = scripted(failing('ring'));

    const { plan } = await loadAsPlanned(steps);

    expect(places()).toEqual(['device', 'device']);
    expect(tried.map((each) => (each.backend === 'cpu' ? '' : each.upload.path))).toEqual([
      'staged',
      'mapping',
    ]);
    expect(plan.reasons.map(({ text }) => text).join('\n')).toMatch(
      /^the pinned buffers through which weights are copied could not be had: needs 81 GiB/,
    );
  });

  it('reads by one thread when the buffers of more could not be had, and then gives up', async () => {
    const request = { experts: { streaming: true } };
    const { steps, tried } = scripted(failing('readers', 'readers'), { request });

    await expect(loadAsPlanned(steps)).rejects.toThrow(/readers of missing weights.*no other way$/);

    expect(tried.map(readers)).toEqual([16, 1]);
  });

  it('keeps fewer weights outside the experts when those could not be copied', async () => {
    const request = { experts: { streaming: true } };
    const { steps, tried } = scripted(failing('weights', 'map'), { request });

    const { plan } = await loadAsPlanned(steps);

    const [first = 0, second = 0, third = 0] = tried.map(({ weights }) =>
      'pinnedBytes' in weights ? weights.pinnedBytes : 0,
    );
    expect(first).toBe(0);
    expect(second).toBeGreaterThanOrEqual(model.bytes.nonRouted / 2);
    expect(third).toBe(second);
    expect(plan.weights).toMatchObject({ place: 'streamExperts', pinCopies: true });
  });

  it('pages through fewer and fewer slots', async () => {
    const request = { paging: { slots: 8 } };
    const { steps, tried } = scripted(failing('pages', 'pages', 'pages'), {
      request,
      vramGib: 48,
    });

    await loadAsPlanned(steps);

    const slots = tried.map(({ weights }) => ('pageSlots' in weights ? weights.pageSlots : 0));
    expect(slots).toEqual([8, 4, 2, 1]);
  });

  it('takes a failure of no step as the end', async () => {
    const failure = noMemoryFor('other');
    const { steps, asked } = scripted([failure]);

    await expect(loadAsPlanned(steps)).rejects.toBe(failure);
    expect(asked).toHaveLength(1);
  });

  it('takes any other failure as the end', async () => {
    const cancelled = new CancelledError('ds4_model_open', 6, 'cancelled');
    const { steps, asked } = scripted([cancelled]);

    await expect(loadAsPlanned(steps)).rejects.toBe(cancelled);
    expect(asked).toHaveLength(1);
  });

  it('does not plan again where nothing could be left out', async () => {
    const { steps, asked } = scripted([noMemory], { vramGib: 0 });

    await expect(loadAsPlanned(steps)).rejects.toBe(noMemory);
    expect(asked).toHaveLength(1);
  });

  it('names the failed copy when the planner refuses the rest', async () => {
    const { steps } = scripted([noMemory], { request: { gpu: { residentRequired: true } } });

    const ended = loadAsPlanned(steps);

    await expect(ended).rejects.toThrow(/needs 81 GiB, 80 GiB free; without that: .*cannot/);
    await expect(ended).rejects.toBeInstanceOf(PlanError);
  });
});
