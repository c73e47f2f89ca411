import { Arena, ErrorSlot, loadLibrary, Struct } from './abi.js';
import { LibraryError, MissingDriverError, NativeError } from './errors.js';
import { layoutOf } from './layout.js';
import { findLibrary, libraryCandidates } from './library.js';
import type { BackendName } from './library.js';

export interface DeviceInfo {
  readonly kind: 'host' | 'discrete' | 'integrated' | 'simulated';
  readonly index: number;
  /** Hardware threads of a host, multiprocessors of a GPU. */
  readonly cores: number;
  readonly totalBytes: number;
  readonly freeBytes: number;
  readonly name: string;
  readonly arch: string;
}

const kinds = ['host', 'discrete', 'integrated', 'simulated'] as const;
const mostDevices = 64;

/** What to assume of weights and memory hangs on it, so an unknown one is no other one. */
function kindOf(word: number, backend: BackendName): DeviceInfo['kind'] {
  const kind = kinds[word];
  if (kind === undefined) {
    throw new LibraryError(
      backend,
      `the ${backend} library reports a device of unknown kind ${word}`,
    );
  }
  return kind;
}

/** How many devices there are for a backend, whether its library can open them or not. Throws when the driver cannot tell. */
function countDevices(backend: BackendName, libraryDirectory?: string): number {
  const library = loadLibrary(backend, libraryDirectory);
  const arena = new Arena(ErrorSlot.bytes + 64);
  try {
    const error = new ErrorSlot(arena);
    const count = arena.take(8);
    error.check(
      'ds4_devices',
      library.devices(arena.address(count), 0, arena.address(count), error.address),
    );
    return arena.view.getUint32(count, true);
  } finally {
    arena.free();
  }
}

/** The devices that a backend's library can open. */
export function listDevices(backend: BackendName, libraryDirectory?: string): DeviceInfo[] {
  const library = loadLibrary(backend, libraryDirectory);
  const stride = layoutOf('ds4_device_info').bytes;
  const arena = new Arena(ErrorSlot.bytes + 64 + mostDevices * stride);
  try {
    const error = new ErrorSlot(arena);
    const count = arena.take(8);
    const first = arena.take(mostDevices * stride);
    const entries = Array.from(
      { length: mostDevices },
      (_, index) => new Struct(arena, 'ds4_device_info', first + index * stride),
    );
    error.check(
      'ds4_devices',
      library.devices(arena.address(first), mostDevices, arena.address(count), error.address),
    );
    return entries.slice(0, arena.view.getUint32(count, true)).map((entry) => ({
      kind: kindOf(entry.u32('kind'), backend),
      index: entry.u32('index'),
      cores: entry.u32('core_count'),
      totalBytes: entry.u64('total_bytes'),
      freeBytes: entry.u64('free_bytes'),
      name: entry.text('name', 128),
      arch: entry.text('arch', 64),
    }));
  } finally {
    arena.free();
  }
}

/** What a backend can do on this machine, as a fact and not as a failure. */
export type BackendState =
  | { readonly kind: 'ready'; readonly devices: readonly [DeviceInfo, ...DeviceInfo[]] }
  /** There is no library. */
  | { readonly kind: 'notBuilt'; readonly reason: string }
  /** The library is there and cannot be loaded, belongs to another version of the program, or refuses every device. */
  | { readonly kind: 'broken'; readonly reason: string }
  /** The library is there; the driver or a device is not. */
  | { readonly kind: 'noDevice'; readonly reason: string };

/** Whether the machine has no such device. One whose driver fails may have some. */
function isEmpty(backend: BackendName, libraryDirectory?: string): boolean {
  try {
    return countDevices(backend, libraryDirectory) === 0;
  } catch (thrown) {
    if (thrown instanceof NativeError) {
      return false;
    }
    throw thrown;
  }
}

/** Asks a backend for its devices. Each reason is a clause that can follow a colon. */
export function probeBackend(backend: BackendName, libraryDirectory?: string): BackendState {
  if (findLibrary(backend, libraryDirectory) === undefined) {
    const places = libraryCandidates(backend, libraryDirectory).join(' and no ');
    return { kind: 'notBuilt', reason: `there is no ${places}; build it with: make ${backend}` };
  }
  try {
    const [first, ...others] = listDevices(backend, libraryDirectory);
    return first === undefined
      ? { kind: 'noDevice', reason: 'its library finds no device' }
      : { kind: 'ready', devices: [first, ...others] };
  } catch (thrown) {
    if (thrown instanceof MissingDriverError) {
      return { kind: 'noDevice', reason: thrown.message };
    }
    if (thrown instanceof LibraryError) {
      return { kind: 'broken', reason: thrown.message };
    }
    if (thrown instanceof NativeError) {
      return {
        kind: isEmpty(backend, libraryDirectory) ? 'noDevice' : 'broken',
        reason: thrown.message,
      };
    }
    throw thrown;
  }
}
