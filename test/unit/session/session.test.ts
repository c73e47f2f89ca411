import { describe, expect, it } from 'vitest';
import { NonFiniteError } from '../../../src/engine/index.js';
import { Sampler } from '../../../src/sampling/index.js';
import {
  EmptyPromptError,
  NoFiniteLogitError,
  PromptTooLongError,
  Session,
} from '../../../src/session/index.js';
import { ScriptedTimeline } from './scripted-timeline.js';

const vocab = 50;
const greedy = (): Sampler => new Sampler({ temperature: 0, topP: 1, minP: 0, seed: 1n });

function open(options: { context?: number; chunk?: number; candidateLimit?: number } = {}): {
  timeline: ScriptedTimeline;
  session: Session;
} {
  const timeline = new ScriptedTimeline(
    vocab,
    options.context ?? 100,
    options.chunk ?? 4,
    options.candidateLimit,
  );
  return { timeline, session: new Session(timeline, vocab) };
}

async function generate(
  session: Session,
  options: {
    maxTokens: number;
    sampler?: Sampler;
    stop?: number[];
    onToken?: (id: number) => void;
  },
) {
  const tokens: number[] = [];
  const end = await session.generate({
    sampler: options.sampler ?? greedy(),
    stopTokens: new Set(options.stop ?? []),
    maxTokens: options.maxTokens,
    onToken: (token) => {
      tokens.push(token);
      options.onToken?.(token);
    },
  });
  return { end, tokens };
}

/** What greedy decoding of the scripted model gives. */
function continuation(prompt: readonly number[], count: number): number[] {
  const all = [...prompt];
  for (let index = 0; index < count; index += 1) {
    all.push(ScriptedTimeline.next(all, vocab));
  }
  return all.slice(prompt.length);
}

describe('prefill', () => {
  it('evaluates the prompt in chunks and asks for candidates only at its end', async () => {
    const { timeline, session } = open({ chunk: 4 });

    const computed = await session.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]);

    expect(computed).toBe(9);
    expect(timeline.calls.map(({ tokens }) => tokens)).toEqual([[1, 2, 3, 4], [5, 6, 7, 8], [9]]);
    expect(timeline.calls.map(({ request }) => request.candidates)).toEqual([
      undefined,
      undefined,
      vocab,
    ]);
  });

  it('reports progress from zero to the number of tokens that were not cached', async () => {
    const { session } = open({ chunk: 4 });
    const events: [number, number][] = [];
    await session.prefill([1, 2, 3, 4, 5]);

    await session.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], {
      onProgress: (done, total) => events.push([done, total]),
    });

    expect(events).toEqual([
      [0, 5],
      [4, 5],
      [5, 5],
    ]);
  });

  it('computes only what follows the common beginning', async () => {
    const { timeline, session } = open({ chunk: 8 });
    await session.prefill([1, 2, 3, 4, 5]);
    timeline.calls.length = 0;

    const computed = await session.prefill([1, 2, 3, 9, 9, 9]);

    expect(computed).toBe(3);
    expect(timeline.rewinds).toEqual([3]);
    expect(timeline.calls.map(({ tokens }) => tokens)).toEqual([[9, 9, 9]]);
    expect(session.evaluated).toEqual([1, 2, 3, 9, 9, 9]);
  });

  it('evaluates the last token again when the whole prompt is in the cache with more behind it', async () => {
    const { timeline, session } = open({ chunk: 8 });
    await session.prefill([1, 2, 3, 4, 5]);

    const computed = await session.prefill([1, 2, 3]);

    expect(computed).toBe(1);
    expect(timeline.tokens).toEqual([1, 2, 3]);
    expect(session.candidates.ids[0]).toBe(6);
  });

  it('computes nothing when the same prompt comes again', async () => {
    const { timeline, session } = open();
    await session.prefill([1, 2, 3]);
    timeline.calls.length = 0;

    const computed = await session.prefill([1, 2, 3]);

    expect(computed).toBe(0);
    expect(timeline.calls).toEqual([]);
  });

  it('evaluates again from where the engine could go back to, when that is further back than wished', async () => {
    const { timeline, session } = open({ chunk: 2 });
    await session.prefill([1, 2, 3, 4, 5, 6, 7, 8], { checkpointAt: 3 });

    const computed = await session.prefill([1, 2, 3, 4, 9]);

    expect(computed).toBe(2);
    expect(timeline.tokens).toEqual([1, 2, 3, 4, 9]);
  });

  it('makes the checkpoint at the length that was named, by cutting a chunk there', async () => {
    const { timeline, session } = open({ chunk: 4 });

    await session.prefill([1, 2, 3, 4, 5, 6, 7, 8], { checkpointAt: 6 });

    expect(timeline.checkpoints).toEqual([6]);
    expect(timeline.calls.map(({ tokens }) => tokens.length)).toEqual([4, 2, 2]);
  });

  it.each([10, 11])('refuses a prompt of %i tokens in a context of 10', async (length) => {
    const { timeline, session } = open({ context: 10 });

    const failure = await session.prefill(Array.from({ length }, () => 1)).catch(String);

    expect(failure).toContain(`${length} tokens`);
    expect(failure).toContain('context of 10');
    expect(timeline.calls).toEqual([]);
  });

  it('accepts a prompt one token shorter than the context', async () => {
    const { session } = open({ context: 10 });

    await expect(session.prefill(Array.from({ length: 9 }, () => 1))).resolves.toBe(9);
  });

  it('tells too long and empty prompts apart by class', async () => {
    const { session } = open({ context: 4 });

    await expect(session.prefill([1, 1, 1, 1])).rejects.toBeInstanceOf(PromptTooLongError);
    await expect(session.prefill([])).rejects.toBeInstanceOf(EmptyPromptError);
  });

  it('keeps the chunks that were done when it is cancelled', async () => {
    const { timeline, session } = open({ chunk: 2 });
    const cancelAfterTwo = (done: number): void => {
      timeline.cancelled = done === 2;
    };
    const failure = await session
      .prefill([1, 2, 3, 4], { onProgress: cancelAfterTwo })
      .catch((thrown: unknown) => thrown);
    timeline.cancelled = false;

    const computed = await session.prefill([1, 2, 3, 4]);

    expect(failure).toBeInstanceOf(Error);
    expect(computed).toBe(2);
    expect(timeline.tokens).toEqual([1, 2, 3, 4]);
  });
});

