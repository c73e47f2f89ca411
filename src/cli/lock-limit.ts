import { readFileSync } from 'node:fs';

/** Bit of CAP_IPC_LOCK, whose holders may lock as much as they like. */
const ipcLock = 14n;

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

/** Bytes that this process may lock, by what the system says of it; undefined: no limit, or none that is known. */
export function parseLockLimit(status: string, limits: string): number | undefined {
  const capabilities = /^CapEff:\s+([0-9a-f]+)$/m.exec(status)?.[1];
  const bytes = /^Max locked memory\s+([0-9]+)\s/m.exec(limits)?.[1];
  const isFree =
    capabilities !== undefined && ((BigInt(`0x${capabilities}`) >> ipcLock) & 1n) === 1n;
  return isFree || bytes === undefined ? undefined : Number(bytes);
}

export function lockLimit(): number | undefined {
  return parseLockLimit(readText('/proc/self/status'), readText('/proc/self/limits'));
}
