import { readFileSync } from 'node:fs';
import { sentenceOf } from './errors.js';

function programVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  const parsed: unknown = JSON.parse(text);
  return typeof parsed === 'object' &&
    parsed !== null &&
    'version' in parsed &&
    typeof parsed.version === 'string'
    ? parsed.version
    : 'unknown';
}

/** One line: the program, the interface of its native library, and the backends that are here and can be loaded. */
export async function versionText(): Promise<string> {
  const { abiVersion, backends, listDevices } = await import('../engine/index.js');
  const states = backends.map((backend) => {
    try {
      const arches = listDevices(backend).map(({ arch }) => arch);
      return `${backend} (${arches.join(', ')})`;
    } catch (thrown) {
      return `no ${backend} (${sentenceOf(thrown)})`;
    }
  });
  return `ds4 ${programVersion()}, native interface ${abiVersion}, backends: ${states.join(', ')}`;
}
