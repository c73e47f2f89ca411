import { PlanError, planLoad } from '../../src/plan/index.js';
import type { ModelFacts } from './model-facts.js';
import { Refusal } from './refusal.js';
import { nearestBudget } from './shares.js';
import type { Budget, Wanted } from './shares.js';

/** How device memory is made small, and what the planner makes of it: the program will plan the same way. */
export interface Imposition {
  /** Options of ds4 that leave it so much. */
  options(gib: number): string[];
  /** Options that leave it enough for everything. */
  readonly roomy: readonly string[];
  /** Experts that get a slot; undefined when the experts do not stay in main memory. */
  slots(model: ModelFacts, gib: number): number | undefined;
  /** Amounts to choose from, in GiB. */
  candidates(model: ModelFacts): number[];
}

const gibibyte = 2 ** 30;
/** As good as endless: main memory is not what is measured. */
const plenty = 2 ** 50;

function plannedSlots(
  { description }: ModelFacts,
  context: number,
  freeBytes: number,
  budgetGib: number | undefined,
): number | undefined {
  try {
    const plan = planLoad(
      description,
      {
        memoryAvailable: plenty,
        gpu: {
          backend: 'sim',
          index: 0,
          name: 'imposed',
          kind: 'discrete',
          totalBytes: freeBytes,
          freeBytes,
        },
      },
      { context, ...(budgetGib === undefined ? {} : { gpu: { budgetGib } }) },
    );
    return plan.weights.place === 'mappedExperts' ? (plan.weights.experts?.slots ?? 0) : undefined;
  } catch (thrown) {
    if (thrown instanceof PlanError) {
      return undefined;
    }
    throw thrown;
  }
}

/** On a real card: whole GiB by --gpu-vram. */
export function byOption(context: number): Imposition {
  return {
    options: (gib) => ['--gpu-vram', String(gib)],
    roomy: [],
    slots: (model, gib) => plannedSlots(model, context, plenty, gib),
    candidates: ({ description }) =>
      Array.from(
        { length: Math.ceil(description.bytes.total / gibibyte) + 8 },
        (_, index) => index + 1,
      ),
  };
}

/** On a simulated card: by its size, to the byte, so that a small model can be too large for it. */
export function bySimulation(machine: string, context: number): Imposition {
  const steps = 400;
  // The planner leaves 2 GiB and a margin of a simulated card alone.
  const outside = 2.5;
  const card = (gib: number): string[] => [
    '--backend',
    'sim',
    '--sim',
    [`vram=${gib.toFixed(7)}`, ...(machine === '' ? [] : [machine])].join(','),
  ];
  return {
    options: card,
    roomy: card(1024),
    slots: (model, gib) =>
      plannedSlots(model, context, Math.round(Number(gib.toFixed(7)) * gibibyte), undefined),
    candidates: ({ description }) =>
      Array.from(
        { length: steps },
        (_, index) => outside + (0.25 + (2 * description.bytes.total) / gibibyte) * (index / steps),
      ),
  };
}

/**
 * The budget under which the wanted share of the experts has slots, as near as the imposition can be set.
 *
 * @throws Refusal when the planner finds no such placement.
 */
export function budgetFor(imposition: Imposition, model: ModelFacts, wanted: Wanted): Budget {
  const found =
    wanted.kind === 'share'
      ? nearestBudget(
          imposition.candidates(model),
          (gib) => imposition.slots(model, gib),
          wanted.share * model.experts,
        )
      : nearestBudget([wanted.gib], (gib) => imposition.slots(model, gib), 0);
  if (found === undefined) {
    throw new Refusal(
      `with ${wanted.text} of ${model.path} the experts would not stay in main memory; ` +
        'name a smaller amount or use a larger model',
    );
  }
  return found;
}
