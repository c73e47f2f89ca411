import type { EngineOptions, Placement, WeightOptions } from '../engine/index.js';
import type { GpuWeightsPlan, LoadPlan } from '../plan/index.js';

const placements: Readonly<Record<LoadPlan['weights']['place'], Placement>> = {
  host: 'auto',
  device: 'resident',
  mappedExperts: 'mappedExperts',
  streamExperts: 'streamExperts',
};

function gpuWeightOptions(weights: GpuWeightsPlan): WeightOptions {
  const { deviceWeightBytes, pageSlots, pinCopies, dropReadPages } = weights;
  return {
    ...(deviceWeightBytes === undefined ? {} : { deviceWeightBytes }),
    ...(pageSlots === undefined ? {} : { pageSlots }),
    pinCopies,
    dropReadPages,
  };
}

/** What a plan asks of the engine. */
export function plannedOptions(
  plan: LoadPlan,
): Pick<EngineOptions, 'device' | 'placement' | 'source' | 'upload' | 'weights'> {
  const { place, source, lock, experts, readThreads } = plan.weights;
  const weights: WeightOptions = {
    lock,
    ...(experts === undefined ? {} : { experts }),
    ...(readThreads === undefined ? {} : { readThreads }),
  };
  const common = { placement: placements[place], source };
  if (plan.backend === 'cpu') {
    return { ...common, weights };
  }
  const { slots, slotBytes } = plan.upload;
  return {
    ...common,
    device: plan.device.index,
    upload: { slots, slotBytes },
    weights: { ...weights, ...gpuWeightOptions(plan.weights) },
  };
}
