import { DeviceError, NoMemoryError } from '../engine/index.js';
import { failureText, isSameLoad, PlanError, stepOf } from '../plan/index.js';
import type { LoadPlan, PlanFailure } from '../plan/index.js';

export interface FailedPart {
  readonly plan: LoadPlan;
}

/**
 * Plans, then loads. When memory or the device fails, the planner is asked again with what failed so far, until it has
 * nothing new; every other failure ends it, and so does a device that is lost. `load` leaves nothing behind when it fails.
 *
 * @throws whatever `load` failed with the first time; PlanError with that and the rest when other ways failed too.
 */
export async function loadAsPlanned<Loaded>(steps: {
  readonly plan: (failures: readonly PlanFailure[]) => LoadPlan;
  /** About to load, for what is to be said about a plan that is really tried. */
  readonly announce?: (plan: LoadPlan) => void;
  readonly load: (plan: LoadPlan) => Promise<Loaded>;
  /** Of a plan for several devices: which of its parts has just failed to load. */
  readonly failed?: () => FailedPart | undefined;
  /** Whether a device does not answer any more, after one has failed: no other plan for it could help. */
  readonly isLost?: () => Promise<boolean>;
}): Promise<{ readonly plan: LoadPlan; readonly loaded: Loaded }> {
  const failures: PlanFailure[] = [];
  let plan = steps.plan(failures);
  for (;;) {
    steps.announce?.(plan);
    try {
      return { plan, loaded: await steps.load(plan) };
    } catch (thrown) {
      const part = steps.failed?.();
      if (!(thrown instanceof NoMemoryError || thrown instanceof DeviceError)) {
        throw thrown;
      }
      const step = stepOf(part?.plan ?? plan, thrown.loadStep);
      const isLost = thrown instanceof DeviceError && (await steps.isLost?.()) === true;
      if (step === undefined || isLost) {
        throw thrown;
      }
      failures.push({
        step,
        reason: thrown.message,
        ...(part?.plan.backend === 'cpu' || part === undefined
          ? {}
          : { device: part.plan.device.index }),
      });
      plan = planAgain(steps.plan, failures, plan, thrown);
    }
  }
}

/** The first failure is the one that explains the others, so it is never hidden by them. */
function planAgain(
  plan: (failures: readonly PlanFailure[]) => LoadPlan,
  failures: readonly PlanFailure[],
  failed: LoadPlan,
  thrown: NoMemoryError | DeviceError,
): LoadPlan {
  // Smaller and smaller caches often fail for the same reason.
  const story = [...new Set(failures.map(failureText))].join('; then ');
  let next: LoadPlan;
  try {
    next = plan(failures);
  } catch (refusal) {
    throw refusal instanceof PlanError
      ? new PlanError(`${story}; without that: ${refusal.message}`)
      : refusal;
  }
  if (isSameLoad(next, failed)) {
    throw failures.length === 1 ? thrown : new PlanError(`${story}; there is no other way`);
  }
  return next;
}
