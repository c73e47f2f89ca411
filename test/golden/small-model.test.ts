// The model that comes with ds4: logits against PyTorch's, and as many right answers as PyTorch gives.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Engine } from '../../src/engine/index.js';
import { openEngine } from './evaluate.js';
import { continueGreedily, exam, Examiner, modelPath, parity, questions } from './exam.js';
import type { Question } from './exam.js';

const eos = 1;

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
  let examiner: Examiner;
  beforeAll(async () => {
    engine = await openEngine(modelPath);
    examiner = new Examiner(engine);
  });
  afterAll(async () => {
    await engine.close();
  });

  async function answerOf(question: Question): Promise<string> {
    const prompt = examiner.promptOf(question);
    const tokens = await continueGreedily(engine, prompt, examiner.stopTokens(question), 200);
    return examiner.contentOf(question, tokens);
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
