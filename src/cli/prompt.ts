import { readFileSync } from 'node:fs';
import { findEffortPrefix } from '../chat/index.js';
import type { Chat, Message, RenderOptions, ThinkMode } from '../chat/index.js';
import { Ds4Error, ExitCode } from '../error/index.js';
import type { ModelDescription } from '../model/index.js';
import { systemReason, UsageError } from './errors.js';
import type { Run } from './run.js';
import type { PromptSource } from './settings.js';
import type { Stop } from './stop.js';

/** Less context than this and the model is not asked to think at length: it would run out of room. */
const thinkMaxContext = 393_216;

/** The program was asked to stop while it waited for input. Nobody needs to be told. */
class InputStoppedError extends Ds4Error {
  readonly exitCode = ExitCode.interrupted;

  constructor() {
    super('');
  }
}

/** All of stdin. A request to stop ends the wait. */
async function readStdin(stop: Stop): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  const { stdin } = process;
  await new Promise<void>((resolve, reject) => {
    const forget = stop.onStop(() => {
      stdin.destroy();
      reject(new InputStoppedError());
    });
    stdin.on('data', (chunk: Uint8Array) => {
      chunks.push(chunk);
    });
    stdin.on('error', reject);
    stdin.on('end', () => {
      forget();
      resolve();
    });
  });
  return Buffer.concat(chunks);
}

/**
 * The prompt's bytes, as they were given.
 *
 * @throws UsageError when stdin was to be the prompt and holds nothing.
 */
export async function readPrompt(source: PromptSource, stop: Stop): Promise<string | Uint8Array> {
  if (source.kind !== 'stdin') {
    return source.text;
  }
  const bytes = await readStdin(stop);
  if (bytes.length === 0) {
    throw new UsageError('no prompt: stdin is empty; give one with -p or --prompt-file');
  }
  return bytes;
}

function isMessage(value: unknown): value is { role: 'user' | 'assistant'; content: string } {
  return (
    typeof value === 'object' &&
    value !== null &&
    'role' in value &&
    (value.role === 'user' || value.role === 'assistant') &&
    'content' in value &&
    typeof value.content === 'string'
  );
}

/** The messages of `--prefix-file`. */
export function readPrefix(path: string | undefined): readonly Message[] {
  if (path === undefined) {
    return [];
  }
  let parsed: unknown;
  try {
    parsed = JSON.parse(readFileSync(path, 'utf8'));
  } catch (thrown) {
    throw new UsageError(
      thrown instanceof SyntaxError
        ? `--prefix-file ${path} is not JSON: ${thrown.message}`
        : `failed to open prefix file: ${path} (${systemReason(thrown)})`,
    );
  }
  if (!Array.isArray(parsed) || !parsed.every(isMessage)) {
    throw new UsageError(
      `--prefix-file ${path} must hold an array of {"role": "user" or "assistant", "content": text}`,
    );
  }
  return parsed.map(({ role, content }) => ({ role, content }));
}

/** How the model will be told to think, with a warning when it is less than what was asked for. */
export function renderOptions(
  run: Run,
  description: ModelDescription,
  think: ThinkMode,
  context: number,
): RenderOptions {
  if (think !== 'max') {
    return { think };
  }
  if (context < thinkMaxContext) {
    run.terminal.warning(
      `--think-max needs a context of ${thinkMaxContext} tokens and this one has ${context}: thinking normally`,
    );
    return { think: 'normal' };
  }
  const template = description.gguf.metadata.string('tokenizer.chat_template');
  const effortPrefix =
    run.settings.effortText ?? (template === undefined ? undefined : findEffortPrefix(template));
  if (effortPrefix === undefined) {
    run.terminal.warning(
      "--think-max needs the model's own instruction for it, which this file does not have " +
        '(--effort-file FILE gives it): thinking normally',
    );
    return { think: 'normal' };
  }
  return { think, effortPrefix };
}

/** Says that markers at the start of a prompt are text, because other programs take them as markers. */
export function warnOfMarkers(run: Run, chat: Chat, prompt: string | Uint8Array): void {
  if (chat.isRendered(prompt)) {
    run.terminal.warning(
      'the prompt begins with a chat marker, which is taken as text; --raw-prompt takes markers as markers',
    );
  }
}

/** The system message and those of `--prefix-file`: how every conversation begins. */
export function openingMessages(run: Run): readonly Message[] {
  return [{ role: 'system', content: run.settings.system }, ...readPrefix(run.settings.prefixFile)];
}
