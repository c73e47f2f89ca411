import { describe, expect, it } from 'vitest';
import { scoreText, TextTooShortError } from '../../../src/session/index.js';
import { ScriptedTimeline } from './scripted-timeline.js';

const vocab = 20;

/** Natural log-probability that the scripted model gives a token after others, in plain arithmetic. */
function logprob(before: readonly number[], token: number): number {
  const best = ScriptedTimeline.next(before, vocab);
  const logits = Array.from({ length: vocab }, (_, id) =>
    Math.fround(id === best ? 10 : -id / 100),
  );
  const sum = logits.reduce((total, logit) => total + Math.exp(logit), 0);
  return (logits[token] ?? NaN) - Math.log(sum);
}

const text = Int32Array.from({ length: 60 }, (_, index) => (index * 7) % vocab);

function expectedNll(count: number): number {
  let nll = 0;
  for (let index = 32; index < 32 + count; index += 1) {
    nll -= logprob([...text.subarray(0, index)], text[index] ?? 0);
  }
  return nll;
}

describe('scoring a text', () => {
  it.each([1, 5, 31, 32, 33, 100])('scores tokens 32 and later, in chunks of %i', async (chunk) => {
    const timeline = new ScriptedTimeline(vocab, 1000, chunk);

    const result = await scoreText(timeline, text, { maxScored: 1000, vocab });

    expect(result.tokens).toBe(60);
    expect(result.scored).toBe(28);
    expect(result.nll).toBeCloseTo(expectedNll(28), 6);
  });

  it('scores no more tokens than it was told to', async () => {
    const timeline = new ScriptedTimeline(vocab, 1000, 8);

    const result = await scoreText(timeline, text, { maxScored: 3, vocab });

    expect(result.scored).toBe(3);
    expect(result.nll).toBeCloseTo(expectedNll(3), 6);
  });

  it('scores no more tokens than the context holds', async () => {
    const timeline = new ScriptedTimeline(vocab, 40, 8);

    const result = await scoreText(timeline, text, { maxScored: 1000, vocab });

    expect(result.scored).toBe(8);
    expect(timeline.position).toBeLessThanOrEqual(40);
  });

  it('refuses a text of 32 tokens with both numbers', async () => {
    const timeline = new ScriptedTimeline(vocab, 1000, 8);

    const failure = await scoreText(timeline, text.slice(0, 32), { maxScored: 9, vocab }).catch(
      (thrown: unknown) => thrown,
    );

    expect(failure).toBeInstanceOf(TextTooShortError);
    expect(String(failure)).toMatch(/32 tokens.*more than 32/);
  });

  it('counts up to the number of scored tokens', async () => {
    const timeline = new ScriptedTimeline(vocab, 1000, 40);
    const events: number[] = [];

    await scoreText(timeline, text, { maxScored: 1000, vocab }, (scored) => events.push(scored));

    expect(events).toEqual([9, 28]);
  });
});
