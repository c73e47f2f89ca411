import type { BackendName, BackendState, DeviceInfo } from '../engine/index.js';
import { checkPlacement, withoutEffect } from './checks.js';
import { RunError, UsageError } from './errors.js';
import type { Run } from './run.js';
import type { PlannedMachine, Settings, SimulatedMachine } from './settings.js';

export interface BackendChoice {
  readonly backend: BackendName;
  /** Of a GPU backend; the first of several. */
  readonly device: DeviceInfo | undefined;
  /** All devices that share the model, in the order in which they take its layers. */
  readonly devices: readonly DeviceInfo[];
  /** The user named it, or asked for what only it has: another one is no answer. */
  readonly isAsked: boolean;
  /** Sentences about the choice: why, when nobody asked for this backend. */
  readonly notes: readonly string[];
  readonly warnings: readonly string[];
}

/** Backends with a memory of their own. */
type DeviceBackend = Exclude<BackendName, 'cpu'>;

/** Asks a backend's library what it can do on this machine. */
export type Probe = (backend: DeviceBackend) => BackendState;

/** In the order in which they are tried. The simulated one is no replacement for a GPU, so it has to be named. */
const gpuBackends: readonly DeviceBackend[] = ['cuda', 'rocm'];

/** What the options say about the backend, before any library is asked. */
type Wish =
  | { readonly kind: 'cpu' }
  /** The first of these that works; `by` is what asked for a GPU, if anything did. */
  | {
      readonly kind: 'gpu';
      readonly backends: readonly DeviceBackend[];
      readonly by: string | undefined;
    };

/** The placement options ask for a GPU and win over `--backend`, wherever they stand; a budget of 0 is none. */
function placementOption({ gpuVram, gpuDevices }: Settings): string | undefined {
  return gpuVram !== undefined
    ? '--gpu-vram'
    : gpuDevices !== undefined
      ? '--gpu-devices'
      : undefined;
}

function forbidsGpus({ gpuVram }: Settings): boolean {
  return gpuVram !== 'auto' && gpuVram?.length === 1 && gpuVram[0] === 0;
}

/** The machine to simulate, if this run is to be simulated: an option wins over DS4_SIM. */
export function simulationOf({
  settings,
  environment,
}: Pick<Run, 'settings' | 'environment'>): SimulatedMachine | undefined {
  const { simulation, backend, gpuDevices } = settings;
  const isFree =
    (backend === undefined || backend === 'sim') &&
    (backend === 'sim' || gpuDevices === undefined) &&
    !forbidsGpus(settings);
  return simulation ?? (isFree ? environment.simulation : undefined);
}

function wishOf(settings: Settings): Wish {
  const { backend } = settings;
  if (settings.simulation !== undefined) {
    return { kind: 'gpu', backends: ['sim'], by: '--backend sim' };
  }
  if (backend === 'sim') {
    throw new UsageError(
      '--backend sim needs a machine to simulate: --sim vram=24, or the same in DS4_SIM',
    );
  }
  const placement = placementOption(settings);
  const named = gpuBackends.filter((name) => name === backend);
  if (forbidsGpus(settings) || (backend === 'cpu' && placement === undefined)) {
    return { kind: 'cpu' };
  }
  if (named.length > 0) {
    return { kind: 'gpu', backends: named, by: `--backend ${backend ?? ''}` };
  }
  if (backend === 'metal' && placement === undefined) {
    throw new RunError(
      'backend metal cannot be used: its library libds4-metal.dylib is not in this build; ' +
        'the backends are cpu, cuda, rocm and sim',
    );
  }
  const by =
    placement ??
    (settings.gpuResident === true
      ? '--gpu-resident'
      : settings.checkTensors
        ? '--check-tensors'
        : settings.weightPaging
          ? '--weight-paging'
          : undefined);
  return { kind: 'gpu', backends: gpuBackends, by };
}

