// The emulated card that `make gpu-emulated` builds, and what tests can do to it.
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import koffi from 'koffi';

export const libraryDirectory = resolve('build/emulated');
const library = resolve(libraryDirectory, 'libds4-cuda.so');
export const hasEmulatedCard = existsSync(library);

/** Errors of test/emulated/runtime.h. After the last one every call fails. */
export const outOfMemory = 2;
export const notSupported = 801;
export const launchFailure = 719;

/** The card's controls, of test/emulated/runtime.h. */
function openCard() {
  const native = koffi.load(library);
  const failCall = native.func(
    'void _ZN3ds48emulated9fail_callEPKc10gpuError_ti(const char *, int, int)',
  );
  const mend = native.func('void _ZN3ds48emulated4mendEv()');
  const card = native.func('void *_ZN3ds48emulated4cardEv()');
  const hang = native.func('void _ZN3ds48emulated4hangEmj(uint64_t, uint32_t)');
  const works = native.func('uint64_t _ZN3ds48emulated5worksEv()');
  const uses = native.func('uint64_t _ZN3ds48emulated4usesEPKc(const char *)');
  const allocated = native.func('uint64_t _ZN3ds48emulated15allocated_bytesEv()');
  const pinned = native.func('uint64_t _ZN3ds48emulated12pinned_bytesEv()');
  return {
    failCall: (call: string, error: number, skip = 0) => {
      failCall(call, error, skip);
    },
    /** After so many more works of its streams the card does nothing any more. */
    hang: (afterWorks: number, patienceMs: number) => {
      hang(afterWorks, patienceMs);
    },
    /** How often a call was made so far. */
    uses: (call: string) => Number(uses(call)),
    /** What was put on its streams so far. */
    works: () => Number(works()),
    /** Forgets planned failures; a card that hung has forgotten its memory, too. */
    mend: () => {
      mend();
    },
    /** Below 0: no driver. */
    setCount: (count: number) => {
      new Int32Array(koffi.view(card() as bigint, 4))[0] = count;
    },
    heldBytes: () => Number(allocated()) + Number(pinned()),
  };
}

let opened: ReturnType<typeof openCard> | undefined;
export function card(): ReturnType<typeof openCard> {
  return (opened ??= openCard());
}
