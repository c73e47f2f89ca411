import { topLogprobs } from '../../sampling/index.js';
import { Session } from '../../session/index.js';
import type { Tokenizer } from '../../tokenizer/index.js';
import { RunError } from '../errors.js';
import { jsonNumber } from '../json.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { prefillWithProgress, withEvaluatedPrompt } from './evaluated-prompt.js';

const listed = 10;

interface Difference {
  readonly largest: number;
  readonly at: number;
  readonly rms: number;
}

function difference(live: Float32Array, fresh: Float32Array): Difference {
  let largest = 0;
  let at = 0;
  let squares = 0;
  live.forEach((logit, id) => {
    const gap = Math.abs(logit - (fresh[id] ?? NaN));
    squares += gap * gap;
    // A gap that is no number is the largest of all.
    if (!(gap <= largest)) {
      largest = gap;
      at = id;
    }
  });
  return { largest, at, rms: Math.sqrt(squares / live.length) };
}

function list(run: Run, tokenizer: Tokenizer, name: string, logits: Float32Array): void {
  topLogprobs(logits, listed).forEach(({ id, logit }, rank) => {
    run.terminal.raw(
      `ds4: ${name} top ${rank + 1}: ${id} ${jsonNumber(logit)} ${JSON.stringify(tokenizer.storedPiece(id))}\n`,
    );
  });
}

/**
 * A test: decodes greedily, evaluates the same tokens anew in a fresh session and compares the logits. Everything goes
 * to stderr.
 *
 * @throws RunError when the two disagree about the best token.
 */
export async function decodeConsistency(
  run: Run,
  source: PromptSource,
  count: number,
): Promise<number> {
  return withEvaluatedPrompt(
    run,
    source,
    async ({ model, tokenizer, engineSession, session, tokens }) => {
      const { terminal } = run;
      const room = session.context - tokens.length - 1;
      const steps = Math.min(count, room);
      terminal.raw(
        `ds4: decode consistency: prompt_tokens=${tokens.length} check_after=${steps}\n`,
      );
      for (let step = 0; step < steps; step += 1) {
        const token = session.candidates.ids[0] ?? 0;
        terminal.raw(
          `ds4: decode step ${step}: ${token} ${JSON.stringify(tokenizer.storedPiece(token))}\n`,
        );
        await session.advance(token, { allLogits: step === steps - 1 });
      }
      const live = await session.allLogits();
      const sequence = [...session.evaluated];

      const { session: freshEngineSession, failure } = await model.replaceSession(
        engineSession,
        session.context,
      );
      if (failure !== undefined) {
        throw failure;
      }
      const freshSession = new Session(freshEngineSession, model.description.shape.vocab);
      await prefillWithProgress(run, model, freshEngineSession, freshSession, sequence);
      const fresh = await freshSession.allLogits();

      const { largest, at, rms } = difference(live, fresh);
      const number = (value: number | undefined): string => jsonNumber(value ?? NaN);
      terminal.raw(
        `ds4: decode consistency: prefix_tokens=${sequence.length} vocab=${live.length} max_abs=${number(largest)} ` +
          `at token=${at} live=${number(live[at])} fresh=${number(fresh[at])} rms=${number(rms)}\n`,
      );
      list(run, tokenizer, 'live', live);
      list(run, tokenizer, 'fresh', fresh);
      const best = [live, fresh].map((logits) => topLogprobs(logits, 1)[0]?.id);
      if (best[0] === undefined || best[0] !== best[1]) {
        throw new RunError(
          `decode consistency: the best tokens differ: ${best[0] ?? 'none'} live, ${best[1] ?? 'none'} fresh`,
        );
      }
      return 0;
    },
  );
}