describe('generate', () => {
  it('continues the prompt with the tokens the model chooses', async () => {
    const { session } = open();
    await session.prefill([3, 4]);

    const { end, tokens } = await generate(session, { maxTokens: 5 });

    expect(tokens).toEqual(continuation([3, 4], 5));
    expect(end).toEqual({ reason: 'limit', tokens: 5 });
  });

  it('takes one evaluation for each token but the last', async () => {
    const { timeline, session } = open();
    await session.prefill([3, 4]);
    timeline.calls.length = 0;

    await generate(session, { maxTokens: 5 });

    expect(timeline.calls).toHaveLength(4);
  });

  it('ends at a stop token without showing, counting or evaluating it', async () => {
    const { timeline, session } = open();
    const expected = continuation([3, 4], 3);
    await session.prefill([3, 4]);

    const { end, tokens } = await generate(session, { maxTokens: 9, stop: [expected[2] ?? -1] });

    expect(tokens).toEqual(expected.slice(0, 2));
    expect(end).toEqual({ reason: 'stop', token: expected[2], tokens: 2 });
    expect(timeline.tokens).toEqual([3, 4, ...expected.slice(0, 2)]);
  });

  it('fills the context up to one place and says that this is why it stopped', async () => {
    const { session } = open({ context: 6 });
    await session.prefill([3, 4]);

    const { end } = await generate(session, { maxTokens: 50 });

    expect(end).toEqual({ reason: 'context', tokens: 3 });
  });

  it('generates nothing after a prompt that leaves room for one token', async () => {
    const { session } = open({ context: 3 });
    await session.prefill([3, 4]);

    const { end, tokens } = await generate(session, { maxTokens: 50 });

    expect(tokens).toEqual([]);
    expect(end).toEqual({ reason: 'context', tokens: 0 });
  });

  it('ends in order when it is cancelled, and the conversation goes on from there', async () => {
    const { timeline, session } = open();
    await session.prefill([3, 4]);
    const { end, tokens } = await generate(session, {
      maxTokens: 50,
      onToken: () => {
        timeline.cancelled = timeline.position === 4;
      },
    });
    timeline.cancelled = false;

    const computed = await session.prefill([3, 4, ...tokens, 7]);

    expect(end).toEqual({ reason: 'cancelled', tokens: 3 });
    // The last token that was shown had not been evaluated yet.
    expect(computed).toBe(2);
  });

  it('asks for all logits once when the candidates do not decide', async () => {
    const sampler = new Sampler({ temperature: 100, topP: 1, minP: 0.001, seed: 5n });
    const { timeline, session } = open({ candidateLimit: 3 });
    await session.prefill([3, 4]);

    await generate(session, { maxTokens: 1, sampler });

    expect(timeline.rewinds).toEqual([1]);
    expect(timeline.calls.at(-1)).toEqual({
      tokens: [4],
      request: { candidates: vocab, logitsRows: 1 },
    });
  });

  it('chooses the same tokens from few candidates as from all of them', async () => {
    const run = async (candidateLimit: number): Promise<number[]> => {
      const sampler = new Sampler({ temperature: 8, topP: 0.9, minP: 0.01, seed: 5n });
      const { session } = open({ candidateLimit });
      await session.prefill([3, 4]);
      return (await generate(session, { maxTokens: 30, sampler })).tokens;
    };

    expect(await run(3)).toEqual(await run(vocab));
  });

  it('asks for all logits with each token when the sampler always needs them', async () => {
    const sampler = new Sampler({ temperature: 1, topP: 0.9, minP: 0, seed: 5n });
    const { timeline, session } = open({ candidateLimit: 3 });
    await session.prefill([3, 4]);
    timeline.calls.length = 0;

    await generate(session, { maxTokens: 4, sampler });

    // One repetition for the last prompt token, then one call a token.
    expect(timeline.calls).toHaveLength(4);
    expect(timeline.calls.every(({ request }) => request.logitsRows === 1)).toBe(true);
  });

  it('stops with the position when no logit is finite, and invents no token', async () => {
    const { timeline, session } = open();
    const shown: number[] = [];
    timeline.eval = (tokens) => {
      timeline.tokens.push(...tokens);
      return Promise.resolve({
        candidates: { ids: Int32Array.of(0, 1), logits: Float32Array.of(-Infinity, -Infinity) },
        logits: Float32Array.from({ length: vocab }, () => NaN),
      });
    };
    await session.prefill([3, 4]);

    const failure = await generate(session, {
      maxTokens: 4,
      onToken: (token) => shown.push(token),
    }).catch((thrown: unknown) => thrown);

    expect(failure).toBeInstanceOf(NoFiniteLogitError);
    expect(String(failure)).toContain('position 2');
    expect(shown).toEqual([]);
  });

  it('passes on that the engine met non-finite logits', async () => {
    const { timeline, session } = open();
    await session.prefill([3, 4]);
    timeline.failure = new NonFiniteError('ds4_eval', 7, 'non-finite logits at position 2');

    await expect(generate(session, { maxTokens: 4 })).rejects.toBe(timeline.failure);
  });
});
