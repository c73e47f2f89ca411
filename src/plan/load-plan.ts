import type { ModelDescription } from '../model/index.js';
import { planGpu, planGpuSession } from './gpu-plan.js';
import { planHost } from './host-plan.js';
import type { LoadPlan, MachineFacts, PlanRequest } from './plan.js';

/**
 * Decides where everything goes: on the device that `facts` has, else on the CPU.
 *
 * @throws PlanError with the need, what is free, and what would fit.
 */
export function planLoad(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
): LoadPlan {
  return facts.gpu === undefined
    ? planHost(model, facts, request, undefined)
    : planGpu(model, facts, facts.gpu, request);
}

/**
 * Plans one more session of a model that is loaded as `loaded` says.
 *
 * @throws PlanError when there is no room for it.
 */
export function planSession(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  loaded: LoadPlan,
): LoadPlan {
  return loaded.backend === 'cpu'
    ? planHost(model, facts, request, loaded)
    : planGpuSession(model, facts, request, loaded);
}
