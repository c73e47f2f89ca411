import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import {
  copyFileSync,
  mkdtempSync,
  openSync,
  closeSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { openTokenizer } from '../../src/cli/tokens.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';

/** The program as users start it. */
export const bin = resolve('bin/ds4');
const benchBin = resolve('bin/ds4-bench');

/** A model with random weights: its answers are nonsense and often end early. */
export const model = resolve('test/fixtures/a-q8_0.gguf');

/** Ids of the fixtures' special tokens: the ones a model may end its turn with are among them. */
const specialIds = [0, 1, 2, ...Array.from({ length: 8 }, (_, index) => 504 + index)];

export interface Folder {
  readonly path: string;
  file(name: string, content?: string | Uint8Array): string;
  remove(): void;
}

export function temporaryFolder(): Folder {
  const path = mkdtempSync(join(tmpdir(), 'ds4-e2e-'));
  return {
    path,
    file: (name, content) => {
      const file = join(path, name);
      if (content !== undefined) {
        writeFileSync(file, content);
      }
      return file;
    },
    remove: () => {
      rmSync(path, { recursive: true, force: true });
    },
  };
}

/** Overwrites bytes of one tensor of a copy of a model. */
export function patchedModel(
  path: string,
  tensorName: string,
  patch: (bytes: Buffer) => void,
  source = model,
): string {
  copyFileSync(source, path);
  const tensor = openGguf(path).tensors.find(({ name }) => name === tensorName);
  if (tensor === undefined) {
    throw new Error(`${source} has no tensor ${tensorName}`);
  }
  const bytes = readFileSync(path).subarray(tensor.offset, tensor.offset + tensor.bytes);
  patch(bytes);
  const descriptor = openSync(path, 'r+');
  writeSync(descriptor, bytes, 0, bytes.length, tensor.offset);
  closeSync(descriptor);
  return path;
}

/**
 * A copy of the model that never ends its turn: the output rows of the special tokens are zero, so that ordinary tokens
 * are always likelier.
 */
export function endlessModel(path: string): string {
  return patchedModel(path, 'output.weight', (bytes) => {
    const rowBytes = bytes.length / 512;
    for (const id of specialIds) {
      bytes.fill(0, id * rowBytes, (id + 1) * rowBytes);
    }
  });
}

/** A copy of the model that comes with ds4 which answers in words and seldom ends its turn, by the same means. */
export function endlessWords(path: string): string {
  const source = resolve('models/ds4-small.gguf');
  const file = openGguf(source);
  const { vocab } = describeModel(file).shape;
  const tokenizer = openTokenizer(file, vocab);
  const marks = Array.from({ length: vocab }, (_, id) => id).filter((id) =>
    /^<.{2}/.test(tokenizer.storedPiece(id)),
  );
  const patch = (bytes: Buffer): void => {
    const rowBytes = bytes.length / vocab;
    for (const id of marks) {
      bytes.fill(0, id * rowBytes, (id + 1) * rowBytes);
    }
  };
  return patchedModel(path, 'output.weight', patch, source);
}

export interface Start {
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  /** Another program than ds4. */
  readonly program?: string;
  /** What stdin is: a closed empty pipe by default, `open` for a pipe that stays open, or its whole text. */
  readonly stdin?: 'ignore' | 'open' | { readonly text: string | Uint8Array };
}

export interface Outcome {
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Buffer;
  readonly status: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** Environment of a test: nothing of the user's, no GPU, and a lock file of its own. */
export function environment(
  folder: Folder,
  extra: Readonly<Record<string, string | undefined>> = {},
): NodeJS.ProcessEnv {
  return {
    PATH: process.env['PATH'],
    HOME: folder.path,
    DS4_LOCK_FILE: join(folder.path, 'lock'),
    TERM: 'xterm-256color',
    CUDA_VISIBLE_DEVICES: '-1',
    HIP_VISIBLE_DEVICES: '-1',
    ROCR_VISIBLE_DEVICES: '-1',
    ...extra,
  };
}

/** A running ds4. Tests wait for its output, never for time. */
export class Program {
  readonly child: ChildProcess;
  readonly #out: Buffer[] = [];
  readonly #err: Buffer[] = [];
  readonly #watchers = new Set<() => void>();
  readonly done: Promise<Outcome>;
  #ended = false;

  constructor(folder: Folder, args: readonly string[], start: Start = {}) {
    const stdin = start.stdin ?? { text: '' };
    this.child = spawn(start.program ?? bin, args, {
      cwd: start.cwd ?? folder.path,
      env: environment(folder, start.env),
      stdio: [stdin === 'ignore' ? 'ignore' : 'pipe', 'pipe', 'pipe'],
    });
    this.child.stdin?.on('error', () => undefined);
    if (typeof stdin === 'object') {
      this.child.stdin?.end(stdin.text);
    }
    for (const [stream, chunks] of [
      [this.child.stdout, this.#out],
      [this.child.stderr, this.#err],
    ] as const) {
      stream?.on('data', (chunk: Buffer) => {
        chunks.push(chunk);
        this.#notify();
      });
    }
    this.done = new Promise((settle) => {
      this.child.on('close', (status, signal) => {
        this.#ended = true;
        this.#notify();
        const stdoutBytes = Buffer.concat(this.#out);
        settle({
          stdout: stdoutBytes.toString(),
          stderr: Buffer.concat(this.#err).toString(),
          stdoutBytes,
          status,
          signal,
        });
      });
    });
  }

  #notify(): void {
    for (const watcher of this.#watchers) {
      watcher();
    }
  }

  get stdout(): string {
    return Buffer.concat(this.#out).toString();
  }

  get stderr(): string {
    return Buffer.concat(this.#err).toString();
  }

  /** Waits until a condition on the output holds; fails when the program ends before. */
  until(condition: () => boolean, what: string): Promise<void> {
    return new Promise((settle, fail) => {
      const check = (): void => {
        if (condition()) {
          this.#watchers.delete(check);
          settle();
        } else if (this.#ended) {
          this.#watchers.delete(check);
          fail(new Error(`ended before ${what}; stderr: ${this.stderr}; stdout: ${this.stdout}`));
        }
      };
      this.#watchers.add(check);
      check();
    });
  }

  /** Waits until stderr or stdout has a text. */
  says(text: string | RegExp): Promise<void> {
    const pattern = typeof text === 'string' ? undefined : text;
    const has = (output: string): boolean =>
      pattern === undefined ? output.includes(String(text)) : pattern.test(output);
    return this.until(() => has(this.stdout) || has(this.stderr), `it said ${String(text)}`);
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }
}

export function run(folder: Folder, args: readonly string[], start: Start = {}): Promise<Outcome> {
  return new Program(folder, args, start).done;
}

/** The line at the end of every answer. */
export const timingLine =
  /^ds4: prefill: [0-9]+\.[0-9]{2} t\/s, generation: [0-9]+\.[0-9]{2} t\/s$/;

export function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1) ?? '';
}

/** All `N` of the `processing N input tokens` lines that begin a prompt. */
export function processedTokens(stderr: string): number[] {
  return [...stderr.matchAll(/processing ([0-9]+) input tokens: 0\//g)].map((match) =>
    Number(match[1]),
  );
}

/** Runs ds4-bench to its end. */
export async function runBench(args: readonly string[]): Promise<Outcome> {
  const folder = temporaryFolder();
  try {
    return await new Program(folder, args, { program: benchBin }).done;
  } finally {
    folder.remove();
  }
}
