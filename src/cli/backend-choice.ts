import { RunError, UsageError } from './errors.js';
import type { BackendWord, Settings } from './settings.js';

export interface BackendChoice {
  readonly backend: 'cpu';
  /** Why, when nobody asked for this backend. */
  readonly note: string | undefined;
  readonly warning: string | undefined;
}

const gpuLibraries: Readonly<Record<Exclude<BackendWord, 'cpu'>, string>> = {
  cuda: 'libds4-cuda.so',
  rocm: 'libds4-rocm.so',
  metal: 'libds4-metal.dylib',
};

/** The backend that the placement options ask for; they win over `--backend`, wherever they stand. */
function placementBackend(settings: Settings): BackendWord | undefined {
  const { gpuVram, gpuDevices } = settings;
  if (gpuVram === undefined && gpuDevices === undefined) {
    return undefined;
  }
  if (gpuVram !== undefined && gpuVram !== 'auto') {
    return gpuVram.length === 1 && gpuVram[0] === 0 ? 'cpu' : 'cuda';
  }
  const option = gpuVram === 'auto' ? '--gpu-vram auto' : '--gpu-devices';
  throw new UsageError(
    `${option} asks for the memory of GPUs, and this build has only the cpu backend ` +
      `(no ${gpuLibraries.cuda} and no ${gpuLibraries.rocm}); leave it out`,
  );
}

/**
 * Decides where to compute, before any file is opened. A backend that was asked for by name is never replaced by
 * another one.
 *
 * @throws RunError when its library is not here.
 */
export function chooseBackend(settings: Settings): BackendChoice {
  const asked = placementBackend(settings) ?? settings.backend;
  if (asked !== undefined && asked !== 'cpu') {
    throw new RunError(
      `backend ${asked} cannot be used: its library ${gpuLibraries[asked]} is not in this build, ` +
        'which has only cpu; use --backend cpu or leave the option out',
    );
  }
  if (settings.gpuResident === true && asked === undefined) {
    throw new RunError(
      `--gpu-resident asks for GPU memory, and this build has only the cpu backend ` +
        `(no ${gpuLibraries.cuda} and no ${gpuLibraries.rocm}); leave it out`,
    );
  }
  return {
    backend: 'cpu',
    note:
      asked === undefined
        ? `backend cpu, because no GPU backend is in this build (no ${gpuLibraries.cuda} and no ${gpuLibraries.rocm})`
        : undefined,
    warning:
      settings.gpuResident === true
        ? '--gpu-resident has no effect with the cpu backend'
        : undefined,
  };
}
