import { Ds4Error, ExitCode } from '../error/index.js';
import type { Style } from './style.js';

/** The reader of stdout has gone. Nobody is left to tell, so it has no sentence. */
export class OutputClosedError extends Ds4Error {
  readonly exitCode = ExitCode.brokenPipe;

  constructor() {
    super('');
  }
}

/** After a request to stop, a reader that takes nothing is waited for this long. */
const patienceMs = 500;

export interface OutputStream {
  write(data: Uint8Array | string, done?: (error?: Error | null) => void): boolean;
  on(event: 'error', listener: (error: Error) => void): unknown;
}

export interface TerminalOptions {
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  readonly style: Style;
  readonly quiet: boolean;
  readonly stdoutIsTerminal: boolean;
  readonly stderrIsTerminal: boolean;
  /** In front of each line of stderr; `ds4` when it is not given. */
  readonly program?: string;
}

/**
 * The two output streams. stdout carries the answer and nothing else; everything said about the work goes to stderr,
 * where each line begins with the program's name.
 */
export class Terminal {
  readonly #stdout: OutputStream;
  readonly #stderr: OutputStream;
  readonly style: Style;
  readonly quiet: boolean;
  readonly stdoutIsTerminal: boolean;
  readonly stderrIsTerminal: boolean;
  readonly #program: string;
  #closed = false;
  #onClosed: (() => void) | undefined;
  #giveUp: (() => void) | undefined;
  #isImpatient = false;

  constructor(options: TerminalOptions) {
    this.#stdout = options.stdout;
    this.#stderr = options.stderr;
    this.style = options.style;
    this.quiet = options.quiet;
    this.stdoutIsTerminal = options.stdoutIsTerminal;
    this.stderrIsTerminal = options.stderrIsTerminal;
    this.#program = options.program ?? 'ds4';
    // Node turns SIGPIPE off and reports a closed reader as an event, which would be fatal without a listener.
    this.#stdout.on('error', () => {
      this.#closed = true;
      this.#onClosed?.();
    });
    this.#stderr.on('error', () => undefined);
  }

  /** What to do, once, when the reader of stdout goes away: stop the work. */
  whenClosed(action: () => void): void {
    this.#onClosed = action;
  }

  /** From now on a write is not waited for very long: the reader may have stopped reading for ever. */
  stopWaiting(): void {
    if (this.#isImpatient) {
      return;
    }
    this.#isImpatient = true;
    setTimeout(() => {
      this.#closed = true;
      this.#giveUp?.();
    }, patienceMs).unref();
  }

  /**
   * Writes to stdout and waits until the bytes are gone.
   *
   * @throws OutputClosedError when nobody reads them.
   */
  async answer(data: Uint8Array | string): Promise<void> {
    if (!this.#closed) {
      await new Promise<void>((resolve) => {
        this.#giveUp = resolve;
        this.#stdout.write(data, (error) => {
          if (error !== undefined && error !== null) {
            this.#closed = true;
          }
          resolve();
        });
      });
    }
    if (this.#closed) {
      throw new OutputClosedError();
    }
  }

  /** Writes to stderr as it is. */
  raw(text: string): void {
    this.#stderr.write(text);
  }

  #lines(text: string, color: (line: string) => string): void {
    for (const line of text.split('\n')) {
      this.raw(`${color(`${this.#program}: ${line}`)}\n`);
    }
  }

  /** Information; left out with --quiet. */
  note(text: string): void {
    if (!this.quiet) {
      this.#lines(text, (line) => line);
    }
  }

  memory(text: string): void {
    if (!this.quiet) {
      this.#lines(text, this.style.memory);
    }
  }

  warning(text: string): void {
    this.#lines(text, this.style.warning);
  }

  error(text: string): void {
    this.#lines(text, this.style.error);
  }

  /** The timing line, which --quiet keeps. */
  timing(text: string): void {
    this.#lines(text, this.style.progress);
  }
}
