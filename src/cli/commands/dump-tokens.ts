import { RunError } from '../errors.js';
import { modelPath } from '../model-file.js';
import { openGguf } from '../../gguf/index.js';
import { readPrompt } from '../prompt.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { openTokenizer } from '../tokens.js';

/**
 * Prints the token ids of the prompt as it is written, without system text and chat markers; with --raw-prompt markers
 * in the text are markers. Needs the vocabulary only: takes no lock and loads nothing.
 */
export async function dumpTokens(run: Run, source: PromptSource): Promise<number> {
  const prompt = await readPrompt(source, run.stop);
  const path = modelPath(run);
  const gguf = openGguf(path);
  const count = gguf.metadata.count('tokenizer.ggml.tokens');
  if (count === undefined) {
    throw new RunError(`required metadata key is missing: tokenizer.ggml.tokens (in '${path}')`);
  }
  const tokenizer = openTokenizer(gguf, count);
  const ids = run.settings.raw ? tokenizer.encodeWithSpecials(prompt) : tokenizer.encode(prompt);
  const lines = Array.from(
    ids,
    (id) => `${String(id).padStart(6)}  ${tokenizer.storedPiece(id)}\n`,
  );
  await run.terminal.answer(`[${Array.from(ids).join(', ')}]\n${lines.join('')}`);
  return 0;
}
