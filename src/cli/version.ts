import { readFileSync } from 'node:fs';
import { readEnvironment } from './environment.js';

/** Of the program's package. */
export function programVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  const parsed: unknown = JSON.parse(text);
  return typeof parsed === 'object' &&
    parsed !== null &&
    'version' in parsed &&
    typeof parsed.version === 'string'
    ? parsed.version
    : 'unknown';
}

/** One line: the program, the interface of its native library, and the backends that are here and can be used. */
export async function versionText(): Promise<string> {
  const { abiVersion, backends, probeBackend } = await import('../engine/index.js');
  const { libraryDirectory } = readEnvironment();
  const states = backends.map((backend) => {
    const state = probeBackend(backend, libraryDirectory);
    switch (state.kind) {
      case 'ready':
        return `${backend} (${state.devices.map(({ arch }) => arch).join(', ')})`;
      case 'notBuilt':
        return `no ${backend} (not built)`;
      default:
        return `no ${backend} (${state.reason})`;
    }
  });
  return `ds4 ${programVersion()}, native interface ${abiVersion}, backends: ${states.join(', ')}`;
}
