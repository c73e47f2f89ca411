import { readFileSync } from 'node:fs';
import { freemem } from 'node:os';

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

/** Bytes left in the control group, when it has a limit. Its page cache counts as free: the kernel drops it first. */
function groupAvailable(
  max: string | undefined,
  current: string | undefined,
  stat: string,
): number {
  const limit = Number(max);
  const used = Number(current);
  if (max === undefined || current === undefined || !Number.isFinite(limit)) {
    return Infinity;
  }
  const cache = Number(/^inactive_file ([0-9]+)$/m.exec(stat)?.[1] ?? 0);
  return Math.max(0, limit - used + cache);
}

/** Bytes that this process may still take: the smaller of the system's and its control group's figure. */
export function availableMemory(): number {
  const group = '/sys/fs/cgroup/memory';
  return Math.min(
    systemAvailable(readText('/proc/meminfo')),
    groupAvailable(
      readText(`${group}.max`),
      readText(`${group}.current`),
      readText(`${group}.stat`) ?? '',
    ),
  );
}
