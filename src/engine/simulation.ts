import { Arena, ErrorSlot, loadLibrary, Struct } from './abi.js';

/** A machine that does not exist: what `ds4_simulation` of native/include/ds4.h describes. */
export interface Simulation {
  readonly kind: 'discrete' | 'integrated';
  /** Cards, all alike and each with memory of its own; 1 by default. */
  readonly devices?: number;
  /** Of each. */
  readonly vramBytes: number;
  /** Of those, taken by somebody else. */
  readonly usedBytes: number;
  /** Copies between host and device. */
  readonly linkBytesPerSecond: number;
  /** Kernels that read host memory in place. */
  readonly mappedBytesPerSecond: number;
  readonly diskBytesPerSecond: number;
  /** Of each transfer, before its first byte. */
  readonly linkNs: number;
  readonly diskNs: number;
  /** So much longer does each read from a file take, by the clock and not in the ledger; microseconds, 0 by default. */
  readonly readWaitUs?: number;
  /** A call that fails from its nth use on. */
  readonly failure?: SimulatedFailure;
}

export const simulatedCalls = [
  'none',
  'allocate',
  'copy',
  'pin',
  'map',
  'send',
  'wait',
  'read',
  'memory-info',
  'direct',
  'short',
  'lost',
  'read-at',
  'wrong-at',
] as const;
export type SimulatedCall = Exclude<(typeof simulatedCalls)[number], 'none'>;

export interface SimulatedFailure {
  readonly call: SimulatedCall;
  /** The first use that fails, from 1; of `read-at` and `wrong-at` the offset in a file that reads must cover. */
  readonly at: number;
  /** So many uses fail in a row; 0: all from the first on, as always of `lost`. */
  readonly count: number;
}

/** `DS4_DEVICE_*` of native/include/ds4.h. */
const deviceKinds = { discrete: 1, integrated: 2 } as const;

/**
 * Makes the machine that the sim backend computes on another one, for devices that are opened from now on; the failure also
 * meets devices that are open. Without a call of this there is a discrete card of 48 GiB.
 *
 * @throws NativeError when there can be no such machine, LibraryError when the backend is not built.
 */
export function simulate(simulation: Simulation, libraryDirectory?: string): void {
  const library = loadLibrary('sim', libraryDirectory);
  const arena = new Arena(ErrorSlot.bytes + 256);
  try {
    const error = new ErrorSlot(arena);
    const machine = new Struct(arena, 'ds4_simulation');
    machine.setU32('kind', deviceKinds[simulation.kind]);
    machine.setU64('vram_bytes', simulation.vramBytes);
    machine.setU64('used_bytes', simulation.usedBytes);
    machine.setU64('link_bytes_per_second', simulation.linkBytesPerSecond);
    machine.setU64('mapped_bytes_per_second', simulation.mappedBytesPerSecond);
    machine.setU64('disk_bytes_per_second', simulation.diskBytesPerSecond);
    machine.setU32('link_ns', simulation.linkNs);
    machine.setU32('disk_ns', simulation.diskNs);
    machine.setU32('device_count', simulation.devices ?? 1);
    machine.setU32('read_wait_us', simulation.readWaitUs ?? 0);
    if (simulation.failure !== undefined) {
      machine.setU32('fail_call', simulatedCalls.indexOf(simulation.failure.call));
      machine.setU32('fail_count', simulation.failure.count);
      machine.setU64('fail_at', simulation.failure.at);
    }
    error.check('ds4_simulate', library.simulate(machine.address, error.address));
  } finally {
    arena.free();
  }
}
