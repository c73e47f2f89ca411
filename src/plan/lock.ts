import { gib } from './plan.js';
import type { MachineFacts, PlanReason, PlanRequest } from './plan.js';

/** Whether so many bytes of weights in main memory are locked, as was asked. The system may still refuse. */
export function lockOf(
  { lock = false }: PlanRequest,
  { lockableBytes = Infinity, memoryAvailable }: MachineFacts,
  bytes: number,
): { lock: boolean; reasons: PlanReason[] } {
  const without = (text: string): { lock: boolean; reasons: PlanReason[] } => ({
    lock: false,
    reasons: [{ kind: 'warning', text: `--mlock has no effect: ${text}` }],
  });
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
  if (bytes > memoryAvailable) {
    return without(`it would lock ${gib(bytes)}, and ${gib(memoryAvailable)} are free`);
  }
  return {
    lock,
    reasons: [{ kind: 'note', text: `${gib(bytes)} of weights are locked in main memory` }],
  };
}
