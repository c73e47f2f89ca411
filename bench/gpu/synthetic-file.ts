import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

export interface SyntheticFiles {
  /** Where the model goes; undefined: none is written. */
  readonly model?: string;
  readonly layers?: number;
  /** Where a text for it goes. */
  readonly prompt?: string;
}

/** Runs synthetic-model, from its source or, in a bundle, from the script beside this one. */
export function writeSynthetic({ model, layers, prompt }: SyntheticFiles): void {
  const bundled = join(import.meta.dirname, 'synthetic-model.mjs');
  const tool = existsSync(bundled)
    ? [bundled]
    : [...process.execArgv, join(import.meta.dirname, 'synthetic-model.ts')];
  const args = [
    ...(model === undefined ? [] : ['--out', model]),
    ...(layers === undefined ? [] : ['--layers', String(layers)]),
    ...(prompt === undefined ? [] : ['--prompt', prompt]),
  ];
  execFileSync(process.execPath, [...tool, ...args], { stdio: 'inherit' });
}
