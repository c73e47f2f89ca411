import { gib } from './plan.js';
import type { MachineFacts, PlanReason } from './plan.js';

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

export function ramDiskReasons({ isFileInRamDisk = false }: MachineFacts): PlanReason[] {
  return isFileInRamDisk
    ? [
        {
          kind: 'note',
          text: 'the model file is in a RAM disk: where it is used in place it takes no more main memory, only copies of it do',
        },
      ]
    : [];
}

/** What is unusual about the machine, as far as it is not a GPU's. */
export function machineReasons(facts: MachineFacts): PlanReason[] {
  return [...usedMemoryReasons(facts), ...ramDiskReasons(facts)];
}
