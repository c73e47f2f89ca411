import type { EngineOptions, Placement, Source, WeightOptions } from '../engine/index.js';
import type { GpuWeightsPlan, LoadPlan, UploadPath, WeightSource } from '../plan/index.js';

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

/** To the engine, a GPU's source is how copies are made, wherever other weights stay. */
function copySource(path: UploadPath, source: WeightSource): Source {
  return path === 'mapping' ? 'mmap' : source === 'mmap' ? 'read' : source;
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
    source: copySource(plan.upload.path, source),
    device: plan.device.index,
    upload: { slots, slotBytes },
    weights: { ...weights, ...gpuWeightOptions(plan.weights) },
  };
}
