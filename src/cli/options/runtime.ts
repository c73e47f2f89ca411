import { InvalidValue, UsageError } from '../errors.js';
import { simulatedMachine } from '../machine-description.js';
import { backendNames } from '../settings.js';
import type { Settings } from '../settings.js';
import { gibValue, integerBetween, positiveInteger, word } from '../values.js';
import { entry } from './entry.js';
import type { OptionEntry } from './entry.js';

const section = 'Model And Runtime';

function backend(text: string) {
  const found = backendNames.find((name) => name === text);
  if (found === undefined) {
    throw new UsageError(`invalid backend: ${text}\nvalid backends are ${backendNames.join(', ')}`);
  }
  return found;
}

const sourceOptions = { mmap: '--mmap', read: '--no-mmap', direct: '--direct-io' } as const;

/** Direct reads are reads, so --no-mmap and --direct-io agree, in either order; a mapping agrees with neither. */
function setSource(settings: Settings, wanted: keyof typeof sourceOptions): void {
  const before = settings.source;
  if (before !== undefined && (before === 'mmap') !== (wanted === 'mmap')) {
    throw new UsageError(
      `${sourceOptions[before]} and ${sourceOptions[wanted]} contradict each other: the file is mapped or it is read`,
    );
  }
  settings.source = before === 'direct' ? before : wanted;
}

export const runtimeOptions: readonly OptionEntry[] = [
  entry({
    names: '-m, --model',
    values: 'FILE',
    section,
    basic: true,
    description:
      'GGUF file to run; of a split model any part. Default: ds4flash.gguf in the current folder, else the small model that comes with ds4.',
    apply: (settings, use) => {
      settings.model = use.value;
    },
  }),
  entry({
    names: '--backend',
    values: 'NAME',
    section,
    basic: true,
    description:
      'Where to compute: cpu, cuda, rocm or sim (metal is not in this build). Default: the first of cuda and rocm that is built and has a device, else cpu.',
    apply: (settings, use) => {
      settings.backend = backend(use.value);
    },
  }),
  ...backendNames
    .flatMap((name) => (name === 'sim' ? [] : [name]))
    .map((name) =>
      entry({
        names: `--${name}`,
        section,
        description: `The same as --backend ${name}.`,
        apply: (settings) => {
          settings.backend = name;
        },
      }),
    ),
  entry({
    names: '--sim',
    values: 'MACHINE',
    section,
    description:
      'Compute on a simulated GPU (backend sim), such as vram=24,link=25. Keys: devices (1 to 16, all alike), vram and used (GiB, of each), ram (GiB), kind (discrete or integrated), link, mapped and disk (GB/s), link-us and disk-us, slow-ms (of each read, by the clock), fail (CALL:N or CALL:N:COUNT).',
    apply: (settings, use) => {
      settings.simulation = simulatedMachine(use.name, use.value);
    },
  }),
  entry({
    names: '-c, --ctx',
    values: 'TOKENS',
    section,
    basic: true,
    description:
      'Context: the most tokens of prompt and answer together. Default: 32768, or what the model was trained for if that is less.',
    apply: (settings, use) => {
      settings.context = positiveInteger(use.value);
    },
  }),
  entry({
    names: '-t, --threads',
    values: 'COUNT',
    section,
    basic: true,
    description: 'CPU threads of the cpu backend. Default: all that the process may use.',
    apply: (settings, use) => {
      settings.threads = positiveInteger(use.value);
    },
  }),
  entry({
    names: '--prefill-chunk',
    values: 'TOKENS',
    section,
    description:
      'Most prompt tokens that are evaluated at once: larger is faster and takes more memory. Never changes the result. Default: 512 on the CPU, 4096 on a GPU, less where memory is short.',
    apply: (settings, use) => {
      settings.prefillChunk = positiveInteger(use.value);
    },
  }),
  entry({
    names: '--quality',
    section,
    basic: true,
    description: 'Exact arithmetic: float32 activations throughout, slower.',
    apply: (settings) => {
      settings.exact = true;
    },
  }),
  entry({
    names: '--warm-weights',
    section,
    description: 'Read every weight page before the first token.',
    apply: (settings) => {
      settings.warm = true;
    },
  }),
  entry({
    names: '--mmap',
    section,
    description:
      'Use the weights in place, through a file mapping. The default of the cpu backend.',
    apply: (settings) => {
      setSource(settings, 'mmap');
    },
  }),
  entry({
    names: '--no-mmap',
    section,
    description: 'Read the weights into memory instead of mapping the file.',
    apply: (settings) => {
      setSource(settings, 'read');
    },
  }),
  entry({
    names: '--mlock',
    section,
    description: 'Keep weights that are in main memory from being swapped out.',
    apply: (settings) => {
      settings.lockWeights = true;
    },
  }),
  entry({
    names: '--check-tensors',
    section,
    description:
      'GPU: look for values that are no numbers, and compare every copy of weights with the file.',
    apply: (settings) => {
      settings.checkTensors = true;
    },
  }),
  entry({
    names: '--direct-io',
    section,
    description:
      'Read the weights past the page cache, where the file system can do that; it includes --no-mmap.',
    apply: (settings) => {
      setSource(settings, 'direct');
    },
  }),
  entry({
    names: '--power',
    values: 'PERCENT',
    section,
    description: 'Duty cycle, 1 to 100; below 100 is not in this build.',
    apply: (settings, use) => {
      let percent: number;
      try {
        percent = integerBetween(1, 100)(use.value);
      } catch (thrown) {
        throw thrown instanceof InvalidValue
          ? new UsageError(`invalid value for --power: ${use.value} (allowed 1..100)`)
          : thrown;
      }
      if (percent < 100) {
        settings.unserved.push({ option: use.name, lacks: 'a duty cycle below 100 percent' });
      }
    },
  }),
  entry({
    names: '--simulate-used-memory',
    values: 'GIB',
    section,
    description:
      'Plan as if something else held this much main memory, to try a smaller machine. Nothing is really taken. With --sim, --plan-for and --inspect too.',
    apply: (settings, use) => {
      settings.simulatedUsedGib = gibValue(use.value);
    },
  }),
  entry({
    names: '--expert-profile',
    values: 'FILE',
    section,
    description:
      'Begin with the experts of earlier runs in the cache: read this file at the start, if it is there, and write it anew at the end. With an answer, a chat, --perplexity-file or ds4-bench, when not all experts are in memory.',
    apply: (settings, use) => {
      settings.expertProfile = use.value;
    },
  }),
  entry({
    names: '--vision',
    values: 'FILE',
    section,
    description: 'Image encoder for /read IMAGE.',
    lacks: 'an image encoder',
  }),
];

