import type { ModelDescription } from '../model/index.js';
import { deviceText, refusal, roomOf } from './budget.js';
import { planGpu, planGpuSession } from './gpu-plan.js';
import { hiddenStateBytes } from './hidden-states.js';
import { planHost } from './host-plan.js';
import { usedMemoryReasons } from './machine-reasons.js';
import { sliceOf } from './model-parts.js';
import { deviceBytesOf, gib, pinnedBytesOf, PlanError } from './plan.js';
import type {
  GpuFacts,
  LoadPlan,
  MachineFacts,
  PlanPart,
  PlanReason,
  PlanRequest,
  SplitPlan,
} from './plan.js';
import { Sessions } from './sessions.js';
import { leastBytes, shareLayers } from './split-layers.js';
import { variableReasons } from './variables.js';
import type { Shares, Stretch } from './split-layers.js';

function layersText({ first, last }: { readonly first: number; readonly last: number }): string {
  return first === last ? `layer ${first}` : `layers ${first} to ${last}`;
}

/** What `--gpu-resident` and its like mean here: each device holds its layers whole in any case. */
function noticeReasons({ gpu = {} }: PlanRequest): PlanReason[] {
  const { resident, copyAskedBy, copyForbiddenBy } = gpu;
  const asked = resident === true ? '--gpu-resident' : copyAskedBy;
  const forbidden = resident === false ? '--no-gpu-resident' : copyForbiddenBy;
  const rest = 'with several GPUs: each holds its own layers whole, and none holds all';
  return [
    ...(asked === undefined
      ? []
      : [{ kind: 'headline' as const, text: `${asked} makes no difference ${rest}` }]),
    ...(forbidden === undefined
      ? []
      : [{ kind: 'warning' as const, text: `${forbidden} has no effect ${rest}` }]),
  ];
}

/** What belongs to one GPU only; each of several would need its own, with a share of the readers and of main memory. */
function refuseModes({ experts, paging }: PlanRequest, gpus: readonly GpuFacts[]): void {
  const [option, what] =
    experts?.streaming === true
      ? ['--ssd-streaming', 'the cache of experts that are read from the file belongs']
      : paging === undefined
        ? [undefined, '']
        : ['--weight-paging', 'the slots in which weights take turns belong'];
  if (option !== undefined) {
    throw new PlanError(
      `${option} is for one GPU, and the model is to be shared by ${gpus.length} ` +
        `(${gpus.map(({ index }) => index).join(', ')}): ${what} to one device; ` +
        `name one with --gpu-devices, or leave out ${option}`,
    );
  }
}

function refuseAll(model: ModelDescription, facts: MachineFacts, request: PlanRequest): never {
  const budgets = (facts.gpus ?? []).map((gpu, place) => {
    const { budget } = roomOf(facts, gpu, {
      ...request,
      gpu: { ...request.gpu, budgetGib: request.gpu?.budgetsGib?.[place] },
    });
    return `${deviceText(gpu)} ${gib(budget)}`;
  });
  throw refusal(
    `layer 0 with the embedding and its part of the session needs ${gib(leastBytes(model, request))}, ` +
      `and no GPU has so much to use: ${budgets.join(', ')}; try a smaller --ctx or a larger --gpu-vram`,
  );
}

/** What the parts say: once what all say, the rest with the part that says it. Each part has a headline of its own. */
function partReasons(parts: readonly PlanPart[]): PlanReason[] {
  const common = new Set(
    parts[0]?.plan.reasons
      .map(({ text }) => text)
      .filter((text) => parts.every(({ plan }) => plan.reasons.some((one) => one.text === text))),
  );
  const said = new Set<string>();
  return parts.flatMap(({ plan }) => {
    const name = plan.backend === 'cpu' ? 'processor' : `device ${plan.device.index}`;
    const isWhole = plan.weights.place === 'device' || plan.backend === 'cpu';
    return plan.reasons
      .filter(({ kind, text }) => !(isWhole && kind === 'headline') && !said.has(text))
      .map(({ kind, text }) => {
        if (common.has(text)) {
          said.add(text);
          return { kind, text };
        }
        return { kind, text: text.includes(name) ? text : `${name}: ${text}` };
      });
  });
}

function headline({ plan, layers, embedding, head }: PlanPart): PlanReason {
  const what =
    layersText(layers) +
    (embedding ? ' with the embedding' : '') +
    (head ? `${embedding ? ' and' : ' with'} the output head` : '');
  const isOne = layers.first === layers.last;
  if (plan.backend === 'cpu') {
    return {
      kind: 'warning',
      text: `${what} (${gib(plan.weights.bytes)}) ${isOne ? 'is' : 'are'} left to the processor, because the GPUs have no room for them`,
    };
  }
  const { backend, device } = plan;
  return {
    kind: 'headline',
    text: `${what} ${isOne ? 'goes' : 'go'} to ${backend} device ${device.index} (${device.name}): ${gib(deviceBytesOf(plan))} of ${gib(device.budgetBytes)}`,
  };
}

function emptyReasons(gpus: readonly GpuFacts[], parts: readonly PlanPart[]): PlanReason[] {
  const empty = gpus.filter(
    ({ index }) => !parts.some(({ plan }) => plan.backend !== 'cpu' && plan.device.index === index),
  );
  const stay = `${empty.map(deviceText).join(', ')} ${empty.length === 1 ? 'stays' : 'stay'} empty`;
  return empty.length === 0
    ? []
    : [
        {
          kind: 'headline',
          text:
            parts.length === 1
              ? `${stay}, because one device has room for everything`
              : `${stay}: no layer that is left fits, or none is left`,
        },
      ];
}

