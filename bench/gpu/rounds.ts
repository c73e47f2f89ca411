import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';

export function median(numbers: readonly number[]): number {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1] ?? NaN;
}

/** What a program that measures the card prints: its name and rates in GB/s. Nothing when it is not built or fails. */
export function readLimits(
  program: string,
  args: readonly string[] = [],
): Readonly<Record<string, number | string>> {
  if (!existsSync(program)) {
    return {};
  }
  const { stdout } = spawnSync(program, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return JSON.parse(stdout || '{}') as Record<string, number | string>;
}
