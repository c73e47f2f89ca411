export { automaticBudget } from './budget.js';
export { tokenCost } from './cost.js';
export type { TokenCost } from './cost.js';
export { deviceSessionBytes } from './device-session.js';
export type { DeviceSessionBytes } from './device-session.js';
export { failureText, isSameLoad, stepOf } from './failures.js';
export { sessionBytes } from './kv-cache.js';
export type { SessionBytes } from './kv-cache.js';
export { planLoad, planSession } from './load-plan.js';
export { planSplit, planSplitSession } from './split-plan.js';
export { sharedPlan } from './shared-plan.js';
export type { TensorPart } from './model-parts.js';
export { placesOf } from './places.js';
export type { Place, PlacedTensors } from './places.js';
export { deviceBytesOf, hostBytesOf, OversizeError, PlanError } from './plan.js';
export type {
  ExpertCacheRequest,
  ExpertMemoryPlan,
  ExpertPolicy,
  ExpertRequest,
  GpuFacts,
  GpuPlan,
  GpuRequest,
  GpuWeightsPlan,
  HostPlan,
  LoadPlan,
  MachineFacts,
  NamedVariable,
  PlanFailure,
  PlanPart,
  PlanReason,
  PlanRequest,
  PlanStep,
  Rates,
  SplitPlan,
  UploadPath,
  WeightSource,
} from './plan.js';