function onCpu(settings: Settings, options: Partial<BackendChoice> = {}): BackendChoice {
  if (settings.checkTensors) {
    throw new RunError(
      '--check-tensors checks what was uploaded to a GPU, and the cpu backend uploads nothing; leave it out',
    );
  }
  if (settings.weightPaging) {
    // As the planner says it, which is not loaded before the options are checked.
    throw new RunError(
      '--weight-paging lets weights take turns in GPU memory, which the cpu backend has not; ' +
        'the backends that have it are cuda, rocm and sim',
    );
  }
  const warnings = withoutEffect(settings, 'cpu');
  if (settings.gpuResident === true) {
    warnings.push('--gpu-resident has no effect with the cpu backend');
  }
  if (forbidsGpus(settings) && settings.backend !== undefined && settings.backend !== 'cpu') {
    warnings.push(`--gpu-vram 0 uses the CPU: --backend ${settings.backend} has no effect`);
  }
  return {
    backend: 'cpu',
    device: undefined,
    devices: [],
    isAsked: true,
    notes: [],
    ...options,
    warnings: [...(options.warnings ?? []), ...warnings],
  };
}

interface Tried {
  readonly backend: DeviceBackend;
  readonly state: Exclude<BackendState, { kind: 'ready' }>;
}

function cannotBeUsed({ backend, state }: Tried): string {
  return `backend ${backend} cannot be used: ${state.reason}`;
}

/** No GPU can be used: the CPU, when nobody asked for one. */
function withoutGpu(settings: Settings, by: string | undefined, tried: Tried[]): BackendChoice {
  const built = tried.filter(({ state }) => state.kind !== 'notBuilt');
  const [first] = built.length > 0 ? built : tried;
  if (by !== undefined && first !== undefined) {
    if (built.length === 0 && (by === '--gpu-vram' || by === '--gpu-devices')) {
      const isUsage = settings.gpuVram === undefined || settings.gpuVram === 'auto';
      const sentence = `${by} asks for the memory of GPUs, and no GPU backend is built: ${cannotBeUsed(first)}`;
      throw isUsage ? new UsageError(sentence) : new RunError(sentence);
    }
    throw new RunError(
      by.startsWith('--backend')
        ? cannotBeUsed(first)
        : `${by} needs a GPU: ${cannotBeUsed(first)}`,
    );
  }
  if (built.length === 0) {
    return onCpu(settings, {
      isAsked: false,
      notes: [
        'backend cpu, because no GPU backend is in this build (no libds4-cuda.so and no libds4-rocm.so)',
      ],
    });
  }
  const sentence = `backend cpu, because ${built.map(cannotBeUsed).join(', and ')}`;
  // A machine without a GPU is nothing to warn of; a library that cannot even be loaded is a broken installation.
  const isBroken = built.some(({ state }) => state.kind === 'broken');
  return onCpu(settings, {
    isAsked: false,
    ...(isBroken ? { warnings: [sentence] } : { notes: [sentence] }),
  });
}

/** The devices that the options name, checked against what is there; without a name the first. */
function chooseDevices(
  { gpuVram, gpuDevices }: Settings,
  backend: DeviceBackend,
  devices: readonly [DeviceInfo, ...DeviceInfo[]],
): { devices: readonly DeviceInfo[]; notes: string[] } {
  const indices = devices.map(({ index }) => index);
  const budgets = gpuVram === 'auto' ? undefined : gpuVram?.length;
  for (const index of gpuDevices ?? []) {
    if (!indices.includes(index)) {
      const valid = indices.length === 1 ? `only ${indices.join()}` : `0..${indices.length - 1}`;
      throw new UsageError(
        `--gpu-devices: there is no ${backend} device ${index}; the valid numbers are ${valid}`,
      );
    }
  }
  if (gpuDevices !== undefined) {
    return {
      devices: gpuDevices.flatMap((index) => devices.filter((device) => device.index === index)),
      notes: [],
    };
  }
  if (budgets !== undefined && budgets > devices.length) {
    throw new UsageError(
      `--gpu-vram has ${budgets} budgets, and ${backend} has ${devices.length} ${devices.length === 1 ? 'device' : 'devices'}`,
    );
  }
  if (gpuVram !== undefined) {
    return { devices: devices.slice(0, budgets), notes: [] };
  }
  const [first] = devices;
  const sentence =
    `${backend} device ${first.index} of ${devices.length} is used; ` +
    '--gpu-devices names others, --gpu-vram auto takes all';
  return { devices: [first], notes: devices.length > 1 ? [sentence] : [] };
}

