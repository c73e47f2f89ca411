import { Ds4Error, ExitCode } from '../error/index.js';

/** `ds4_status` of native/include/ds4.h. */
export const Status = {
  ok: 0,
  argument: 1,
  noMemory: 2,
  io: 3,
  unsupported: 4,
  device: 5,
  cancelled: 6,
  nonFinite: 7,
  busy: 8,
  internal: 9,
} as const;

/** `DS4_STEP_*` of native/include/ds4.h: parts of a load that can fail by themselves. */
const loadSteps = [
  'other',
  'weights',
  'ring',
  'map',
  'pin',
  'readers',
  'pages',
  'slots',
  'hostTier',
] as const;
export type LoadStep = (typeof loadSteps)[number];

export function loadStepOf(word: number): LoadStep {
  return loadSteps[word] ?? 'other';
}

/** The native library refused or failed. The sentence is the library's own; `call` is for programs. */
export class NativeError extends Ds4Error {
  readonly exitCode: ExitCode = ExitCode.runtime;
  /** What of a load failed. */
  loadStep: LoadStep = 'other';

  constructor(
    readonly call: string,
    readonly status: number,
    sentence: string,
  ) {
    super(sentence === '' ? `${call} failed with status ${status}` : sentence);
  }
}

/** The cancel word was set. The session stands where it stood before the call. */
export class CancelledError extends NativeError {
  override readonly exitCode = ExitCode.interrupted;
}

/** NaN or infinity among the logits. The session stands where it stood before the call. */
export class NonFiniteError extends NativeError {}

/** Host or device memory was not enough. Nothing of what was asked for is kept. */
export class NoMemoryError extends NativeError {}

/** There is no such device, or it failed. */
export class DeviceError extends NativeError {}

/** Another process holds the lock. */
export class LockHeldError extends NativeError {
  override readonly exitCode = ExitCode.usage;

  constructor(
    readonly path: string,
    readonly holderPid: number | undefined,
    status: number,
  ) {
    const holder = holderPid === undefined ? '' : ` (pid ${holderPid})`;
    super(
      'ds4_lock_acquire',
      status,
      `another ds4 process is already running${holder}; refusing to start`,
    );
  }
}

/** The lock file cannot be opened or locked at all. */
export class LockFileError extends NativeError {
  override readonly exitCode = ExitCode.usage;
}

/** The native library of a backend is missing, cannot be loaded, or is of another version. */
export class LibraryError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor(
    readonly backend: string,
    sentence: string,
  ) {
    super(sentence);
  }
}

/** The library is there, and the driver that it is linked to is not: the machine has no such GPU, or is not set up for it. */
export class MissingDriverError extends LibraryError {}

export function nativeError(call: string, status: number, sentence: string): NativeError {
  switch (status) {
    case Status.cancelled:
      return new CancelledError(call, status, sentence);
    case Status.nonFinite:
      return new NonFiniteError(call, status, sentence);
    case Status.noMemory:
      return new NoMemoryError(call, status, sentence);
    case Status.device:
      return new DeviceError(call, status, sentence);
    default:
      return new NativeError(call, status, sentence);
  }
}
