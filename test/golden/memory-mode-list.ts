// Where weights can be: every memory mode with a spread of capacities.
import { resolve } from 'node:path';
import { Engine, simulate } from '../../src/engine/index.js';
import type {
  BackendName,
  EngineOptions,
  ExpertId,
  Simulation,
  WeightOptions,
} from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import type { ModelDescription } from '../../src/model/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';
import { testBackend } from './evaluate.js';

export const hasCard = testBackend() === 'cuda' || testBackend() === 'rocm';

export interface Mode extends Pick<EngineOptions, 'placement' | 'source' | 'upload' | 'weights'> {
  /** Experts that are read before the first token. */
  readonly seeds?: readonly ExpertId[];
  /** Of a simulated GPU; one with memory of its own by default. */
  readonly kind?: Simulation['kind'];
}

export interface Named {
  readonly name: string;
  readonly mode: Mode;
}

export const embedded = describeModel(openGguf(resolve('models/ds4-small.gguf')));
export const fixture = describeModel(openGguf(resolve('test/fixtures/a-q8_0.gguf')));

/** The emulated card's, unless a real one is under test. */
function libraries(backend: BackendName): Pick<EngineOptions, 'libraryDirectory'> {
  const directory =
    process.env['DS4_LIBRARY_DIR'] ??
    (backend === 'cuda' && !hasCard ? resolve('build/emulated') : undefined);
  return directory === undefined ? {} : { libraryDirectory: directory };
}

/** An engine that is not loaded yet. */
export function engineFor(
  description: ModelDescription,
  backend: BackendName,
  { kind, ...options }: Mode,
  slice?: EngineOptions['slice'],
): Engine {
  if (backend === 'sim') {
    simulate(
      { ...simulatedMachine, kind: kind ?? 'discrete' },
      libraries(backend).libraryDirectory,
    );
  }
  return new Engine({
    description,
    backend,
    ...libraries(backend),
    ...options,
    ...(slice === undefined ? {} : { slice }),
  });
}

/** Of any text, `length` tokens. */
export function prompt(length: number, vocab: number, start = 0): Int32Array {
  return Int32Array.from(
    { length },
    (_, index) => ((index + start) * (index + start) * 31 + index * 7 + 5) % vocab,
  );
}

/** What one expert takes of a slot, at most: its matrices, each rounded up to 256 bytes. */
export function unitBytes(description: ModelDescription): number {
  const { shape } = description;
  const largest = Math.max(
    ...description.tensors
      .filter(({ role }) => role.startsWith('expert'))
      .map(({ tensor }) => tensor.bytes / shape.expertCount),
  );
  return 3 * (Math.ceil(largest / 256) * 256);
}

/** Some experts of every layer, in an order of no meaning. */
function someExperts({ shape }: ModelDescription): ExpertId[] {
  const layers = Array.from(
    { length: shape.layerCount },
    (_, layer) => shape.layerCount - 1 - layer,
  );
  return layers.flatMap((layer) =>
    Array.from({ length: shape.expertCount }, (_, expert) => ({
      layer,
      expert: (expert * 3 + layer) % shape.expertCount,
    })).filter((_, index) => index % 2 === 0),
  );
}

export function streaming(description: ModelDescription): Named[] {
  const unit = unitBytes(description);
  const { expertUsed, expertCount, layerCount } = description.shape;
  const all = expertCount * layerCount;
  const experts = (
    name: string,
    slots: number,
    transit: number,
    more: Partial<WeightOptions['experts'] & object> = {},
  ): Named => ({
    name,
    mode: {
      placement: 'streamExperts',
      weights: { experts: { slotBytes: slots * unit, transitBytes: transit * unit, ...more } },
    },
  });
  return [
    experts('streaming without a cache', 0, expertUsed),
    experts("streaming with one token's experts", expertUsed, expertUsed),
    experts('streaming with half of the experts', Math.ceil(all / 2), expertUsed),
    experts('streaming with all experts', all + layerCount, 2 * expertCount),
    experts('streaming that reads layers ahead', 0, 2 * expertCount),
    experts('streaming by use and frequency', Math.ceil(all / 4), expertUsed, { policy: 'lfru' }),
    {
      name: 'streaming with one reader',
      mode: {
        placement: 'streamExperts',
        weights: {
          readThreads: 1,
          experts: { slotBytes: Math.ceil(all / 4) * unit, transitBytes: expertUsed * unit },
        },
      },
    },
    seeded(experts('streaming with a seeded cache', Math.ceil(all / 3), expertUsed), description),
    {
      name: 'streaming past the page cache',
      mode: {
        placement: 'streamExperts',
        source: 'direct',
        weights: {
          readThreads: 1,
          experts: { slotBytes: 5 * unit, transitBytes: expertUsed * unit },
        },
      },
    },
  ];
}

function seeded({ name, mode }: Named, description: ModelDescription): Named {
  return { name, mode: { ...mode, seeds: someExperts(description) } };
}

