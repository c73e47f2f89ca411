import { ThinkFilter } from '../chat/index.js';
import type { OutputSegment, ThinkMode } from '../chat/index.js';
import { StreamDecoder } from '../tokenizer/index.js';
import type { Tokenizer } from '../tokenizer/index.js';
import type { LiveLine } from './live-line.js';
import type { Terminal } from './terminal.js';

/**
 * Streams generated tokens to stdout: whole characters only, think tags left out, thinking text grey where there are
 * colours, and a newline at the end of a text that has none. A live line below the text is left to its owner.
 */
export class AnswerStream {
  readonly #terminal: Terminal;
  readonly #tokenizer: Tokenizer;
  readonly #decoder = new StreamDecoder();
  readonly #filter: ThinkFilter;
  readonly #line: LiveLine | undefined;
  #isGrey = false;

  constructor(terminal: Terminal, tokenizer: Tokenizer, think: ThinkMode, line?: LiveLine) {
    this.#terminal = terminal;
    this.#line = line;
    this.#tokenizer = tokenizer;
    this.#filter = new ThinkFilter(think);
  }

  async token(id: number): Promise<void> {
    await this.#write(this.#filter.push(this.#decoder.push(this.#tokenizer.pieceBytes(id))));
  }

  async #write(segments: readonly OutputSegment[]): Promise<void> {
    const { thinkingOn, thinkingOff } = this.#terminal.style;
    for (const { kind, bytes } of segments) {
      const grey = kind === 'thinking';
      const mark = grey === this.#isGrey ? '' : grey ? thinkingOn : thinkingOff;
      this.#isGrey = grey;
      const write = (): Promise<void> =>
        this.#terminal.answer(mark === '' ? bytes : Buffer.concat([Buffer.from(mark), bytes]));
      await (this.#line === undefined ? write() : this.#line.around(bytes, write));
    }
  }

  /** Ends colour and line, whatever stopped the text. An unfinished character goes out as the bytes it has. */
  async end(): Promise<void> {
    await this.#write(this.#filter.push(this.#decoder.end()));
    await this.#write(this.#filter.end());
    if (this.#isGrey) {
      this.#isGrey = false;
      await this.#terminal.answer(this.#terminal.style.thinkingOff);
    }
  }
}
