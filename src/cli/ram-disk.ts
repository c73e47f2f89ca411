import { statfsSync } from 'node:fs';

/** Numbers by which Linux tells file systems apart: tmpfs, ramfs. */
const ramDisks: ReadonlySet<number> = new Set([0x01021994, 0x858458f6]);

/** Whether a file system of this number keeps its files in main memory and nowhere else. */
export function isRamDisk(fileSystem: number): boolean {
  return ramDisks.has(fileSystem);
}

/** Whether a file is in main memory for as long as it exists. */
export function isInRamDisk(path: string): boolean {
  try {
    return isRamDisk(statfsSync(path).type);
  } catch {
    return false;
  }
}
