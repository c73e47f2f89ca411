// Questions to the model that comes with ds4, and its greedy answers.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { Chat } from '../../src/chat/index.js';
import type { Message, ThinkMode } from '../../src/chat/index.js';
import type { Engine } from '../../src/engine/index.js';
import { vocabularyOf } from '../../src/model/index.js';
import { Sampler } from '../../src/sampling/index.js';
import { Session } from '../../src/session/index.js';
import { Tokenizer } from '../../src/tokenizer/index.js';

const folder = resolve(import.meta.dirname, 'small-model');
export const modelPath = resolve(import.meta.dirname, '../../models/ds4-small.gguf');

export interface ParityCase {
  readonly task: string;
  readonly prompt: readonly number[];
  readonly top_ids: readonly number[];
  readonly top_logits: string;
  readonly greedy: readonly number[];
}

export interface Question {
  readonly task: string;
  readonly system: string;
  readonly messages: readonly (readonly [
    'user' | 'assistant',
    string | readonly (string | number)[],
  ])[];
  readonly think?: boolean;
  readonly answer: string;
}

interface Exam {
  readonly sentences: readonly string[];
  readonly pytorch: Readonly<Record<string, readonly [right: number, asked: number]>>;
}

export const parity = (
  JSON.parse(readFileSync(resolve(folder, 'parity.json'), 'utf8')) as { cases: ParityCase[] }
).cases;
const [first, ...others] = readFileSync(resolve(folder, 'questions.jsonl'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as unknown) as [Exam, ...Question[]];
export const exam = first;
export const questions: readonly Question[] = others;

/** Prompts and replies in the terms of one engine's vocabulary. */
export class Examiner {
  readonly #chat: Chat;

  constructor({ description: { gguf, shape } }: Engine) {
    this.#chat = new Chat(new Tokenizer(vocabularyOf(gguf, shape.vocab)));
  }

  static #mode({ think }: Question): ThinkMode {
    return think === true ? 'normal' : 'none';
  }

  promptOf(question: Question): ArrayLike<number> {
    const spoken = question.messages.map(([role, content]): Message => ({
      role,
      content:
        typeof content === 'string'
          ? content
          : content
              .map((part) => (typeof part === 'string' ? part : exam.sentences[part]!))
              .join(''),
    }));
    const think = Examiner.#mode(question);
    return this.#chat.render([{ role: 'system', content: question.system }, ...spoken], { think });
  }

  stopTokens(question: Question): ReadonlySet<number> {
    return this.#chat.stopTokens(Examiner.#mode(question));
  }

  contentOf(question: Question, tokens: readonly number[]): string {
    return this.#chat.parseReply(Int32Array.from(tokens), Examiner.#mode(question)).content;
  }
}

function greedySampler(): Sampler {
  return new Sampler({ temperature: 0, topP: 1, minP: 0, topK: 0, seed: 1n });
}

export async function continueGreedily(
  engine: Engine,
  prompt: ArrayLike<number>,
  stopTokens: ReadonlySet<number>,
  maxTokens: number,
): Promise<number[]> {
  const timeline = await engine.openSession({ context: 8192, prefillChunk: 512 });
  const session = new Session(timeline, engine.description.shape.vocab);
  const tokens: number[] = [];
  try {
    await session.prefill(prompt);
    await session.generate({
      sampler: greedySampler(),
      stopTokens,
      maxTokens,
      onToken: (token) => {
        tokens.push(token);
      },
    });
  } finally {
    await session.close();
  }
  return tokens;
}
