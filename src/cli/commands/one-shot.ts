import { Chat } from '../../chat/index.js';
import type { Text } from '../../tokenizer/index.js';
import { Session } from '../../session/index.js';
import { openExpertTrace, tracedTimeline } from '../expert-trace.js';
import { loadModel } from '../load.js';
import { openingMessages, readPrompt, renderOptions, warnOfMarkers } from '../prompt.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { sayStats } from '../stats.js';
import { openTokenizer } from '../tokens.js';
import { runTurn } from '../turn.js';
import type { TurnRequest } from '../turn.js';

/** Answers one prompt. */
export async function oneShot(run: Run, source: PromptSource): Promise<number> {
  const opening = openingMessages(run);
  const prompt: Text = await readPrompt(source, run.stop);
  using trace = openExpertTrace(run.settings.expertTrace);
  const { model, session: engineSession } = await loadModel(run);
  try {
    const { description, engine } = model;
    const tokenizer = openTokenizer(description.gguf, description.shape.vocab);
    const chat = new Chat(tokenizer);
    const options = renderOptions(run, description, run.settings.think, engineSession.context);
    const sentences = {
      moreRoom: '--ctx gives a larger one',
      interruptedNote: 'interrupted while processing the prompt',
    };
    let request: TurnRequest;
    if (run.settings.raw) {
      const think = 'none';
      request = {
        prompt: tokenizer.encodeWithSpecials(prompt),
        think,
        stopTokens: chat.stopTokens(think),
        ...sentences,
      };
    } else {
      warnOfMarkers(run, chat, prompt);
      request = {
        prompt: chat.render([...opening, { role: 'user', content: prompt }], options),
        think: options.think,
        stopTokens: chat.stopTokens(options.think),
        ...sentences,
      };
    }
    await runTurn(
      run,
      { engine, tokenizer, prefillChunk: engineSession.prefillChunk },
      new Session(tracedTimeline(trace, engineSession, description.shape), description.shape.vocab),
      request,
    );
    trace?.finish();
    await model.saveExpertProfile();
    return run.stop.status ?? 0;
  } finally {
    sayStats(run, model);
    await model.close();
  }
}
