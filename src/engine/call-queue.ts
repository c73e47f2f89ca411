/**
 * Runs calls into one model one after another: native code never sees two at once, and at most one of libuv's few
 * threads waits for it.
 */
export class CallQueue {
  #tail: Promise<unknown> = Promise.resolve();

  /** Runs `work` when all earlier work has ended, well or badly. */
  run<Result>(work: () => Promise<Result>): Promise<Result> {
    const result = this.#tail.then(work, work);
    this.#tail = result.catch(() => undefined);
    return result;
  }
}
