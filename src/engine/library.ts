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

/** Files of a driver that a backend's library is linked to, and whose they are. CUDA's runtime looks for its own by itself. */
const driverFiles: Partial<Record<BackendName, { readonly files: RegExp; readonly from: string }>> =
  {
    rocm: { files: /^lib(?:amdhip64|hsa-runtime64|amd_comgr)\.so/, from: "AMD's ROCm runtime" },
  };

/**
 * The file of the driver that is missing, when that is why a library cannot be loaded.
 *
 * @param text what the system's loader said.
 */
export function missingDriverFile(
  backend: BackendName,
  text: string,
): { readonly file: string; readonly from: string } | undefined {
  const file = /(?<![/\w])(lib[\w.+-]+): (?:cannot open shared object file|No such file)/.exec(
    text,
  )?.[1];
  const driver = driverFiles[backend];
  return file !== undefined && driver?.files.test(file) === true
    ? { file, from: driver.from }
    : undefined;
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
