import { readFileSync } from 'node:fs';
import { scoreText } from '../../session/index.js';
import { systemReason, UsageError } from '../errors.js';
import { openExpertTrace, tracedTimeline } from '../expert-trace.js';
import { loadModel } from '../load.js';
import { drawsProgress } from '../progress.js';
import type { Run } from '../run.js';
import { sayStats } from '../stats.js';
import { openTokenizer } from '../tokens.js';

const decimals = 9;
/** Off a terminal the counter would only fill a log. */
const countEvery = 256;

function readText(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (thrown) {
    throw new UsageError(`failed to open perplexity file: ${path} (${systemReason(thrown)})`);
  }
}

/** Scores a file and prints one line. The text is taken as it is: no chat markers, nothing special in it. */
export async function perplexity(run: Run, file: string): Promise<number> {
  const { terminal, settings } = run;
  const text = readText(file);
  using trace = openExpertTrace(settings.expertTrace);
  const { model, session } = await loadModel(run);
  try {
    const { shape, gguf } = model.description;
    const tokens = openTokenizer(gguf, shape.vocab).encode(text);
    const draws = drawsProgress(terminal, run.environment.terminal);
    let counted = 0;
    const result = await scoreText(
      tracedTimeline(trace, session, shape),
      tokens,
      { maxScored: settings.maxTokens, vocab: shape.vocab },
      (scored, total) => {
        if (draws && (scored - counted >= countEvery || scored === total)) {
          counted = scored;
          terminal.raw(`\r${terminal.style.progress(`scored ${scored}/${total} tokens`)}\u001b[K`);
        }
      },
    ).finally(() => {
      if (counted > 0) {
        terminal.raw('\n');
      }
    });
    const average = result.nll / result.scored;
    await terminal.answer(
      `tokens=${result.tokens} scored=${result.scored} nll=${result.nll.toFixed(decimals)} ` +
        `avg_nll=${average.toFixed(decimals)} ppl=${Math.exp(average).toFixed(decimals)}\n`,
    );
    trace?.finish();
    await model.saveExpertProfile();
    return 0;
  } finally {
    sayStats(run, model);
    await model.close();
  }
}