function hiddenReasons(bytes: number, chunk: number): PlanReason[] {
  return bytes === 0
    ? []
    : [
        {
          kind: 'note',
          text: `hidden states: ${gib(bytes)} of main memory, for ${chunk} tokens on their way from one part to the next`,
        },
      ];
}

/** Plans one stretch with the planner of one device; `memory` is what main memory has left. */
function planStretch(
  model: ModelDescription,
  facts: MachineFacts,
  stretch: Stretch,
  chunk: number,
): PlanPart {
  const layers = { first: stretch.first, last: stretch.last };
  const request = { ...stretch.request, layers, prefillChunk: chunk, variables: [] };
  const { embedding, head } = sliceOf(model, request);
  const plan =
    stretch.gpu === undefined
      ? planHost(model, facts, request, undefined)
      : planGpu(model, facts, stretch.gpu, request);
  return { layers, embedding, head, plan };
}

/** Main memory that a part keeps once it is loaded; the upload ring is given up before the next part begins. */
function memoryKept(plan: LoadPlan): number {
  if (plan.backend === 'cpu') {
    return 0;
  }
  const own = plan.device.kind === 'integrated' ? deviceBytesOf(plan) : 0;
  const { fetchBytes = 0, experts } = plan.weights;
  return own + pinnedBytesOf(plan) + fetchBytes + (experts?.hostBytes ?? 0);
}

/** What main memory has left beside the hidden states. */
function besideHidden({ memoryAvailable }: MachineFacts, chunk: number, hidden: number): number {
  if (hidden > memoryAvailable) {
    throw new PlanError(
      `the hidden states of ${chunk} tokens on their way between the devices need ${gib(hidden)} of main memory, ` +
        `${gib(memoryAvailable)} are free; try a smaller --prefill-chunk`,
    );
  }
  return memoryAvailable - hidden;
}

function planParts(
  model: ModelDescription,
  facts: MachineFacts,
  { chunk, stretches }: Shares,
  hidden: number,
): SplitPlan['parts'] {
  let memoryAvailable = besideHidden(facts, chunk, hidden);
  const [first, ...others] = stretches.map((stretch) => {
    const part = planStretch(
      model,
      { ...facts, memoryAvailable, simulatedUsedBytes: undefined },
      stretch,
      chunk,
    );
    memoryAvailable = Math.max(0, memoryAvailable - memoryKept(part.plan));
    return part;
  });
  if (first === undefined) {
    throw new Error('a model without layers');
  }
  return [first, ...others];
}

/**
 * Shares a model among the devices in `facts.gpus`: consecutive layers on each, in order, all of them in its memory, and
 * what is past the last device on the processor. A device whose copy has failed before keeps its layers, with the experts
 * in main memory.
 *
 * @throws PlanError when no device has room for even one layer, and when a part does not fit main memory.
 */
export function planSplit(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
): SplitPlan {
  const gpus = facts.gpus ?? [];
  refuseModes(request, gpus);
  const shares = shareLayers(model, facts, request);
  if (shares.stretches[0]?.gpu === undefined) {
    refuseAll(model, facts, request);
  }
  const { chunk, stretches } = shares;
  const hidden = hiddenStateBytes(model.shape, chunk, stretches.length);
  const parts = planParts(model, facts, shares, hidden);
  const [best = shares.chunk] = shares.chunks;
  return {
    parts,
    hiddenStateBytes: hidden,
    reasons: [
      ...noticeReasons(request),
      ...usedMemoryReasons(facts),
      ...variableReasons(request.variables, { isOnGpu: true, streams: false, fetches: false }),
      ...parts.map(headline),
      ...emptyReasons(gpus, parts),
      ...hiddenReasons(hidden, chunk),
      ...(shares.chunk < best
        ? [
            {
              kind: 'note' as const,
              text: `prefill chunk: ${shares.chunk} tokens on all parts, because with ${best} fewer layers would fit on the GPUs`,
            },
          ]
        : []),
      ...partReasons(parts),
    ],
  };
}

/**
 * Plans a session that takes the place of the one that `current` has, with one prefill chunk for all parts.
 *
 * @throws PlanError when a part has no room for it.
 */
export function planSplitSession(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  current: SplitPlan,
): SplitPlan {
  const gpus = facts.gpus ?? [];
  const partWith = (chunk: number, memoryAvailable: number, part: PlanPart): PlanPart => {
    const place = gpus.findIndex(
      ({ index }) => part.plan.backend !== 'cpu' && part.plan.device.index === index,
    );
    const own = {
      ...request,
      layers: part.layers,
      prefillChunk: chunk,
      gpu: { ...request.gpu, budgetGib: request.gpu?.budgetsGib?.[place] },
    };
    const plan =
      part.plan.backend === 'cpu'
        ? planHost(model, { ...facts, memoryAvailable }, own, part.plan)
        : planGpuSession(model, { ...facts, gpu: gpus[place] }, own, part.plan);
    return { ...part, plan };
  };
  const [first, ...others] = current.parts;
  let refused: PlanError | undefined;
  for (const chunk of new Sessions(model, request).chunks) {
    try {
      const hidden = hiddenStateBytes(model.shape, chunk, current.parts.length);
      const memory = besideHidden(facts, chunk, hidden);
      const parts = [
        partWith(chunk, memory, first),
        ...others.map((part) => partWith(chunk, memory, part)),
      ] as const;
      return { parts, hiddenStateBytes: hidden, reasons: partReasons(parts) };
    } catch (thrown) {
      if (!(thrown instanceof PlanError)) {
        throw thrown;
      }
      refused = thrown;
    }
  }
  throw refused ?? new Error('a session without a prefill chunk');
}
