export { deviceSessionBytes } from './device-session.js';
export type { DeviceSessionBytes } from './device-session.js';
export { automaticBudget } from './gpu-plan.js';
export { sessionBytes } from './kv-cache.js';
export type { SessionBytes } from './kv-cache.js';
export { planLoad, planSession } from './load-plan.js';
export { PlanError } from './plan.js';
export type {
  GpuFacts,
  GpuPlan,
  GpuRequest,
  HostPlan,
  LoadPlan,
  MachineFacts,
  PlanReason,
  PlanRequest,
} from './plan.js';
