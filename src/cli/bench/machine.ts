import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { cpus, release, totalmem, type, version } from 'node:os';
import { join } from 'node:path';
import { abiVersion, findLibrary, listDevices } from '../../engine/index.js';
import type { BackendName, DeviceInfo } from '../../engine/index.js';
import type { LoadedModel } from '../load.js';
import { programVersion } from '../version.js';

/** Facts that make a measurement comparable. What cannot be found out is absent. */
export interface Machine {
  readonly backend: BackendName;
  /** Of several GPUs all of them, as for `arch`; their memory and multiprocessors are summed. */
  readonly device: string;
  readonly arch: string;
  readonly deviceCores?: number;
  readonly deviceMemoryBytes?: number;
  readonly driver?: string;
  /** What the library calls the driver through. */
  readonly runtime?: string;
  readonly processor: string;
  readonly processors: number;
  readonly instructionSet: string;
  readonly threads: number;
  readonly memoryBytes: number;
  readonly system: string;
  readonly kernel: string;
  readonly node: string;
  readonly ds4: string;
  readonly nativeInterface: number;
  readonly libraryFile?: string;
  readonly libraryBytes?: number;
  /** Says whether two runs had the same build. */
  readonly librarySha256?: string;
}

function textOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'latin1').trim();
  } catch {
    return undefined;
  }
}

/** Where the parts of a machine say what they are, below `root`: `/`, or a test's folder. */
export function driverVersion(backend: BackendName, root = '/'): string | undefined {
  switch (backend) {
    case 'cuda':
      // NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05  Tue Sep 23 ...
      return /\s([0-9]+\.[0-9]+(?:\.[0-9]+)*)\s/.exec(
        textOf(join(root, 'proc/driver/nvidia/version')) ?? '',
      )?.[1];
    case 'rocm':
      return textOf(join(root, 'sys/module/amdgpu/version'));
    default:
      return undefined;
  }
}

/** CUDA's runtime is a part of the library, which tells the version to nobody; the library's hash stands for it. */
export function runtimeVersion(backend: BackendName, rocm: string): string | undefined {
  return backend === 'rocm' ? textOf(join(rocm, '.info/version')) : undefined;
}

type LibraryFacts = Pick<Machine, 'libraryFile' | 'libraryBytes' | 'librarySha256'>;

function libraryFacts(path: string | undefined): LibraryFacts {
  if (path === undefined) {
    return {};
  }
  try {
    const bytes = readFileSync(path);
    const librarySha256 = createHash('sha256').update(bytes).digest('hex');
    return { libraryFile: path, libraryBytes: bytes.length, librarySha256 };
  } catch {
    // Replaced or removed since it was loaded: what runs is not what lies there.
    return { libraryFile: path };
  }
}

function usedDevices({ plan, split }: LoadedModel, libraryDirectory?: string): DeviceInfo[] {
  const plans = split?.parts.map((part) => part.plan) ?? [plan];
  const indices = plans.flatMap((one) => (one.backend === 'cpu' ? [] : [one.device.index]));
  const devices = listDevices(plan.backend, libraryDirectory);
  return plan.backend === 'cpu'
    ? devices.slice(0, 1)
    : devices.filter(({ index }) => indices.includes(index));
}

const sum = (values: readonly number[]): number => values.reduce((all, value) => all + value, 0);
const list = (values: readonly string[]): string =>
  values.length === 0 ? 'unknown' : values.join(' + ');

/** What a loaded model runs on. Asks the driver and reads the whole library, so not while something is measured. */
export function machineFacts(model: LoadedModel, libraryDirectory: string | undefined): Machine {
  const { backend } = model.plan;
  const devices = usedDevices(model, libraryDirectory);
  const processors = cpus();
  const driver = driverVersion(backend);
  const runtime = runtimeVersion(backend, '/opt/rocm');
  const { threads, instructionSet } = model.engine.info;
  return {
    backend,
    device: list(devices.map(({ name }) => name)),
    arch: list([...new Set(devices.map(({ arch }) => arch))]),
    ...(backend === 'cpu' || devices.length === 0
      ? {}
      : {
          deviceCores: sum(devices.map(({ cores }) => cores)),
          deviceMemoryBytes: sum(devices.map(({ totalBytes }) => totalBytes)),
        }),
    ...(driver === undefined ? {} : { driver }),
    ...(runtime === undefined ? {} : { runtime }),
    processor: processors[0]?.model ?? 'unknown',
    processors: processors.length,
    instructionSet,
    threads,
    memoryBytes: totalmem(),
    system: `${type()} ${release()}`,
    kernel: version(),
    node: process.version,
    ds4: programVersion(),
    nativeInterface: abiVersion,
    ...libraryFacts(findLibrary(backend, libraryDirectory)),
  };
}
