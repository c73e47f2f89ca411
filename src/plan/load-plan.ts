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
 * Plans a session that takes the place of the one that `current` has. On the CPU a session takes memory as it fills, so that
 * nobody knows what the old one will give back, and it does not count as free.
 *
 * @throws PlanError when there is no room for it.
 */
export function planSession(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  current: LoadPlan,
): LoadPlan {
  return current.backend === 'cpu'
    ? planHost(model, facts, request, current)
    : planGpuSession(model, facts, request, current);
}
