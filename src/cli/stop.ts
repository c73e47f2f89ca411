/** Exit status of a process that a signal has ended, as a shell shows it. */
const statusOf = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;
type StopSignal = keyof typeof statusOf;

const signals: readonly StopSignal[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/** Where signals come from: `process`, or a test's event emitter. */
export interface SignalSource {
  on(signal: StopSignal, listener: () => void): unknown;
  off(signal: StopSignal, listener: () => void): unknown;
}

/**
 * Turns signals into a request to stop. The first one asks the running work to end in order; from then on the
 * system's own way is back in force, so that a second Ctrl+C kills at once, whatever the program is doing.
 */
export class Stop {
  readonly #source: SignalSource;
  readonly #listeners = new Map<StopSignal, () => void>();
  readonly #actions = new Set<() => void>();
  #status: number | undefined;
  #onInterrupt: (() => void) | undefined;

  constructor(source: SignalSource = process) {
    this.#source = source;
  }

  /** The exit status that was asked for, once something has asked the program to stop. */
  get status(): number | undefined {
    return this.#status;
  }

  listen(): void {
    for (const signal of signals) {
      this.#listen(signal);
    }
  }

  #listen(signal: StopSignal): void {
    if (this.#listeners.has(signal)) {
      return;
    }
    const listener = (): void => {
      this.#ignore(signal);
      if (signal === 'SIGINT' && this.#onInterrupt !== undefined) {
        this.#onInterrupt();
      } else {
        this.request(statusOf[signal]);
      }
    };
    this.#listeners.set(signal, listener);
    this.#source.on(signal, listener);
  }

  #ignore(signal: StopSignal): void {
    const listener = this.#listeners.get(signal);
    if (listener !== undefined) {
      this.#source.off(signal, listener);
      this.#listeners.delete(signal);
    }
  }

  /** Asks the program to stop with this status; the first status counts. */
  request(status: number): void {
    this.#status ??= status;
    for (const action of this.#actions) {
      action();
    }
  }

  /** Runs `action` when the program is asked to stop; at once when it has been already. Undo with the result. */
  onStop(action: () => void): () => void {
    this.#actions.add(action);
    if (this.#status !== undefined) {
      action();
    }
    return () => {
      this.#actions.delete(action);
    };
  }

  /** While `work` runs, the first Ctrl+C does `action` instead of stopping the program; a second one kills. */
  async whileInterruptible<Result>(
    action: () => void,
    work: () => Promise<Result>,
  ): Promise<Result> {
    this.#onInterrupt = action;
    this.#listen('SIGINT');
    try {
      return await work();
    } finally {
      this.#onInterrupt = undefined;
      if (this.#status === undefined) {
        this.#listen('SIGINT');
      }
    }
  }

  close(): void {
    for (const signal of signals) {
      this.#ignore(signal);
    }
  }
}
