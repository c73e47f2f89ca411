import { readFileSync } from 'node:fs';
import { systemReason, UsageError } from '../errors.js';
import type { PromptSource, Settings, ThinkMode } from '../settings.js';
import { floatBetween, integerBetween, positiveInteger, seedValue } from '../values.js';
import { entry } from './entry.js';
import type { OptionEntry } from './entry.js';

const section = 'Prompt And Sampling';

function setPrompt(settings: Settings, read: () => PromptSource): void {
  if (settings.prompt !== undefined) {
    throw new UsageError('only one prompt source may be given: one -p or one --prompt-file');
  }
  settings.prompt = read();
}

function readPromptFile(path: string): PromptSource {
  try {
    return { kind: 'file', path, text: readFileSync(path) };
  } catch (thrown) {
    throw new UsageError(`failed to open prompt file: ${path} (${systemReason(thrown)})`);
  }
}

function readEffortFile(path: string): string {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(readFileSync(path));
  } catch (thrown) {
    throw new UsageError(
      thrown instanceof TypeError
        ? `--effort-file ${path} is not UTF-8 text`
        : `failed to open effort file: ${path} (${systemReason(thrown)})`,
    );
  }
  if (text === '') {
    throw new UsageError(`--effort-file ${path} is empty`);
  }
  return text;
}

function thinking(name: string, mode: ThinkMode, description: string): OptionEntry {
  return entry({
    names: name,
    section,
    basic: true,
    description,
    apply: (settings) => {
      settings.think = mode;
    },
  });
}

export const promptOptions: readonly OptionEntry[] = [
  entry({
    names: '-p, --prompt',
    values: 'TEXT',
    section,
    basic: true,
    description:
      'Answer this prompt and leave. - reads it from stdin. Without a prompt: chat on a terminal, else all of stdin is the prompt.',
    apply: (settings, use) => {
      setPrompt(settings, () =>
        use.value === '-' ? { kind: 'stdin' } : { kind: 'text', text: use.value },
      );
    },
  }),
  entry({
    names: '--prompt-file',
    values: 'FILE',
    section,
    basic: true,
    description: 'Answer the prompt in this file and leave. - reads stdin.',
    apply: (settings, use) => {
      setPrompt(settings, () =>
        use.value === '-' ? { kind: 'stdin' } : readPromptFile(use.value),
      );
    },
  }),
  entry({
    names: '--interactive',
    section,
    basic: true,
    description: 'Chat, also when stdin is no terminal: then each line is one turn or command.',
    apply: (settings) => {
      settings.interactive = true;
    },
  }),
  entry({
    names: '-sys, --system',
    values: 'TEXT',
    section,
    basic: true,
    description: 'System text; an empty one leaves it out. Default: You are a helpful assistant.',
    apply: (settings, use) => {
      settings.system = use.value;
    },
  }),
  entry({
    names: '--raw, --raw-prompt',
    section,
    description:
      'Take the prompt as it is: no system text, no chat markers added, and markers in the text are read as markers.',
    apply: (settings) => {
      settings.raw = true;
    },
  }),
  entry({
    names: '--prefix-file',
    values: 'FILE',
    section,
    description:
      'Messages to put before the prompt: a JSON array of {"role": "user" or "assistant", "content": text}.',
    apply: (settings, use) => {
      if (settings.prefixFile !== undefined) {
        throw new UsageError('--prefix-file may be given only once');
      }
      settings.prefixFile = use.value;
    },
  }),
  entry({
    names: '-n, --tokens',
    values: 'COUNT',
    section,
    basic: true,
    description: 'Most tokens to generate. Default: 50000, and never more than the context holds.',
    apply: (settings, use) => {
      settings.maxTokens = positiveInteger(use.value);
    },
  }),
  entry({
    names: '--temp',
    values: 'NUMBER',
    section,
    basic: true,
    description: 'Temperature, 0 to 100; 0 always takes the best token. Default: 1.',
    apply: (settings, use) => {
      settings.temperature = floatBetween(0, 100)(use.value);
    },
  }),
  entry({
    names: '--top-p',
    values: 'NUMBER',
    section,
    basic: true,
    description:
      'Sample among the best tokens that together have this probability, 0 to 1. Default: 1.',
    apply: (settings, use) => {
      settings.topP = floatBetween(0, 1)(use.value);
    },
  }),
  entry({
    names: '--min-p',
    values: 'NUMBER',
    section,
    basic: true,
    description:
      'Leave out tokens less probable than this fraction of the best one, 0 to 1. Default: 0.05.',
    apply: (settings, use) => {
      settings.minP = floatBetween(0, 1)(use.value);
    },
  }),
  entry({
    names: '--top-k',
    values: 'COUNT',
    section,
    description: 'Sample among this many best tokens only, up to 1024; 0 is off. Default: 0.',
    apply: (settings, use) => {
      settings.topK = integerBetween(0, 1024)(use.value);
    },
  }),
  entry({
    names: '--seed',
    values: 'NUMBER',
    section,
    basic: true,
    description:
      'Seed of the random choice, 1 to 2^64-1; equal seeds give equal answers. Default: from the clock.',
    apply: (settings, use) => {
      settings.seed = seedValue(use.value);
    },
  }),
  thinking('--think', 'normal', 'Let the model think before it answers. The default.'),
  thinking(
    '--think-max',
    'max',
    'Let it think at length; needs --ctx 393216 or more, else it is --think.',
  ),
  thinking('--nothink', 'none', 'Answer at once.'),
  entry({
    names: '--effort-file',
    values: 'FILE',
    section,
    description:
      "The model's own instruction for --think-max, byte for byte, when its GGUF file does not have it.",
    apply: (settings, use) => {
      settings.effortText = readEffortFile(use.value);
    },
  }),
  entry({
    names: '--think-level',
    values: 'NUMBER',
    section,
    description: 'Thinking effort, 0 to 100.',
    apply: (_settings, use) => {
      integerBetween(0, 100)(use.value);
      throw new UsageError(
        '--think-level is for V4.1 models, which ds4 does not run; use --think, --think-max or --nothink',
      );
    },
  }),
];

const steering = 'Directional Steering';
const noSteering = 'directional steering';

export const steeringOptions: readonly OptionEntry[] = [
  entry({
    names: '--dir-steering-file',
    values: 'FILE',
    section: steering,
    description: 'One direction for each layer.',
    lacks: noSteering,
    apply: (settings, use) => {
      settings.steeringFile = use.value;
    },
  }),
  ...['ffn', 'attn'].map((part) =>
    entry({
      names: `--dir-steering-${part}`,
      values: 'NUMBER',
      section: steering,
      description: `Strength after the ${part === 'ffn' ? 'feed-forward' : 'attention'} block, -100 to 100.`,
      lacks: noSteering,
      apply: (settings, use) => {
        floatBetween(-100, 100)(use.value);
        settings.steeringScale ??= use.name;
      },
    }),
  ),
];
