import fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';
import { AnswerStream } from '../../../src/cli/answer.js';
import { createStyle } from '../../../src/cli/style.js';
import { OutputClosedError, Terminal } from '../../../src/cli/terminal.js';
import type { OutputStream } from '../../../src/cli/terminal.js';
import { openTokenizer } from '../../../src/cli/tokens.js';
import { openGguf } from '../../../src/gguf/index.js';

const tokenizer = openTokenizer(openGguf('test/fixtures/a-q8_0.gguf'), 512);

class Capture implements OutputStream {
  readonly chunks: Buffer[] = [];
  closed = false;
  #onError: ((error: Error) => void) | undefined;

  on(_event: 'error', listener: (error: Error) => void): this {
    this.#onError = listener;
    return this;
  }

  write(data: Uint8Array | string, done?: (error?: Error | null) => void): boolean {
    const error = this.closed ? new Error('EPIPE') : null;
    if (error === null) {
      this.chunks.push(Buffer.from(data));
    } else {
      this.#onError?.(error);
    }
    done?.(error);
    return true;
  }

  get text(): string {
    return Buffer.concat(this.chunks).toString();
  }
}

function open(options: { color?: boolean; quiet?: boolean } = {}) {
  const [stdout, stderr] = [new Capture(), new Capture()];
  const color = options.color ?? false;
  const terminal = new Terminal({
    stdout,
    stderr,
    style: createStyle({ stdout: color, stderr: color }),
    quiet: options.quiet ?? false,
    stdoutIsTerminal: color,
    stderrIsTerminal: color,
  });
  return { stdout, stderr, terminal };
}

async function stream(text: string, think: 'none' | 'normal', color = false): Promise<string> {
  const { stdout, terminal } = open({ color });
  const answer = new AnswerStream(terminal, tokenizer, think);
  for (const id of tokenizer.encodeWithSpecials(text)) {
    await answer.token(id);
  }
  await answer.end();
  return stdout.text;
}

describe('an answer', () => {
  it('is written byte for byte, with one newline at its end', async () => {
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: 'grapheme', minLength: 1 }), async (text) => {
        const plain = text.replaceAll('<', '(').replaceAll('｜', '|').toWellFormed();
        const expected = plain.endsWith('\n') ? plain : `${plain}\n`;

        expect(await stream(plain, 'none')).toBe(expected);
      }),
    );
  });

  it('prints nothing at all when it is empty', async () => {
    expect(await stream('', 'normal', true)).toBe('');
  });

  it('never writes a part of a character', async () => {
    const { stdout, terminal } = open();
    const answer = new AnswerStream(terminal, tokenizer, 'none');
    for (const id of tokenizer.encode('日本😀é')) {
      await answer.token(id);
    }
    await answer.end();

    for (const chunk of stdout.chunks) {
      expect(chunk.toString()).not.toContain('\ufffd');
    }
  });

  it('sends an unfinished character as the bytes it has', async () => {
    const { stdout, terminal } = open();
    const answer = new AnswerStream(terminal, tokenizer, 'none');
    for (const id of tokenizer.encode(Uint8Array.of(0x61, 0xe6, 0x97))) {
      await answer.token(id);
    }

    await answer.end();

    expect(Buffer.concat(stdout.chunks)).toEqual(Buffer.from([0x61, 0xe6, 0x97, 0x0a]));
  });

  it('has thinking, a newline and the answer, and no tags', async () => {
    expect(await stream('hm</think>yes', 'normal')).toBe('hm\nyes\n');
  });

  it('is grey while it thinks, where there are colours', async () => {
    expect(await stream('hm</think>yes', 'normal', true)).toBe('\u001b[90mhm\n\u001b[0myes\n');
  });

  it('ends the colour when it ends while thinking', async () => {
    expect(await stream('hm', 'normal', true)).toBe('\u001b[90mhm\n\u001b[0m');
  });
});

describe('the terminal', () => {
  it('says that nobody reads stdout any more, and runs what was to be done then', async () => {
    const { stdout, terminal } = open();
    let stopped = 0;
    terminal.whenClosed(() => {
      stopped += 1;
    });
    stdout.closed = true;

    await expect(terminal.answer('x')).rejects.toBeInstanceOf(OutputClosedError);
    await expect(terminal.answer('y')).rejects.toBeInstanceOf(OutputClosedError);

    expect(stopped).toBe(1);
  });

  it('waits for a slow reader, but not for ever once it was asked to stop', async () => {
    vi.useFakeTimers();
    const { stdout, terminal } = open();
    stdout.write = () => true;
    let failure: unknown;
    const writing = terminal.answer('x').catch((thrown: unknown) => {
      failure = thrown;
    });

    await vi.advanceTimersByTimeAsync(60_000);
    const beforeStop = failure;
    terminal.stopWaiting();
    await vi.advanceTimersByTimeAsync(1000);
    await writing;
    vi.useRealTimers();

    expect(beforeStop).toBeUndefined();
    expect(failure).toBeInstanceOf(OutputClosedError);
  });

  it('puts its name in front of each line, on stderr only', () => {
    const { stdout, stderr, terminal } = open();

    terminal.error('one\ntwo');

    expect(stderr.text).toBe('ds4: one\nds4: two\n');
    expect(stdout.text).toBe('');
  });

  it('leaves warnings, errors and the timing line with --quiet', () => {
    const { stderr, terminal } = open({ quiet: true });

    terminal.note('note');
    terminal.memory('memory');
    terminal.warning('warning');
    terminal.error('error');
    terminal.timing('timing');

    expect(stderr.text).toBe('ds4: warning\nds4: error\nds4: timing\n');
  });
});
