import { mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { isInRamDisk, isRamDisk } from '../../../src/cli/ram-disk.js';

describe('a RAM disk', () => {
  it.each([
    ['tmpfs', 0x01021994, true],
    ['ramfs', 0x858458f6, true],
    ['ext4', 0xef53, false],
    ['overlayfs', 0x794c7630, false],
    ['a network', 0x6969, false],
  ])('%s', (_, fileSystem, expected) => {
    expect(isRamDisk(fileSystem)).toBe(expected);
  });

  it('is told from the file system of a file', () => {
    // Linux has one here; elsewhere the number of whatever it is decides.
    const shared = process.platform === 'linux' ? '/dev/shm' : '.';
    const folder = mkdtempSync(join(shared, 'ds4-ram-disk-'));
    try {
      const path = join(folder, 'file');
      writeFileSync(path, 'x');

      expect(isInRamDisk(path)).toBe(isRamDisk(statfsSync(shared).type));
      expect(isInRamDisk('/proc/self/status')).toBe(false);
      expect(isInRamDisk(join(folder, 'missing'))).toBe(false);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
