import { Chat } from '../../chat/index.js';
import type { EngineSession } from '../../engine/index.js';
import { Session } from '../../session/index.js';
import type { Tokenizer } from '../../tokenizer/index.js';
import { loadModel } from '../load.js';
import type { LoadedModel } from '../load.js';
import { drawsProgress, PrefillProgress } from '../progress.js';
import { openingMessages, readPrompt, renderOptions, warnOfMarkers } from '../prompt.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { openTokenizer } from '../tokens.js';

/** A loaded model that has read the prompt of a diagnostic run. */
export interface EvaluatedPrompt {
  readonly model: LoadedModel;
  readonly tokenizer: Tokenizer;
  readonly engineSession: EngineSession;
  /** Over the engine's. */
  readonly session: Session;
  readonly tokens: Int32Array;
  readonly stopTokens: ReadonlySet<number>;
}

/** Loads the model, renders the prompt as a one-shot run would, evaluates it, does `work`, and frees everything. */
export async function withEvaluatedPrompt(
  run: Run,
  source: PromptSource,
  work: (prompt: EvaluatedPrompt) => Promise<number>,
): Promise<number> {
  const opening = openingMessages(run);
  const prompt = await readPrompt(source, run.stop);
  const { model, session: engineSession } = await loadModel(run);
  try {
    const { shape, gguf } = model.description;
    const tokenizer = openTokenizer(gguf, shape.vocab);
    const chat = new Chat(tokenizer);
    const { think } = run.settings;
    const options = renderOptions(run, model.description, think, engineSession.context);
    if (!run.settings.raw) {
      warnOfMarkers(run, chat, prompt);
    }
    const tokens = run.settings.raw
      ? tokenizer.encodeWithSpecials(prompt)
      : chat.render([...opening, { role: 'user', content: prompt }], options);
    const session = new Session(engineSession, shape.vocab);
    await prefillWithProgress(run, model, engineSession, session, tokens);
    const stopTokens = chat.stopTokens(options.think);
    return await work({ model, tokenizer, engineSession, session, tokens, stopTokens });
  } finally {
    await model.close();
  }
}

/** Evaluates tokens and shows how far it is. */
export async function prefillWithProgress(
  run: Run,
  model: LoadedModel,
  engineSession: EngineSession,
  session: Session,
  tokens: ArrayLike<number>,
): Promise<void> {
  const progress = new PrefillProgress({
    terminal: run.terminal,
    draws: drawsProgress(run.terminal, run.environment.terminal),
    prefillChunk: engineSession.prefillChunk,
    telemetry: () => model.engine.telemetry(),
  });
  try {
    await session.prefill(tokens, { onProgress: progress.update });
  } finally {
    progress.end();
  }
}
