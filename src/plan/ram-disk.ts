// A file in a RAM disk is in main memory already. The system does not count it among what is available, and mapping or
// pinning it takes none of that; copies of it do.
import type { GpuPlan, MachineFacts, PlanReason } from './plan.js';

/** Main memory that pinned weights take beside the file: none where they are pages of a file in a RAM disk. */
export function pinnedCost(
  { isFileInRamDisk = false }: Pick<MachineFacts, 'isFileInRamDisk'>,
  pinnedBytes: number,
  pinCopies: boolean,
): number {
  return isFileInRamDisk && !pinCopies ? 0 : pinnedBytes;
}

/** What of a plan's pinned weights takes main memory. */
export function pinnedBytesOf({ weights }: Pick<GpuPlan, 'weights'>): number {
  return pinnedCost(weights, weights.pinnedBytes, weights.pinCopies);
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
