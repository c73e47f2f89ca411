import type { LoadPlan, PlanFailure, PlanReason, PlanRequest, PlanStep } from './plan.js';

/** More would leave a cache that is not worth its trouble. */
const mostHalvings = 4;

const what: Readonly<Record<PlanStep, string>> = {
  copy: 'the model could not be copied into GPU memory',
  weights: 'the weights outside the experts could not be copied into GPU memory',
  ring: 'the pinned buffers through which weights are copied could not be had',
  map: 'the mapping of the file could not be pinned for the GPU',
  pin: 'weights could not be read into pinned memory',
  readers: 'the buffers of the readers of missing weights could not be had',
  pages: 'the slots of --weight-paging could not be had',
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

/** The request as it was before a step had failed. */
export function withoutFailures(request: PlanRequest, step: PlanStep): PlanRequest {
  const { failures = [] } = request;
  return { ...request, failures: failures.filter((failure) => failure.step !== step) };
}

/** How often that of which less will do is halved: once for each time that it could not be had, up to a limit. */
export function halvingsOf(
  request: PlanRequest,
  step: 'slots' | 'pages' | 'weights' = 'slots',
): number {
  return Math.min(failuresOf(request, step), mostHalvings);
}

export function failureReasons({ failures = [] }: PlanRequest): PlanReason[] {
  return failures.map((failure) => ({ kind: 'warning', text: failureText(failure) }));
}

/** What whoever loads by a plan says has failed: a step of its own kind of `weights`, whatever the plan is. */
export type FailedStep = Exclude<PlanStep, 'copy'> | 'other';

/** Which step of a plan has failed; undefined when no other plan could do without it. */
export function stepOf({ backend, weights }: LoadPlan, failed: FailedStep): PlanStep | undefined {
  switch (failed) {
    case 'weights':
      return weights.place === 'device' ? 'copy' : backend === 'cpu' ? undefined : 'weights';
    case 'ring':
      return backend === 'cpu' ? undefined : 'ring';
    case 'other':
      return undefined;
    default:
      return failed;
  }
}

/** Whether loading by either plan would be the same, whatever they say about it. */
export function isSameLoad(one: LoadPlan, other: LoadPlan): boolean {
  const key = ({ backend, weights, ...plan }: LoadPlan): string => {
    const experts = weights.experts === undefined ? null : { ...weights.experts, boundBy: '' };
    return JSON.stringify([
      backend,
      { ...weights, experts },
      'upload' in plan ? plan.upload : null,
    ]);
  };
  return key(one) === key(other);
}
