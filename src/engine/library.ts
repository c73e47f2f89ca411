import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Backends this program can have a library for. */
export const backends = ['cpu', 'cuda', 'rocm', 'sim'] as const;
export type BackendName = (typeof backends)[number];
/** Those that compute on a GPU, in the order in which they are tried. */
export const gpuBackends = ['cuda', 'rocm'] as const;
export type GpuBackendName = (typeof gpuBackends)[number];

export function libraryFile(backend: BackendName): string {
  return `libds4-${backend}.so`;
}

/** The folder that holds bin/, dist/ (or src/) and build/ or lib/. */
export function programRoot(): string {
  return resolve(dirname(fileURLToPath(import.meta.url)), '..', '..');
}

/**
 * Where a backend's library may be: `lib/` in an installed copy, `build/` in a checkout.
 * `directory` replaces both. Always relative to the program, never to the current folder.
 */
export function libraryCandidates(backend: BackendName, directory?: string): string[] {
  const file = libraryFile(backend);
  if (directory !== undefined) {
    return [resolve(directory, file)];
  }
  return [join(programRoot(), 'lib', file), join(programRoot(), 'build', backend, file)];
}

/** The library's path, or undefined when none of the places has it. */
export function findLibrary(backend: BackendName, directory?: string): string | undefined {
  return libraryCandidates(backend, directory).find((path) => existsSync(path));
}
