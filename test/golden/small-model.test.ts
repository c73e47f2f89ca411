// The model that comes with ds4: logits against PyTorch's, and as many right answers as PyTorch gives.
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Chat } from '../../src/chat/index.js';
import type { Message, ThinkMode } from '../../src/chat/index.js';
import type { Engine } from '../../src/engine/index.js';
import { vocabularyOf } from '../../src/model/index.js';
import { Sampler } from '../../src/sampling/index.js';
import { Session } from '../../src/session/index.js';
import { Tokenizer } from '../../src/tokenizer/index.js';
import { openEngine } from './evaluate.js';

const folder = resolve(import.meta.dirname, 'small-model');
const modelPath = resolve(import.meta.dirname, '../../models/ds4-small.gguf');

interface ParityCase {
  readonly task: string;
  readonly prompt: readonly number[];
  readonly top_ids: readonly number[];
  readonly top_logits: string;
  readonly greedy: readonly number[];
}

interface Question {
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

const parity = (
  JSON.parse(readFileSync(resolve(folder, 'parity.json'), 'utf8')) as { cases: ParityCase[] }
).cases;
const [exam, ...questions] = readFileSync(resolve(folder, 'questions.jsonl'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as unknown) as [Exam, ...Question[]];

const eos = 1;

function greedySampler(): Sampler {
  return new Sampler({ temperature: 0, topP: 1, minP: 0, topK: 0, seed: 1n });
}

async function continueGreedily(
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

describe.each([
  { arithmetic: 'exact', accepted: 1e-2 },
  { arithmetic: 'fast', accepted: 0.1 },
] as const)('logits of ds4-small in $arithmetic arithmetic', ({ arithmetic, accepted }) => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await openEngine(modelPath, { arithmetic });
  });
  afterAll(async () => {
    await engine.close();
  });

  test('agree with PyTorch on 50 prompts, and so do the greedy answers', async () => {
    const errors: number[] = [];
    for (const { prompt, top_ids, top_logits, greedy } of parity) {
      await using session = await engine.openSession({ context: 8192, prefillChunk: 512 });
      let logits = new Float32Array();
      for (let at = 0; at < prompt.length; at += 512) {
        const part = Int32Array.from(prompt.slice(at, at + 512));
        logits = new Float32Array((await session.eval(part, { logitsRows: 1 })).logits!);
      }
      const want = new Float32Array(new Uint8Array(Buffer.from(top_logits, 'base64')).buffer);
      const difference = Math.hypot(...top_ids.map((id, k) => logits[id]! - want[k]!));
      errors.push(difference / Math.hypot(...want));
      expect(logits.indexOf(Math.max(...logits))).toBe(top_ids[0]);

      const answer = await continueGreedily(engine, prompt, new Set([eos]), 80);
      expect([...answer, ...(greedy.at(-1) === eos ? [eos] : [])]).toEqual(greedy);
    }

    errors.sort((a, b) => a - b);
    process.stdout.write(
      `ds4-small ${arithmetic}: median ${errors[errors.length >> 1]!.toExponential(2)}, ` +
        `worst ${errors.at(-1)!.toExponential(2)} of ${errors.length} prompts\n`,
    );
    expect(errors).toHaveLength(50);
    expect(errors.at(-1)).toBeLessThanOrEqual(accepted);
  });
});

describe('answers of ds4-small', () => {
  let engine: Engine;
  let tokenizer: Tokenizer;
  let chat: Chat;
  beforeAll(async () => {
    engine = await openEngine(modelPath);
    const { gguf, shape } = engine.description;
    tokenizer = new Tokenizer(vocabularyOf(gguf, shape.vocab));
    chat = new Chat(tokenizer);
  });
  afterAll(async () => {
    await engine.close();
  });

  async function answerOf({ system, messages, think }: Question): Promise<string> {
    const mode: ThinkMode = think === true ? 'normal' : 'none';
    const spoken = messages.map(([role, content]): Message => ({
      role,
      content:
        typeof content === 'string'
          ? content
          : content
              .map((part) => (typeof part === 'string' ? part : exam.sentences[part]!))
              .join(''),
    }));
    const prompt = chat.render([{ role: 'system', content: system }, ...spoken], { think: mode });
    const tokens = await continueGreedily(engine, prompt, chat.stopTokens(mode), 200);
    return chat.parseReply(Int32Array.from(tokens), mode).content;
  }

  test.each(Object.entries(exam.pytorch))(
    '%s: as many are right as PyTorch gets right, within one in a hundred',
    async (task, [right, asked]) => {
      const asking = questions.filter((question) => question.task === task);

      let ours = 0;
      for (const question of asking) {
        ours += (await answerOf(question)) === question.answer ? 1 : 0;
      }

      process.stdout.write(`ds4-small ${task}: ${ours} of ${asked}, PyTorch ${right}\n`);
      expect(asking).toHaveLength(asked);
      expect(Math.abs(ours - right)).toBeLessThanOrEqual(asked / 100);
    },
  );
});
