import type { TelemetrySnapshot } from '../engine/index.js';
import { formatBytes } from './bytes.js';
import { hitRateText } from './stats.js';
import type { Terminal } from './terminal.js';

const redrawMs = 100;
/** Off a terminal a slow load says so this often. */
const plainLineMs = 10_000;

/** Progress may be drawn in place: stderr is a terminal that can. One that says it has no columns is never done erasing. */
export function drawsProgress(terminal: Terminal, terminalName: string | undefined): boolean {
  const canDraw = terminalName !== 'dumb' && process.stderr.columns !== 0;
  return terminal.stderrIsTerminal && !terminal.quiet && canDraw;
}

/**
 * The prefill line: `processing N input tokens: a/N (p%)`, N being what is not in the KV cache yet. Redrawn in place
 * on a terminal, else one line per event.
 */
export class PrefillProgress {
  readonly #terminal: Terminal;
  readonly #draws: boolean;
  readonly #chunk: number;
  readonly #telemetry: () => TelemetrySnapshot;
  readonly #before: TelemetrySnapshot['experts'];
  #done = 0;
  #total = 0;
  #timer: NodeJS.Timeout | undefined;
  #isOpen = false;

  constructor(options: {
    readonly terminal: Terminal;
    readonly draws: boolean;
    readonly prefillChunk: number;
    readonly telemetry: () => TelemetrySnapshot;
  }) {
    this.#terminal = options.terminal;
    this.#draws = options.draws;
    this.#chunk = options.prefillChunk;
    this.#telemetry = options.telemetry;
    this.#before = options.telemetry().experts;
  }

  readonly update = (done: number, total: number): void => {
    this.#done = done;
    this.#total = total;
    if (this.#terminal.quiet || total === 0) {
      return;
    }
    this.#line(done);
    if (this.#draws && done === 0) {
      this.#timer = setInterval(() => {
        this.#line(this.#estimate());
      }, redrawMs);
    }
    if (done === total) {
      this.end();
    }
  };

  /** Inside a chunk the layer that is being evaluated tells how far it is. */
  #estimate(): number {
    const { layer, layerCount } = this.#telemetry();
    const chunk = Math.min(this.#chunk, this.#total - this.#done);
    const fraction = layerCount > 0 ? Math.min(layer / layerCount, 1) : 0;
    return this.#done + Math.floor(chunk * fraction);
  }

  #line(done: number): void {
    const percent = ((100 * done) / this.#total).toFixed(1);
    const text = `processing ${this.#total} input tokens: ${done}/${this.#total} (${percent}%)`;
    if (this.#draws) {
      const rate = hitRateText(this.#telemetry().experts, this.#before);
      const experts = rate === undefined ? '' : `, ${rate} of the experts in memory`;
      // A line that wraps could not be drawn over.
      const fitting = (text + experts).slice(0, (process.stderr.columns || Infinity) - 1);
      this.#terminal.raw(`\r${this.#terminal.style.progress(fitting)}\u001b[K`);
      this.#isOpen = true;
    } else {
      this.#terminal.raw(`${text}\n`);
    }
  }

  /** Ends the line, also when the work stopped before 100 %. */
  end(): void {
    clearInterval(this.#timer);
    if (this.#isOpen) {
      this.#isOpen = false;
      this.#terminal.raw('\n');
    }
  }
}

/** Shows how a long wait goes on, and takes everything off the screen again when it ends. */
interface Display {
  show(snapshot: TelemetrySnapshot): void;
  end(): void;
}

/** Bytes per second since the first ones were seen. */
class Rate {
  #first: { readonly bytes: number; readonly at: number } | undefined;

  text(bytes: number): string {
    const at = performance.now();
    this.#first ??= { bytes, at };
    const seconds = (at - this.#first.at) / 1000;
    return seconds < 0.5 ? '' : `${formatBytes((bytes - this.#first.bytes) / seconds)}/s`;
  }
}

async function drawnDisplay(what: string, isColored: boolean): Promise<Display> {
  const text = `ds4: ${what}`;
  const [{ default: ora }, { default: progress }] = await Promise.all([
    import('ora'),
    import('cli-progress'),
  ]);
  // Neither may touch stdin, the cursor or signals: those are ours, and a killed process could not restore them.
  const spinner = ora({
    text,
    stream: process.stderr,
    discardStdin: false,
    hideCursor: false,
    color: isColored ? 'cyan' : false,
  }).start();
  const rate = new Rate();
  let bar: InstanceType<typeof progress.SingleBar> | undefined;
  return {
    show: ({ phase, bytesDone, bytesTotal }) => {
      if (phase !== 'load' || bytesTotal === 0) {
        return;
      }
      const payload = {
        read: formatBytes(bytesDone),
        size: formatBytes(bytesTotal),
        rate: rate.text(bytesDone),
      };
      if (bar === undefined) {
        spinner.stop();
        bar = new progress.SingleBar({
          format: `${text} {bar} {percentage}% {read} of {size} {rate}`,
          stream: process.stderr,
          barsize: 20,
          hideCursor: null,
          linewrap: true,
          gracefulExit: false,
          clearOnComplete: true,
          barCompleteChar: '#',
          barIncompleteChar: '-',
        });
        bar.start(bytesTotal, bytesDone, payload);
      }
      bar.update(bytesDone, payload);
    },
    end: () => {
      spinner.stop();
      bar?.stop();
    },
  };
}

function plainDisplay(terminal: Terminal, text: string): Display {
  let last = performance.now();
  const rate = new Rate();
  return {
    show: ({ bytesDone, bytesTotal }) => {
      const speed = rate.text(bytesDone);
      if (performance.now() - last >= plainLineMs && bytesTotal > 0) {
        last = performance.now();
        terminal.note(
          `${text}: ${formatBytes(bytesDone)} of ${formatBytes(bytesTotal)}${speed === '' ? '' : `, ${speed}`}`,
        );
      }
    },
    end: () => undefined,
  };
}

/** Runs `work` with a spinner, and a bar as soon as the number of bytes is known; plain lines off a terminal. */
export async function withProgress<Result>(
  options: {
    readonly terminal: Terminal;
    readonly draws: boolean;
    readonly text: string;
    readonly telemetry: () => TelemetrySnapshot;
  },
  work: () => Promise<Result>,
): Promise<Result> {
  const display = options.draws
    ? await drawnDisplay(options.text, options.terminal.style.isColored)
    : plainDisplay(options.terminal, options.text);
  const timer = setInterval(() => {
    display.show(options.telemetry());
  }, redrawMs);
  try {
    return await work();
  } finally {
    clearInterval(timer);
    display.end();
  }
}
