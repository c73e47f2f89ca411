import type { ExpertMemoryPlan, GpuPlan, LoadPlan, SplitPlan } from './plan.js';

function sum(plans: readonly LoadPlan[], pick: (plan: LoadPlan) => number): number {
  return plans.reduce((bytes, plan) => bytes + pick(plan), 0);
}

/** The caches of all parts as one. */
function sharedExperts(plans: readonly LoadPlan[]): ExpertMemoryPlan | undefined {
  return plans
    .flatMap(({ weights: { experts } }) => (experts === undefined ? [] : [experts]))
    .reduce<ExpertMemoryPlan | undefined>(
      (all, one) =>
        all === undefined
          ? one
          : {
              ...all,
              slotBytes: all.slotBytes + one.slotBytes,
              transitBytes: all.transitBytes + one.transitBytes,
              hostBytes: all.hostBytes + one.hostBytes,
              slots: all.slots + one.slots,
              expertBytes: Math.max(all.expertBytes, one.expertBytes),
              boundBy: `${all.boundBy}; ${one.boundBy}`,
            },
      undefined,
    );
}

/**
 * What a model on several devices takes, in the form of a plan for one, for whoever only reports: sums, of sessions those on
 * GPUs, and the place of the experts that are farthest away. Nothing is loaded by it.
 */
export function sharedPlan({ parts, reasons }: SplitPlan): LoadPlan {
  const [{ plan: first }, ...others] = parts;
  if (first.backend === 'cpu' || others.length === 0) {
    return { ...first, reasons };
  }
  const plans = parts.map(({ plan }) => plan);
  const gpus = plans.filter((plan): plan is GpuPlan => plan.backend !== 'cpu');
  const experts = sharedExperts(plans);
  const fetchBytes = sum(plans, ({ weights }) => weights.fetchBytes ?? 0);
  const places = ['streamExperts', 'mappedExperts', 'device'] as const;
  return {
    ...first,
    device: {
      ...first.device,
      name: gpus.map(({ device }) => device.name).join(', '),
      freeBytes: gpus.reduce((bytes, { device }) => bytes + device.freeBytes, 0),
      budgetBytes: gpus.reduce((bytes, { device }) => bytes + device.budgetBytes, 0),
    },
    weights: {
      ...first.weights,
      place:
        places.find((place) => gpus.some(({ weights }) => weights.place === place)) ?? 'device',
      lock: plans.some(({ weights }) => weights.lock),
      bytes: sum(plans, ({ weights }) => weights.bytes),
      routedBytes: sum(plans, ({ weights }) => weights.routedBytes),
      deviceBytes: gpus.reduce((bytes, { weights }) => bytes + weights.deviceBytes, 0),
      pinnedBytes: gpus.reduce((bytes, { weights }) => bytes + weights.pinnedBytes, 0),
      pinCopies: gpus.some(({ weights }) => weights.pinCopies),
      // What each device keeps free says nothing about all of them.
      ...(experts === undefined ? {} : { experts: { ...experts, reserveBytes: 0 } }),
      ...(fetchBytes === 0 ? {} : { fetchBytes }),
    },
    kv: {
      place: 'device',
      bytes: sum(gpus, ({ kv }) => kv.bytes),
      bytesPerPosition: sum(plans, ({ kv }) => kv.bytesPerPosition),
    },
    bufferBytes: gpus.reduce((bytes, { bufferBytes }) => bytes + bufferBytes, 0),
    reasons,
  };
}