/** What is copied before the first token is compared with the file, and then used. */
function compared(description: ModelDescription): Named[] {
  const unit = unitBytes(description);
  const { expertUsed } = description.shape;
  const upload = { check: true };
  return [
    { name: 'an upload that is compared with the file', mode: { placement: 'resident', upload } },
    {
      name: 'an upload from the mapping that is compared',
      mode: { placement: 'resident', source: 'mmap', upload },
    },
    {
      name: 'pinned copies that are compared',
      mode: {
        placement: 'mappedExperts',
        upload,
        weights: { pinCopies: true, experts: { slotBytes: 5 * unit } },
      },
    },
    {
      name: 'weights beside streamed experts that are compared',
      mode: {
        placement: 'streamExperts',
        upload,
        weights: { experts: { slotBytes: 0, transitBytes: expertUsed * unit } },
      },
    },
  ];
}

/** On a device that shares main memory. Only the simulated one can be told to. */
export function onSharedMemory(description: ModelDescription): Named[] {
  const unit = unitBytes(description);
  const { expertUsed, expertCount, layerCount } = description.shape;
  const experts = {
    slotBytes: Math.ceil((expertCount * layerCount) / 4) * unit,
    transitBytes: expertUsed * unit,
  };
  const modes: readonly (readonly [string, Mode])[] = [
    ['a staged upload', { placement: 'resident', upload: { slots: 2, slotBytes: 2 ** 16 } }],
    ['a staged upload that is compared', { placement: 'resident', upload: { check: true } }],
    ['an upload past the page cache', { placement: 'resident', source: 'direct' }],
    ['an upload from the mapping', { placement: 'resident', source: 'mmap' }],
    ['experts used in place', { placement: 'mappedExperts' }],
    ['experts in pinned copies', { placement: 'mappedExperts', weights: { pinCopies: true } }],
    ['experts in place and in slots', { placement: 'mappedExperts', weights: { experts } }],
    [
      'little memory for others',
      { placement: 'mappedExperts', weights: { deviceWeightBytes: 2e5 } },
    ],
    ['streaming', { placement: 'streamExperts', weights: { experts } }],
    ['two page slots', { placement: 'resident', weights: { pageSlots: 2 } }],
  ];
  return modes.map(([name, mode]) => ({
    name: `shared memory: ${name}`,
    mode: { ...mode, kind: 'integrated' },
  }));
}

/** On devices with memory of their own. */
export function apart(description: ModelDescription): Named[] {
  const unit = unitBytes(description);
  const { expertUsed, expertCount, layerCount } = description.shape;
  const all = expertCount * layerCount;
  const mapped = (name: string, weights: WeightOptions): Named => ({
    name,
    mode: { placement: 'mappedExperts', weights },
  });
  const slots = (count: number): WeightOptions => ({ experts: { slotBytes: count * unit } });
  return [
    mapped('mapped experts', {}),
    mapped('copies of the experts in pinned memory', { pinCopies: true }),
    mapped("one token's experts in slots", slots(expertUsed)),
    mapped('half of the experts in slots', slots(Math.ceil(all / 2))),
    mapped('all experts in slots', slots(all + layerCount)),
    seeded(mapped('seeded slots', { ...slots(Math.ceil(all / 3)), leaveSlots: true }), description),
    ...streaming(description),
    {
      name: 'streaming with a second tier in host memory',
      mode: {
        placement: 'streamExperts',
        weights: {
          experts: {
            slotBytes: Math.ceil(all / 6) * unit,
            transitBytes: expertUsed * unit,
            hostBytes: Math.ceil(all / 3) * unit,
          },
        },
      },
    },
    {
      name: 'streaming with the tier in host memory alone',
      mode: {
        placement: 'streamExperts',
        weights: {
          experts: {
            slotBytes: 0,
            transitBytes: expertUsed * unit,
            hostBytes: Math.ceil(all / 3) * unit,
          },
        },
      },
    },
    ...compared(description),
    ...[1, 2, 3, 64].map((pageSlots) => ({
      name: `${pageSlots} page slots`,
      mode: { placement: 'resident' as const, weights: { pageSlots } },
    })),
    {
      name: 'two page slots beside streaming',
      mode: {
        placement: 'streamExperts',
        weights: {
          pageSlots: 2,
          experts: { slotBytes: 4 * unit, transitBytes: expertUsed * unit },
        },
      },
    },
    {
      name: 'little device memory for other weights',
      mode: { placement: 'mappedExperts', weights: { deviceWeightBytes: 200_000 } },
    },
    {
      name: 'upload from the mapping',
      mode: { placement: 'resident', source: 'mmap', weights: { dropReadPages: true } },
    },
    {
      name: 'pinned copies and slots from the mapping',
      mode: {
        placement: 'mappedExperts',
        source: 'mmap',
        weights: { pinCopies: true, deviceWeightBytes: 200_000 },
      },
    },
    {
      name: 'direct upload',
      mode: { placement: 'resident', source: 'direct', weights: { dropReadPages: true } },
    },
  ];
}