export const outputOptions: readonly OptionEntry[] = [
  entry({
    names: '-q, --quiet',
    section: 'Output And Help',
    basic: true,
    description: 'Only warnings, errors and the timing line on stderr.',
    apply: (settings) => {
      settings.quiet = true;
    },
  }),
  entry({
    names: '--color',
    values: 'WHEN',
    section: 'Output And Help',
    description:
      'auto, always or never. auto: only on a terminal, and not with NO_COLOR or TERM=dumb; FORCE_COLOR forces it.',
    apply: (settings, use) => {
      settings.color = word(['auto', 'always', 'never'])(use.value);
    },
  }),
  entry({
    names: '--ui-logo',
    values: 'KIND',
    section: 'Output And Help',
    description: 'Picture of the welcome screen: auto, image, braille or ascii.',
    lacks: 'a welcome picture',
    apply: (_settings, use) => {
      word(['auto', 'image', 'braille', 'ascii'])(use.value);
    },
  }),
  // The parser acts on these two itself, the moment it reaches them.
  entry({
    names: '-h, --help',
    section: 'Output And Help',
    basic: true,
    description: 'This text. A topic may follow: see More Info.',
  }),
  entry({
    names: '--version',
    section: 'Output And Help',
    basic: true,
    description: 'Versions of the program and of its native library, and the backends it has.',
  }),
];
