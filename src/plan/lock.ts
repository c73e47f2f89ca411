import { gib } from './plan.js';
import type { MachineFacts, PlanReason, PlanRequest } from './plan.js';

interface LockPlan {
  readonly lock: boolean;
  readonly reasons: PlanReason[];
}

function without(text: string): LockPlan {
  return { lock: false, reasons: [{ kind: 'warning', text: `--mlock has no effect: ${text}` }] };
}

/** Weights beside a GPU. What it reads in main memory is pinned, which no limit of the system stands against. */
export function pinnedLockOf({ lock = false }: PlanRequest, bytes: number): LockPlan {
  if (!lock) {
    return { lock, reasons: [] };
  }
  if (bytes === 0) {
    return without('no weights stay in main memory');
  }
  const text = `${gib(bytes)} of weights are pinned in main memory for the GPU, so they are locked`;
  return { lock, reasons: [{ kind: 'note', text }] };
}

/**
 * Whether so many bytes of weights in main memory are locked, as was asked. The system may still refuse.
 *
 * @param cost how many of them take memory that is available now
 */
export function lockOf(
  { lock = false }: PlanRequest,
  { lockableBytes = Infinity, memoryAvailable }: MachineFacts,
  bytes: number,
  cost: number,
): LockPlan {
  if (!lock) {
    return { lock, reasons: [] };
  }
  if (bytes === 0) {
    return without('no weights stay in main memory');
  }
  if (bytes > lockableBytes) {
    return without(
      `it would lock ${gib(bytes)}, and the system allows ${gib(lockableBytes)}; raise it with ulimit -l`,
    );
  }
  if (cost > memoryAvailable) {
    return without(`it would lock ${gib(bytes)}, and ${gib(memoryAvailable)} are free`);
  }
  return {
    lock,
    reasons: [{ kind: 'note', text: `${gib(bytes)} of weights are locked in main memory` }],
  };
}
