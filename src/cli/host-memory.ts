import { readFileSync } from 'node:fs';
import { freemem } from 'node:os';
import { join } from 'node:path';

/** What one version of control groups calls its files. native/backend/host_memory.h reads the same ones. */
interface GroupFiles {
  readonly mount: string;
  /** The line of /proc/self/cgroup that ends with the path of the own group. */
  readonly line: RegExp;
  readonly limit: string;
  readonly used: string;
  readonly cache: RegExp;
}

const versions: readonly GroupFiles[] = [
  {
    mount: 'sys/fs/cgroup',
    line: /^0::(.*)$/m,
    limit: 'memory.max',
    used: 'memory.current',
    cache: /^inactive_file ([0-9]+)$/m,
  },
  {
    mount: 'sys/fs/cgroup/memory',
    line: /^[0-9]+:(?:[^:]*,)?memory(?:,[^:]*)?:(.*)$/m,
    limit: 'memory.limit_in_bytes',
    used: 'memory.usage_in_bytes',
    cache: /^total_inactive_file ([0-9]+)$/m,
  },
];

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

/** Bytes that the system would give without swapping. */
function systemAvailable(meminfo: string | undefined): number {
  const kib = /^MemAvailable:\s+([0-9]+) kB$/m.exec(meminfo ?? '')?.[1];
  return kib === undefined ? freemem() : Number(kib) * 1024;
}

/** Bytes left in one control group, when it has a limit. Its page cache counts as free: the kernel drops it first. */
function leftInGroup(folder: string, { limit, used, cache }: GroupFiles): number {
  const most = Number(readText(join(folder, limit)) ?? NaN);
  const taken = Number(readText(join(folder, used)) ?? NaN);
  if (!Number.isFinite(most) || !Number.isFinite(taken)) {
    return Infinity;
  }
  const droppable = Number(cache.exec(readText(join(folder, 'memory.stat')) ?? '')?.[1] ?? 0);
  return Math.max(0, most - Math.max(0, taken - droppable));
}

/** The group at a path and all those that it lies in: the limit of each holds for it. */
function groupsUpwards(path: string): string[] {
  const names = path.split('/').filter((name) => name !== '');
  // A group outside of what this process sees of the hierarchy: only the top of that can be read.
  const seen = names.includes('..') ? [] : names;
  return [...seen.keys(), seen.length].map((count) => seen.slice(0, count).join('/'));
}

/**
 * Bytes that this process may still take: the smallest of the system's figure and those of its control groups.
 *
 * @param root where the file system of the machine begins
 */
export function availableMemory(root = '/'): number {
  const groups = readText(join(root, 'proc/self/cgroup')) ?? '';
  const left = versions.flatMap((files) =>
    groupsUpwards(files.line.exec(groups)?.[1] ?? '').map((group) =>
      leftInGroup(join(root, files.mount, group), files),
    ),
  );
  return Math.min(systemAvailable(readText(join(root, 'proc/meminfo'))), ...left);
}
