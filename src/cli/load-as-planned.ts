import { DeviceError, NoMemoryError } from '../engine/index.js';
import { PlanError } from '../plan/index.js';
import type { LoadPlan } from '../plan/index.js';

/**
 * Plans, then loads. When the copy of the whole model into GPU memory fails, the planner is asked again with that fact;
 * every other failure ends it. `load` leaves nothing behind when it fails.
 */
export async function loadAsPlanned<Loaded>(steps: {
  /** `failedCopy` is why the copy of an earlier plan failed. */
  readonly plan: (failedCopy: string | undefined) => LoadPlan;
  readonly load: (plan: LoadPlan) => Promise<Loaded>;
}): Promise<{ readonly plan: LoadPlan; readonly loaded: Loaded }> {
  let failedCopy: string | undefined;
  for (;;) {
    const plan = planAgain(steps.plan, failedCopy);
    try {
      return { plan, loaded: await steps.load(plan) };
    } catch (thrown) {
      const isCopy = plan.weights.place === 'device' && failedCopy === undefined;
      if (!isCopy || !(thrown instanceof NoMemoryError || thrown instanceof DeviceError)) {
        throw thrown;
      }
      failedCopy = thrown.message;
    }
  }
}

/** The first failure is the one that explains the others, so it is never hidden by them. */
function planAgain(
  plan: (failedCopy: string | undefined) => LoadPlan,
  failedCopy: string | undefined,
): LoadPlan {
  try {
    return plan(failedCopy);
  } catch (thrown) {
    throw failedCopy !== undefined && thrown instanceof PlanError
      ? new PlanError(
          `the model could not be copied into GPU memory: ${failedCopy}; without the copy: ${thrown.message}`,
        )
      : thrown;
  }
}
