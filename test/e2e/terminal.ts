import { spawn } from '@lydell/node-pty';
import type { IPty } from '@lydell/node-pty';
import xterm from '@xterm/headless';
import { bin, environment } from './program.js';
import type { Folder } from './program.js';

/** ds4 in a pseudo-terminal, with an emulator that knows what a person would see. */
export class ProgramInTerminal {
  readonly #pty: IPty;
  readonly #screen: InstanceType<typeof xterm.Terminal>;
  readonly #watchers = new Set<() => void>();
  #ended = false;
  /** Everything that was sent to the terminal. */
  sent = '';
  readonly done: Promise<{ status: number; signal: number | undefined }>;

  constructor(
    folder: Folder,
    args: readonly string[],
    options: {
      readonly env?: Readonly<Record<string, string | undefined>>;
      readonly columns?: number;
      readonly rows?: number;
      /** Runs this shell line instead, in which `"$@"` is ds4 with its arguments. */
      readonly shell?: string;
    } = {},
  ) {
    const columns = options.columns ?? 80;
    const rows = options.rows ?? 24;
    const command: readonly string[] =
      options.shell === undefined
        ? [bin, ...args]
        : ['bash', '-c', options.shell, 'bash', bin, ...args];
    this.#screen = new xterm.Terminal({
      cols: columns,
      rows,
      scrollback: 2000,
      allowProposedApi: true,
    });
    this.#pty = spawn(command[0] ?? bin, command.slice(1), {
      cols: columns,
      rows,
      cwd: folder.path,
      name: options.env?.['TERM'] ?? 'xterm-256color',
      env: environment(folder, options.env),
    });
    this.#pty.onData((data) => {
      this.sent += data;
      this.#screen.write(data, () => {
        this.#notify();
      });
    });
    this.done = new Promise((settle) => {
      this.#pty.onExit(({ exitCode, signal }) => {
        // What was sent before the end is drawn first.
        this.#screen.write('', () => {
          this.#ended = true;
          this.#notify();
          settle({ status: exitCode, signal: signal === 0 ? undefined : signal });
        });
      });
    });
  }

  #notify(): void {
    for (const watcher of this.#watchers) {
      watcher();
    }
  }

  type(keys: string): void {
    this.#pty.write(keys);
  }

  resize(columns: number, rows: number): void {
    this.#screen.resize(columns, rows);
    this.#pty.resize(columns, rows);
  }

  kill(signal: string): void {
    this.#pty.kill(signal);
  }

  /** Lines as they stand on the screen, scrolled-off ones first, without empty ones at the end. */
  get lines(): string[] {
    const buffer = this.#screen.buffer.active;
    const lines = Array.from({ length: buffer.length }, (_, index) =>
      (buffer.getLine(index)?.translateToString(true) ?? '').trimEnd(),
    );
    while (lines.at(-1) === '') {
      lines.pop();
    }
    return lines;
  }

  /** The same with rows joined that one line has filled, as they are copied. */
  get logicalLines(): string[] {
    const buffer = this.#screen.buffer.active;
    const lines: string[] = [];
    for (let row = 0; row < buffer.length; row += 1) {
      const wraps = buffer.getLine(row + 1)?.isWrapped === true;
      const content = buffer.getLine(row)?.translateToString(!wraps) ?? '';
      const goesOn = buffer.getLine(row)?.isWrapped === true;
      lines.push(goesOn ? `${lines.pop() ?? ''}${content}` : content);
    }
    return lines.map((line) => line.trimEnd());
  }

  get text(): string {
    return this.lines.join('\n');
  }

  get cursor(): { readonly row: number; readonly column: number } {
    const buffer = this.#screen.buffer.active;
    return { row: buffer.baseY + buffer.cursorY, column: buffer.cursorX };
  }

  until(condition: () => boolean, what: string): Promise<void> {
    return new Promise((settle, fail) => {
      const check = (): void => {
        if (condition()) {
          this.#watchers.delete(check);
          settle();
        } else if (this.#ended) {
          this.#watchers.delete(check);
          fail(new Error(`ended before ${what}; screen:\n${this.text}`));
        }
      };
      this.#watchers.add(check);
      check();
    });
  }

  /** Waits until the screen shows a text, `times` times in all. */
  shows(text: string, times = 1): Promise<void> {
    return this.until(
      () => this.text.split(text).length > times,
      `it showed ${JSON.stringify(text)} ${times} times`,
    );
  }

  /** Waits for a prompt with an empty line: the cursor right behind it. */
  async prompt(): Promise<void> {
    await this.until(
      () => this.lines[this.cursor.row] === 'ds4>' && this.cursor.column === 5,
      'it showed a prompt',
    );
  }

  close(): void {
    if (!this.#ended) {
      this.#pty.kill('SIGKILL');
    }
  }
}
