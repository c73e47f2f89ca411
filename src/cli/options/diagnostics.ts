import { UsageError } from '../errors.js';
import { plannedMachine } from '../machine-description.js';
import type { Diagnostic, Settings } from '../settings.js';
import { positiveInteger } from '../values.js';
import { checked, entry } from './entry.js';
import type { OptionEntry } from './entry.js';

const section = 'Diagnostics And Data Collection';
const noImatrix = 'importance matrix collection';

/** The last use of the same mode wins; two different modes are refused later, when all of the line is known. */
function setMode(settings: Settings, mode: Diagnostic): void {
  settings.diagnostics = [...settings.diagnostics.filter(({ kind }) => kind !== mode.kind), mode];
}

function engineTest(name: string, what: string): OptionEntry {
  return entry({ names: name, section, description: `${what}.`, lacks: 'this self-test' });
}

export const diagnosticOptions: readonly OptionEntry[] = [
  entry({
    names: '--inspect',
    section,
    basic: true,
    description: 'Say what the model file holds and how much memory it takes, and leave.',
    apply: (settings, use) => {
      setMode(settings, { kind: 'inspect', option: use.name });
    },
  }),
  entry({
    names: '--json',
    section,
    basic: true,
    description: 'With --inspect: as JSON.',
    apply: (settings) => {
      settings.json = true;
    },
  }),
  entry({
    names: '--plan-for',
    values: 'MACHINE',
    section,
    description:
      'With --inspect: plan for this machine instead of the one here, such as vram=24,ram=64,kind=discrete (GiB; vram=20+20: two GPUs; vram=0: none).',
    apply: (settings, use) => {
      settings.planFor = plannedMachine(use.name, use.value);
    },
  }),
  entry({
    names: '--stats',
    section,
    description:
      'Say at the end how often experts were in memory and what was read and uploaded. With an answer, a chat or --perplexity-file.',
    apply: (settings) => {
      settings.stats = 'text';
    },
  }),
  entry({
    names: '--stats-json',
    section,
    description:
      'The same as one line of JSON on stderr. Of --stats and --stats-json the last counts.',
    apply: (settings) => {
      settings.stats = 'json';
    },
  }),
  entry({
    names: '--expert-trace',
    values: 'FILE',
    section,
    description:
      'Write which experts each token was sent to. With an answer, a chat or --perplexity-file; tools/expert-trace reads it.',
    apply: (settings, use) => {
      settings.expertTrace = use.value;
    },
  }),
  entry({
    names: '--dump-tokens',
    section,
    basic: true,
    description: 'Print the token ids of the prompt text and leave.',
    apply: (settings, use) => {
      setMode(settings, { kind: 'dumpTokens', option: use.name });
    },
  }),
  entry({
    names: '--dump-logits',
    values: 'FILE',
    section,
    basic: true,
    description: 'Write all logits after the prompt as JSON.',
    apply: (settings, use) => {
      setMode(settings, { kind: 'dumpLogits', option: use.name, file: use.value });
    },
  }),
  entry({
    names: '--dump-logprobs',
    values: 'FILE',
    section,
    basic: true,
    description:
      'Generate greedily and write the best tokens of each step with their log-probabilities as JSON.',
    apply: (settings, use) => {
      setMode(settings, { kind: 'dumpLogprobs', option: use.name, file: use.value });
    },
  }),
  entry({
    names: '--logprobs-top-k',
    values: 'COUNT',
    section,
    description: 'Tokens per step of --dump-logprobs, at most 128. Default: 20.',
    apply: (settings, use) => {
      settings.logprobsTopK = Math.min(positiveInteger(use.value), 128);
    },
  }),
  entry({
    names: '--perplexity-file',
    values: 'FILE',
    section,
    basic: true,
    description: 'Score this text and print its perplexity.',
    apply: (settings, use) => {
      setMode(settings, { kind: 'perplexity', option: use.name, file: use.value });
    },
  }),
  entry({
    names: '--decode-consistency',
    values: 'TOKENS',
    section,
    description: 'Generate greedily, evaluate the same tokens anew, and compare the logits.',
    apply: (settings, use) => {
      const tokens = positiveInteger(use.value);
      setMode(settings, { kind: 'decodeConsistency', option: use.name, tokens });
    },
  }),
  entry({
    names: '--imatrix-dataset',
    values: 'FILE',
    section,
    description: 'Texts for an importance matrix.',
    lacks: noImatrix,
    apply: (settings, use) => {
      settings.imatrixDataset = use.value;
      setMode(settings, { kind: 'imatrix', option: use.name });
    },
  }),
  entry({
    names: '--imatrix-out',
    values: 'FILE',
    section,
    description: 'Where the importance matrix goes.',
    lacks: noImatrix,
    apply: (settings, use) => {
      settings.imatrixOut = use.value;
      setMode(settings, { kind: 'imatrix', option: use.name });
    },
  }),
  ...['prompts', 'tokens', 'min-expert-samples'].map((what) =>
    entry({
      names: what.startsWith('min') ? `--imatrix-${what}` : `--imatrix-max-${what}`,
      values: 'COUNT',
      section,
      description: 'Limit of an importance matrix run.',
      lacks: noImatrix,
      apply: checked(positiveInteger),
    }),
  ),
  engineTest('--head-test', 'Test of the output head'),
  engineTest('--first-token-test', 'Test of the first token'),
  ...['graph', 'graph-full', 'graph-prompt'].map((what) =>
    engineTest(`--metal-${what}-test`, 'Test of the Metal graph'),
  ),
  entry({
    names: '--server',
    section,
    description: 'Not here: serving is the business of ds4-server.',
    apply: () => {
      throw new UsageError(
        '--server: this is the command line; the server is a program of its own, ds4-server',
      );
    },
  }),
  entry({
    names: '--metal-graph-generate',
    section,
    description: 'Removed.',
    apply: () => {
      throw new UsageError('--metal-graph-generate was removed; a prompt with -p does the same');
    },
  }),
];
