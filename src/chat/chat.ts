import { Ds4Error, ExitCode } from '../error/index.js';
import { textOf } from '../tokenizer/index.js';
import type { Text, Tokenizer } from '../tokenizer/index.js';
import { PromptTokens } from './prompt-tokens.js';

/** How the model is told to think before it answers. `max` needs an effort prefix; without one it is `normal`. */
export type ThinkMode = 'none' | 'normal' | 'max';

/** What a person or a program says. Bytes are for prompts that need not be UTF-8, such as files. */
export interface PromptMessage {
  readonly role: 'system' | 'user';
  readonly content: Text;
}

/** What the model said. */
export interface AssistantMessage {
  readonly role: 'assistant';
  readonly content: string;
  /** What it thought before, without tags. */
  readonly reasoning?: string;
  /**
   * The tokens sampled for `content`. They stand in the prompt instead of a new encoding of `content`, which may cut
   * the text differently: so a continued chat repeats what was evaluated, and bytes that are no text survive.
   */
  readonly contentTokens?: Int32Array;
}

export type Message = PromptMessage | AssistantMessage;

export interface RenderOptions {
  readonly think: ThinkMode;
  /** Instruction that the model was trained with for `max`; placed before the system text. Ignored in other modes. */
  readonly effortPrefix?: string;
}

/** The vocabulary cannot carry a chat. */
export class ChatError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}

const literals = {
  begin: '<｜begin▁of▁sentence｜>',
  end: '<｜end▁of▁sentence｜>',
  user: '<｜User｜>',
  assistant: '<｜Assistant｜>',
  thinkOpen: '<think>',
  thinkClose: '</think>',
} as const;

const longestLiteralBytes = 64;

type Marker = keyof typeof literals;

/** Between messages that share a place in the prompt. */
const blankLine = '\n\n';

const encoder = new TextEncoder();

/**
 * Turns messages into prompt tokens and generated tokens into messages, by the rules of DeepSeek-V4.
 *
 * Markers come from the template alone: text of messages never yields a special token.
 */
export class Chat {
  private readonly tokenizer: Tokenizer;
  private readonly ids: Readonly<Record<Marker, number>>;

  /** @throws ChatError naming every marker that the vocabulary lacks. */
  constructor(tokenizer: Tokenizer) {
    const missing: string[] = [];
    const id = (marker: Marker): number => {
      const found = tokenizer.special(literals[marker]);
      if (found === undefined) {
        missing.push(literals[marker]);
      }
      return found ?? 0;
    };
    this.tokenizer = tokenizer;
    this.ids = {
      begin: id('begin'),
      end: id('end'),
      user: id('user'),
      assistant: id('assistant'),
      thinkOpen: id('thinkOpen'),
      thinkClose: id('thinkClose'),
    };
    if (missing.length > 0) {
      throw new ChatError(
        `cannot chat with this model: its vocabulary has no special token ${missing.join(', ')}; ` +
          'use a DeepSeek-V4 model file',
      );
    }
  }

  /**
   * Tokens that end a turn. Besides the end mark these are the marks that only a prompt may hold: a model that samples
   * one has left its turn. Without thinking the think tags are among them, because nothing would hide their content.
   */
  stopTokens(think: ThinkMode): ReadonlySet<number> {
    const { begin, end, user, assistant, thinkOpen, thinkClose } = this.ids;
    return new Set([
      end,
      begin,
      user,
      assistant,
      ...(think === 'none' ? [thinkOpen, thinkClose] : []),
    ]);
  }

  /** Whether a text is a prompt with its markers already in it, to be encoded with specials as it stands. */
  isRendered(text: Text): boolean {
    const head = typeof text === 'string' ? text : textOf(text.subarray(0, longestLiteralBytes));
    return head.startsWith(literals.begin) || head.startsWith(literals.user);
  }

  /**
   * The whole prompt for these messages.
   *
   * System messages are gathered at the front, user messages in a row are one turn; a blank line joins each. Reasoning
   * of turns before the last user message is dropped. The prompt ends where the model goes on: after a user message with
   * the assistant's opening, after an assistant message with the end mark, and with the system text if there is no more.
   */
  render(messages: readonly Message[], options: RenderOptions): Int32Array {
    const { begin, end, user, assistant, thinkOpen, thinkClose } = this.ids;
    const thinks = options.think !== 'none';
    const system = messages.filter((message) => message.role === 'system');
    const turns = messages.filter((message) => message.role !== 'system');
    const lastUser = turns.findLastIndex((message) => message.role === 'user');

    const prompt = new PromptTokens(this.tokenizer);
    prompt.marker(begin);
    if (options.think === 'max') {
      prompt.text(options.effortPrefix ?? '');
    }
    system
      .map((message) => message.content)
      .filter((content) => content.length > 0)
      .forEach((content, index) => {
        prompt.text(index === 0 ? '' : blankLine);
        prompt.text(content);
      });

    turns.forEach((turn, index) => {
      if (turn.role !== 'assistant') {
        if (turns[index - 1]?.role === 'user') {
          prompt.text(blankLine);
        } else {
          prompt.marker(user);
        }
        prompt.text(turn.content);
        return;
      }
      prompt.marker(assistant);
      if (thinks && index > lastUser) {
        prompt.marker(thinkOpen);
        prompt.text(turn.reasoning ?? '');
      }
      prompt.marker(thinkClose);
      if (turn.contentTokens === undefined) {
        prompt.text(turn.content);
      } else {
        prompt.tokens(turn.contentTokens);
      }
      prompt.marker(end);
    });

    if (turns.at(-1)?.role === 'user') {
      prompt.marker(assistant);
      prompt.marker(thinks ? thinkOpen : thinkClose);
    }
    return prompt.finish();
  }

  /**
   * The message that a turn's generated tokens make: with thinking, what stands before the first closing tag is
   * reasoning, and all of it when the turn ended before one came. A stop token at the end is left out.
   *
   * @throws TokenizerError when a token does not exist.
   */
  parseReply(tokens: Int32Array, think: ThinkMode): AssistantMessage {
    const last = tokens.at(-1);
    const said =
      last !== undefined && this.stopTokens(think).has(last) ? tokens.subarray(0, -1) : tokens;
    if (think === 'none') {
      return { role: 'assistant', content: this.text(said), contentTokens: said.slice() };
    }

    const bytes = this.tokenizer.decode(said);
    const tag = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).indexOf(
      literals.thinkClose,
    );
    if (tag < 0) {
      return { role: 'assistant', reasoning: textOf(bytes), content: '' };
    }
    const contentStart = tag + encoder.encode(literals.thinkClose).length;
    const reply = {
      role: 'assistant',
      reasoning: textOf(bytes.subarray(0, tag)),
      content: textOf(bytes.subarray(contentStart)),
    } as const;
    const firstContentToken = this.tokenAt(said, contentStart);
    return firstContentToken === undefined
      ? reply
      : { ...reply, contentTokens: said.slice(firstContentToken) };
  }

  private text(tokens: Int32Array): string {
    return textOf(this.tokenizer.decode(tokens));
  }

  /** Index of the token that starts at a byte of the decoded text; undefined when the byte is inside one. */
  private tokenAt(tokens: Int32Array, byte: number): number | undefined {
    let at = 0;
    for (const [index, token] of tokens.entries()) {
      if (at >= byte) {
        return at === byte ? index : undefined;
      }
      at += this.tokenizer.pieceBytes(token).length;
    }
    return at === byte ? tokens.length : undefined;
  }
}
