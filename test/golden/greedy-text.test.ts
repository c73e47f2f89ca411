// Another backend gives the tokens that the CPU gives: greedy answers to 200 prompts of the model that comes with ds4.
import { expect, test } from 'vitest';
import { openEngine, testBackend } from './evaluate.js';
import { continueGreedily, Examiner, modelPath, questions } from './exam.js';

const backend = testBackend() === 'cpu' ? 'sim' : testBackend();
/** The simulated device computes as the CPU does; a card's kernels are worth the time. */
const promptCount = backend === 'sim' ? 20 : 200;
const longestAnswer = 48;

/** Evenly from all of them: every task takes part. */
function asked() {
  const step = questions.length / promptCount;
  return Array.from({ length: promptCount }, (_, index) => questions[Math.floor(index * step)]!);
}

test(`${backend}: ${promptCount} greedy answers are those of the CPU`, async () => {
  await using tested = await openEngine(modelPath, {}, backend);
  await using reference = await openEngine(modelPath, {}, 'cpu');
  const examiner = new Examiner(reference);

  expect(questions.length).toBeGreaterThanOrEqual(promptCount);
  for (const question of asked()) {
    const prompt = examiner.promptOf(question);
    const stop = examiner.stopTokens(question);
    const want = await continueGreedily(reference, prompt, stop, longestAnswer);
    const got = await continueGreedily(tested, prompt, stop, longestAnswer);
    expect(got, JSON.stringify(question.messages)).toEqual(want);
  }
});
