import { gib } from './plan.js';
import type { MachineFacts, PlanReason } from './plan.js';
import { ramDiskReasons } from './ram-disk.js';

export function usedMemoryReasons({
  simulatedUsedBytes,
  memoryAvailable,
}: MachineFacts): PlanReason[] {
  return simulatedUsedBytes === undefined
    ? []
    : [
        {
          kind: 'headline',
          text:
            `main memory: ${gib(simulatedUsedBytes)} count as taken, because --simulate-used-memory was given; ` +
            `${gib(memoryAvailable)} are left`,
        },
      ];
}

/** What is unusual about the machine, as far as it is not a GPU's. */
export function machineReasons(facts: MachineFacts): PlanReason[] {
  return [...usedMemoryReasons(facts), ...ramDiskReasons(facts)];
}
