import { totalmem } from 'node:os';

/** All main memory that this process could ever have: the machine's, or the limit of its control group if that is less. */
export function totalMemory(): number {
  // 0 when nobody knows; without a limit a number larger than any memory.
  const limit = process.constrainedMemory();
  return limit > 0 ? Math.min(totalmem(), limit) : totalmem();
}
