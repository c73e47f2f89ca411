import { createInterface } from 'node:readline';
import { join } from 'node:path';
import { History, LineEditor } from './editor/index.js';
import type { Line } from './editor/index.js';
import type { Environment } from './environment.js';

/** Where a chat's lines come from. */
export interface LineSource {
  readonly isTerminal: boolean;
  next(prompt: string): Promise<Line>;
  /** Remembers a line for the next chats. */
  remember(line: string): void;
  /** Ends the wait for a line and gives the terminal back. */
  abort(): void;
}

/** Terminals that cannot move the cursor. */
const plainTerminals = new Set(['dumb', 'cons25', 'emacs']);

/** Lines of a pipe, or of a terminal without cursor movement: no editing, no history. */
class PlainLines implements LineSource {
  readonly isTerminal = false;
  readonly #showPrompt: (prompt: string) => void;
  readonly #lines: string[] = [];
  #hasEnded = false;
  #wake: (() => void) | undefined;

  constructor(showPrompt: (prompt: string) => void) {
    this.#showPrompt = showPrompt;
    const reader = createInterface({ input: process.stdin, terminal: false });
    reader.on('line', (line) => {
      this.#lines.push(line);
      this.#wake?.();
    });
    reader.on('close', () => {
      this.#hasEnded = true;
      this.#wake?.();
    });
  }

  async next(prompt: string): Promise<Line> {
    this.#showPrompt(prompt);
    while (this.#lines.length === 0 && !this.#hasEnded) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const text = this.#lines.shift();
    return text === undefined ? { kind: 'end' } : { kind: 'line', text };
  }

  remember(): void {
    // Lines of a script are nobody's history.
  }

  abort(): void {
    this.#lines.length = 0;
    this.#hasEnded = true;
    this.#wake?.();
    process.stdin.destroy();
  }
}

class EditedLines implements LineSource {
  readonly isTerminal = true;
  readonly #editor: LineEditor;
  readonly #history: History;

  constructor(output: NodeJS.WriteStream, historyPath: string) {
    this.#history = new History(historyPath);
    this.#editor = new LineEditor({
      input: process.stdin,
      output,
      history: this.#history,
      suspend: () => {
        // As the terminal itself does it: to the whole foreground group.
        process.kill(0, 'SIGTSTP');
      },
    });
    // Raw mode and bracketed paste outlive the process, so they are undone however it ends.
    process.once('exit', () => {
      this.#editor.abort();
    });
  }

  next(prompt: string): Promise<Line> {
    return this.#editor.readLine(prompt);
  }

  remember(line: string): void {
    this.#history.add(line);
  }

  abort(): void {
    this.#editor.abort();
  }
}

/** The editor when stdin is a terminal and there is one to draw on; else plain lines. */
export function openLineSource(environment: Environment): LineSource {
  const output = [process.stdout, process.stderr].find((stream) => stream.isTTY);
  if (!process.stdin.isTTY || output === undefined) {
    return new PlainLines(() => undefined);
  }
  if (plainTerminals.has(environment.terminal ?? '')) {
    return new PlainLines((prompt) => {
      output.write(prompt);
    });
  }
  return new EditedLines(output, join(environment.home ?? '.', '.ds4_history'));
}
