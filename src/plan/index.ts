export { sessionBytes } from './kv-cache.js';
export type { SessionBytes } from './kv-cache.js';
export { PlanError, planLoad } from './load-plan.js';
export type { HostFacts, LoadPlan, PlanReason, PlanRequest } from './load-plan.js';
