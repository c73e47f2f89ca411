import type { ThinkMode } from '../chat/index.js';
import { CancelledError } from '../engine/index.js';
import type { ModelEngine } from '../engine/index.js';
import { Sampler } from '../sampling/index.js';
import type { Candidates } from '../sampling/index.js';
import type { GenerationEnd, Session } from '../session/index.js';
import type { Tokenizer } from '../tokenizer/index.js';
import { AnswerStream } from './answer.js';
import { withLiveLine } from './live-line.js';
import { drawsProgress, PrefillProgress } from './progress.js';
import type { Run } from './run.js';

const tracedTokens = 10;

export interface TurnRequest {
  readonly prompt: Int32Array;
  readonly think: ThinkMode;
  readonly stopTokens: ReadonlySet<number>;
  /** Where the next prompt is likely to leave this one. */
  readonly checkpointAt?: number;
  /** What to do when the context is full. */
  readonly moreRoom: string;
  /** Shown below the answer while it is written, where a terminal can; undefined: nothing yet. */
  readonly liveText?: () => string | undefined;
  /** Said when the prompt was not finished. */
  readonly interruptedNote: string;
}

export interface Turn {
  readonly end: GenerationEnd;
  readonly tokens: readonly number[];
  /** The prompt was not finished; nothing was generated. */
  readonly stoppedInPrompt: boolean;
}

/** A seed for a run that names none. Never 0, which would not be a seed. */
function clockSeed(): bigint {
  const seconds = BigInt(Math.floor(Date.now() / 1000));
  const seed = seconds ^ (BigInt(process.pid) << 32n) ^ process.hrtime.bigint();
  return BigInt.asUintN(64, seed) | 1n;
}

function rate(tokens: number, ms: number): string {
  return (tokens === 0 || ms <= 0 ? 0 : (1000 * tokens) / ms).toFixed(2);
}

/** Per-token lines on stderr that DS4_TOKEN_TIMING and DS4_TRACE_TOP ask for. */
class Trace {
  readonly #run: Run;
  readonly #tokenizer: Tokenizer;
  #step = 0;
  #last = performance.now();

  constructor(run: Run, tokenizer: Tokenizer) {
    this.#run = run;
    this.#tokenizer = tokenizer;
  }

  readonly choice = (token: number, candidates: Candidates): void => {
    const { environment, terminal } = this.#run;
    const now = performance.now();
    if (environment.tokenTiming) {
      terminal.note(`token ${this.#step}: ${(now - this.#last).toFixed(3)} ms`);
    }
    if (environment.traceTop) {
      terminal.note(`step ${this.#step}: chose ${this.#name(token)}`);
      candidates.ids.slice(0, tracedTokens).forEach((id, index) => {
        terminal.note(`  ${this.#name(id)} ${(candidates.logits[index] ?? 0).toFixed(6)}`);
      });
    }
    this.#last = now;
    this.#step += 1;
  };

  #name(id: number): string {
    return `${id} ${JSON.stringify(this.#tokenizer.storedPiece(id))}`;
  }
}

function sayWhyItEnded(run: Run, end: GenerationEnd, context: number, moreRoom: string): void {
  if (end.reason === 'limit') {
    run.terminal.note(`stopped after ${end.tokens} tokens, the limit of -n; a higher -n goes on`);
  } else if (end.reason === 'context') {
    run.terminal.warning(`stopped because the context of ${context} tokens is full; ${moreRoom}`);
  }
}

/**
 * Processes a prompt and streams the answer, with progress before and the timing line after it. Cancelling the engine
 * ends the turn in order.
 *
 * @throws what the session throws; the text that was generated before is complete on stdout then.
 */
export async function runTurn(
  run: Run,
  model: {
    readonly engine: ModelEngine;
    readonly tokenizer: Tokenizer;
    readonly prefillChunk: number;
  },
  session: Session,
  request: TurnRequest,
): Promise<Turn> {
  const { settings, terminal } = run;
  const progress = new PrefillProgress({
    terminal,
    draws: drawsProgress(terminal, run.environment.terminal),
    prefillChunk: model.prefillChunk,
    telemetry: () => model.engine.telemetry(),
  });

  const started = performance.now();
  let computed = 0;
  let stoppedInPrompt = false;
  try {
    await session.prefill(request.prompt, {
      onProgress: (done, total) => {
        computed = done;
        progress.update(done, total);
      },
      ...(request.checkpointAt === undefined ? {} : { checkpointAt: request.checkpointAt }),
    });
  } catch (thrown) {
    if (!(thrown instanceof CancelledError)) {
      throw thrown;
    }
    stoppedInPrompt = true;
  } finally {
    progress.end();
  }
  const prefilled = performance.now();

  const tokens: number[] = [];
  let end: GenerationEnd = { reason: 'cancelled', tokens: 0 };
  if (!stoppedInPrompt) {
    const trace = new Trace(run, model.tokenizer);
    const { temperature, topP, minP, topK, seed } = settings;
    end = await withLiveLine(run, request.liveText, async (line) => {
      const answer = new AnswerStream(terminal, model.tokenizer, request.think, line);
      try {
        return await session.generate({
          sampler: new Sampler({ temperature, topP, minP, topK, seed: seed ?? clockSeed() }),
          stopTokens: request.stopTokens,
          maxTokens: settings.maxTokens,
          onToken: (token) => {
            tokens.push(token);
            return answer.token(token);
          },
          onChoice: trace.choice,
        });
      } finally {
        line?.close();
        await answer.end();
      }
    });
  }
  const generated = performance.now();

  if (stoppedInPrompt) {
    terminal.note(request.interruptedNote);
  }
  sayWhyItEnded(run, end, session.context, request.moreRoom);
  terminal.timing(
    `prefill: ${rate(computed, prefilled - started)} t/s, ` +
      `generation: ${rate(tokens.length, generated - prefilled)} t/s`,
  );
  return { end, tokens, stoppedInPrompt };
}
