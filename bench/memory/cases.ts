import { budgetFor } from './imposed.js';
import type { Imposition } from './imposed.js';
import type { ModelFacts } from './model-facts.js';
import type { Wanted } from './shares.js';

/** Where the experts are that have no slot in device memory; `copies`: nowhere, each is copied at each use. */
export type Mode = 'whole' | 'overflow' | 'streaming' | 'copies';

/** One way to place a model. */
export interface Case {
  readonly mode: Mode;
  readonly model: ModelFacts;
  readonly wanted: string;
  /** Device memory that may be used, where it was made small. */
  readonly budgetGib?: number;
  /** Share of the experts that have a slot, 0 to 1. */
  readonly share: number;
  readonly promptTokens: number;
  readonly options: readonly string[];
}

/** What `weights.place` of ds4-bench has to say. */
export const placeOf: Readonly<Record<Mode, string>> = {
  whole: 'device',
  overflow: 'mappedExperts',
  streaming: 'streamExperts',
  copies: 'streamExperts',
};

/** A few tokens: a long prompt through few slots would read every expert many times over. */
const shortPrompt = 8;
/** So many tokens choose nearly every expert once, for caches that are large enough to keep them all. */
export const longPrompt = 256;

function streamed(cache: number, source: '--direct-io' | '--no-mmap'): string[] {
  return [
    '--ssd-streaming',
    '--ssd-streaming-cache-experts',
    String(cache),
    '--host-expert-cache',
    '0',
    source,
  ];
}

/** Everything in device memory: what the others are compared with. */
export function wholeCase(model: ModelFacts, { roomy }: Imposition): Case {
  return {
    mode: 'whole',
    model,
    wanted: '100 %',
    share: 1,
    promptTokens: shortPrompt,
    options: [...roomy, '--gpu-resident'],
  };
}

/** The rest in main memory, read over the bus. With every expert in a slot there is no rest, so that is no case. */
export function overflowCase(
  model: ModelFacts,
  imposition: Imposition,
  wanted: Wanted,
): Case | undefined {
  const base = { mode: 'overflow', model, wanted: wanted.text, promptTokens: shortPrompt } as const;
  if (wanted.kind === 'share' && wanted.share === 1) {
    return undefined;
  }
  if (wanted.kind === 'share' && wanted.share === 0) {
    return { ...base, share: 0, options: [...imposition.roomy, '--no-gpu-resident'] };
  }
  const { gib, slots } = budgetFor(imposition, model, wanted);
  return {
    ...base,
    budgetGib: gib,
    share: slots / model.experts,
    options: imposition.options(gib),
  };
}

/** The rest in the file, read past the page cache. */
export function streamingCase(model: ModelFacts, imposition: Imposition, wanted: Wanted): Case {
  const base = {
    mode: 'streaming',
    model,
    wanted: wanted.text,
    promptTokens: shortPrompt,
  } as const;
  if (wanted.kind === 'share' && (wanted.share === 0 || wanted.share === 1)) {
    const cache = wanted.share === 0 ? model.used : model.experts;
    return {
      ...base,
      share: cache / model.experts,
      promptTokens: wanted.share === 0 ? shortPrompt : longPrompt,
      options: [...imposition.roomy, ...streamed(cache, '--direct-io')],
    };
  }
  const { gib, slots } = budgetFor(imposition, model, wanted);
  // One token's experts take their places in transit from what overflow has for slots.
  const cache = Math.max(model.used, slots - model.used);
  return {
    ...base,
    budgetGib: gib,
    share: cache / model.experts,
    options: [...imposition.options(gib), ...streamed(cache, '--direct-io')],
  };
}

/** Slots for one token's experts of one layer: nothing stays, each token copies what it needs out of main memory. */
export function copiesCase(model: ModelFacts, { roomy }: Imposition): Case {
  return {
    mode: 'copies',
    model,
    wanted: 'none kept',
    share: model.used / model.experts,
    promptTokens: shortPrompt,
    options: [...roomy, ...streamed(model.used, '--no-mmap')],
  };
}
