import type { LoadPlan, PlanFailure, PlanReason, PlanRequest, PlanStep } from './plan.js';

/** More would leave a cache that is not worth its trouble. */
const mostHalvings = 4;

const what: Readonly<Record<PlanStep, string>> = {
  copy: 'the model could not be copied into GPU memory',
  map: 'the mapping of the file could not be pinned for the GPU',
  pin: 'the experts could not be read into pinned memory',
  hostTier: 'the expert cache could not be set up with a tier in main memory',
  slots: 'the expert cache could not be set up',
};

export function failureText({ step, reason }: PlanFailure): string {
  return `${what[step]}: ${reason}`;
}

/** How often a step has failed. */
export function failuresOf({ failures = [] }: PlanRequest, step: PlanStep): number {
  return failures.filter((failure) => failure.step === step).length;
}

/** How often the slots of an expert cache are halved: once for each time that they could not be had, up to a limit. */
export function halvingsOf(request: PlanRequest): number {
  return Math.min(failuresOf(request, 'slots'), mostHalvings);
}

export function failureReasons({ failures = [] }: PlanRequest): PlanReason[] {
  return failures.map((failure) => ({ kind: 'warning', text: failureText(failure) }));
}

/** Which step of a plan it is that fails when memory or the device does; undefined when nothing could be left out. */
export function stepOf({ backend, weights }: LoadPlan): PlanStep | undefined {
  switch (weights.place) {
    case 'device':
      return 'copy';
    case 'mappedExperts':
      return weights.pinCopies ? 'pin' : 'map';
    case 'streamExperts':
      return backend !== 'cpu' && (weights.experts?.hostBytes ?? 0) > 0 ? 'hostTier' : 'slots';
    case 'host':
      return undefined;
  }
}

/** Whether loading by either plan would be the same. */
export function isSameLoad(one: LoadPlan, other: LoadPlan): boolean {
  const key = (plan: LoadPlan): string =>
    JSON.stringify([plan.backend, plan.weights, plan.backend === 'cpu' ? null : plan.upload]);
  return key(one) === key(other);
}
