import { InvalidValue, UsageError } from '../errors.js';
import type { Address } from '../settings.js';
import { integerBetween, layerRange, positiveInteger } from '../values.js';
import { entry } from './entry.js';
import type { OptionEntry, OptionUse } from './entry.js';

const section = 'Distributed Inference';
const lacks = 'distributed inference';
const roles = ['coordinator', 'worker', 'none'] as const;

function role(text: string) {
  const found = roles.find((name) => name === text);
  if (found === undefined) {
    throw new UsageError(`invalid distributed role: ${text} (it is one of ${roles.join(', ')})`);
  }
  return found;
}

function address(use: OptionUse, before: Address | undefined): Address {
  if (before !== undefined) {
    throw new UsageError(`${use.name} may be given only once`);
  }
  return { host: use.value, port: integerBetween(1, 65_535)(use.second) };
}

function coordinatorOnly(
  names: string,
  values: string | undefined,
  description: string,
  parse: (text: string) => unknown,
): OptionEntry {
  return entry({
    names,
    ...(values === undefined ? {} : { values }),
    section,
    description,
    requiresArgument: true,
    lacks,
    apply: (settings, use) => {
      parse(use.value);
      settings.coordinatorOnly.push(use.name);
    },
  });
}

export const distributedOptions: readonly OptionEntry[] = [
  entry({
    names: '--role',
    values: 'NAME',
    section,
    requiresArgument: true,
    description: 'coordinator (owns the tokens), worker (computes a range of layers) or none.',
    apply: (settings, use) => {
      settings.role = role(use.value);
    },
  }),
  entry({
    names: '--layers',
    values: 'A:B',
    section,
    requiresArgument: true,
    lacks,
    description: 'Layers of this process, inclusive; A:output goes to the last one and the head.',
    apply: (settings, use) => {
      settings.layers = layerRange(use.value);
    },
  }),
  entry({
    names: '--listen',
    values: 'HOST PORT',
    section,
    requiresArgument: true,
    lacks,
    description: 'Address to listen on; a coordinator needs it.',
    apply: (settings, use) => {
      settings.listen = address(use, settings.listen);
    },
  }),
  entry({
    names: '--coordinator',
    values: 'HOST PORT',
    section,
    requiresArgument: true,
    lacks,
    description: 'Address of the coordinator; a worker needs it.',
    apply: (settings, use) => {
      settings.coordinator = address(use, settings.coordinator);
    },
  }),
  coordinatorOnly(
    '--dist-prefill-chunk',
    'TOKENS',
    'Prompt tokens that travel together.',
    positiveInteger,
  ),
  coordinatorOnly(
    '--dist-prefill-window',
    'CHUNKS',
    'Chunks under way at once, 1 to 64.',
    integerBetween(1, 64),
  ),
  coordinatorOnly(
    '--dist-activation-bits',
    'BITS',
    'Width of the values that travel: 32, 16 or 8.',
    (text) => {
      const bits = positiveInteger(text);
      if (bits !== 32 && bits !== 16 && bits !== 8) {
        throw new InvalidValue(text);
      }
    },
  ),
  entry({
    names: '--dist-replay-check',
    section,
    lacks,
    description: 'Compare with a replay from the tokens.',
    apply: (settings) => {
      settings.replayCheck = true;
    },
  }),
  entry({
    names: '--debug',
    section,
    description: 'Log the route and each hop of a distributed run.',
    apply: (settings) => {
      settings.debug = true;
    },
  }),
];