/**
 * Decides where to compute. A backend that was asked for is never replaced by another one.
 *
 * @throws RunError when it cannot be used, with the reason; UsageError for devices that are not there.
 */
export function decideBackend(settings: Settings, probe: Probe): BackendChoice {
  const wish = wishOf(settings);
  if (wish.kind === 'cpu') {
    return onCpu(settings);
  }
  const tried: Tried[] = [];
  for (const backend of wish.backends) {
    const state = probe(backend);
    if (state.kind !== 'ready') {
      tried.push({ backend, state });
      continue;
    }
    const { devices, notes } = chooseDevices(settings, backend, state.devices);
    const overridden = settings.backend === 'cpu' || settings.backend === 'metal';
    return {
      backend,
      device: devices[0],
      devices,
      isAsked: wish.by !== undefined,
      notes,
      warnings: [
        ...(overridden
          ? [`${wish.by ?? ''} asks for a GPU: --backend ${settings.backend} has no effect`]
          : []),
        ...withoutEffect(settings, backend),
      ],
    };
  }
  return withoutGpu(settings, wish.by, tried);
}

/** The machine of `--plan-for`: it is only described, so no library is asked. */
function plannedChoice(settings: Settings, machine: PlannedMachine): BackendChoice {
  // A budget for fewer of them leaves the others alone.
  const budgets = settings.gpuVram === 'auto' ? undefined : settings.gpuVram?.length;
  const devices = machine.vramBytes.slice(0, budgets).map((bytes, index): DeviceInfo => ({
    kind: machine.kind,
    index,
    cores: 0,
    totalBytes: bytes,
    freeBytes: bytes,
    name: 'described GPU',
    arch: '',
  }));
  const [device] = devices;
  if (device === undefined || settings.backend === 'cpu') {
    return onCpu(settings);
  }
  const { backend = 'cuda' } = settings;
  return {
    backend: backend === 'metal' ? 'cuda' : backend,
    device,
    devices,
    isAsked: true,
    notes: [],
    warnings: withoutEffect(settings, backend),
  };
}

/** Decides where to compute, with the libraries that are here. */
export async function chooseBackend(
  run: Pick<Run, 'settings' | 'environment'>,
): Promise<BackendChoice> {
  const { settings, environment } = run;
  const { libraryDirectory } = environment;
  const { simulation } = settings;
  // ds4-bench has no pass over all its options together.
  checkPlacement(settings);
  if (settings.planFor !== undefined) {
    return plannedChoice(settings, settings.planFor);
  }
  if (wishOf(settings).kind === 'cpu') {
    return onCpu(settings);
  }
  const { findLibrary, LibraryError, probeBackend, simulate } = await import('../engine/index.js');
  return decideBackend(settings, (backend) => {
    if (simulation !== undefined && findLibrary(backend, libraryDirectory) !== undefined) {
      try {
        simulate(simulation, libraryDirectory);
      } catch (thrown) {
        // The probe meets the same library and has the sentence for it.
        if (!(thrown instanceof LibraryError)) {
          throw thrown;
        }
      }
    }
    return probeBackend(backend, libraryDirectory);
  });
}

/** Whether a device of the choice, which was there when it was made, does not answer any more. */
export async function hasLostDevice(
  { environment }: Pick<Run, 'environment'>,
  { backend, devices }: BackendChoice,
): Promise<boolean> {
  if (devices.length === 0) {
    return false;
  }
  const { probeBackend } = await import('../engine/index.js');
  const state = probeBackend(backend, environment.libraryDirectory);
  const answering = state.kind === 'ready' ? state.devices.map(({ index }) => index) : [];
  return devices.some(({ index }) => !answering.includes(index));
}
