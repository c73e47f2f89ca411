import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { availableMemory } from '../../../src/cli/host-memory.js';

const gib = 2 ** 30;

let root = '';
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ds4-host-memory-'));
});
afterEach(() => {
  rmSync(root, { recursive: true });
});

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

/** A machine with 64 GiB available, and the lines of /proc/self/cgroup. */
function machine(groups: string): void {
  write(
    'proc/meminfo',
    `MemTotal:  ${(128 * gib) / 1024} kB\nMemAvailable:  ${(64 * gib) / 1024} kB\n`,
  );
  write('proc/self/cgroup', groups);
}

function group(path: string, max: number | 'max', used: number, cache = 0): void {
  const folder = join('sys/fs/cgroup', path);
  write(join(folder, 'memory.max'), `${max}\n`);
  write(join(folder, 'memory.current'), `${used}\n`);
  write(join(folder, 'memory.stat'), `anon 1\ninactive_file ${cache}\nactive_file 2\n`);
}

function oldGroup(path: string, limit: string, used: number, cache: number): void {
  const folder = join('sys/fs/cgroup/memory', path);
  write(join(folder, 'memory.limit_in_bytes'), `${limit}\n`);
  write(join(folder, 'memory.usage_in_bytes'), `${used}\n`);
  write(join(folder, 'memory.stat'), `inactive_file 7\ntotal_inactive_file ${cache}\n`);
}

describe('available memory', () => {
  it('is what the system says where no group has a limit', () => {
    machine('0::/user/shell\n');
    group('user', 'max', 40 * gib);
    group('user/shell', 'max', 40 * gib);

    expect(availableMemory(root)).toBe(64 * gib);
  });

  it('is the limit of the own group less what it uses, without the page cache that can be dropped', () => {
    machine('0::/user/shell\n');
    group('user/shell', 16 * gib, 6 * gib, 2 * gib);

    expect(availableMemory(root)).toBe(12 * gib);
  });

  it.each(['user', '.', 'user/shell'])('is cut by the group at %s, too', (path) => {
    machine('0::/user/shell\n');
    group('user/shell', 32 * gib, gib);
    group('user', 24 * gib, 2 * gib);
    group(path, 9 * gib, gib);
    group('user/other', gib, 0);

    expect(availableMemory(root)).toBe(8 * gib);
  });

  it('is nothing in a group that uses more than its limit', () => {
    machine('0::/\n');
    group('.', 4 * gib, 5 * gib);

    expect(availableMemory(root)).toBe(0);
  });

  it('is found in the first version of control groups, beside other controllers', () => {
    machine('9:cpu:/elsewhere\n4:memory,hugetlb:/box/inner\n0::/\n');
    oldGroup('.', '9223372036854771712', 90 * gib, 0);
    oldGroup('box', String(20 * gib), 10 * gib, 3 * gib);
    oldGroup('box/inner', String(30 * gib), gib, 0);
    oldGroup('elsewhere', String(gib), 0, 0);

    expect(availableMemory(root)).toBe(13 * gib);
  });

  it('is cut by the top alone where the own group is out of sight', () => {
    machine('0::/../../other\n');
    group('.', 10 * gib, gib);
    group('other', gib, 0);

    expect(availableMemory(root)).toBe(9 * gib);
  });

  it('is the free memory of the system where nothing can be read', () => {
    expect(availableMemory(root)).toBeGreaterThan(0);
    expect(availableMemory(root)).toBeLessThanOrEqual(totalmem());
  });
});
