import { Arena, ErrorSlot, loadLibrary } from './abi.js';
import { LockFileError, LockHeldError, NativeError, Status } from './errors.js';
import type { BackendName } from './library.js';

/** A held lock file. The operating system frees it too when the process ends. */
export interface Lock {
  readonly path: string;
  release(): void;
}

/**
 * Takes the one lock of all ds4 programs on this machine, without waiting. Needs a native library, because Node
 * has no advisory locks and a file made with `wx` would go stale.
 *
 * @throws LockHeldError with the holder's pid; LockFileError when the file cannot be used.
 */
export function acquireLock(path: string, backend: BackendName, libraryDirectory?: string): Lock {
  const library = loadLibrary(backend, libraryDirectory);
  const arena = new Arena(ErrorSlot.bytes + 64);
  try {
    const error = new ErrorSlot(arena);
    const out = arena.take(8);
    const pid = arena.take(8);
    arena.view.setBigUint64(pid, 0n, true);
    const status = library.lockAcquire(path, arena.address(out), arena.address(pid), error.address);
    if (status === Status.busy) {
      const holder = Number(arena.view.getBigUint64(pid, true));
      throw new LockHeldError(path, holder === 0 ? undefined : holder, status);
    }
    try {
      error.check('ds4_lock_acquire', status);
    } catch (reason) {
      throw reason instanceof NativeError
        ? new LockFileError(reason.call, reason.status, reason.message)
        : reason;
    }
    const handle = arena.handle('lock', out);
    let held = true;
    return {
      path,
      release: () => {
        if (held) {
          held = false;
          library.lockRelease(handle);
        }
      },
    };
  } finally {
    arena.free();
  }
}
