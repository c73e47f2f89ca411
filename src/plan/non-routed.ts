import type { ModelDescription, ModelTensor } from '../model/index.js';
import { halvingsOf } from './failures.js';
import { belongsTo, isSmall, partOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import { gib, gibibyte, PlanError } from './plan.js';
import type { PlanReason, PlanRequest } from './plan.js';

/** Where the weights are that are not routed experts. */
export interface NonRouted {
  /** GPU memory, the pool of pages included. */
  readonly deviceBytes: number;
  readonly pinnedBytes: number;
  readonly limit?: number;
  readonly pageSlots?: number;
  /** The variable, with its value, that leaves them less GPU memory than there is. */
  readonly limitedBy?: string;
  readonly reasons: readonly PlanReason[];
}

/** GPU memory for these weights: how much, and in words why no more. */
interface Share {
  readonly bytes: number;
  readonly text: string;
  readonly limitedBy: string | undefined;
}

function shareOf(left: number, limitGib: number | undefined): Share {
  const isLimited = limitGib !== undefined && limitGib * gibibyte < left;
  const bytes = isLimited ? limitGib * gibibyte : left;
  const limitedBy = isLimited ? `DS4_ROCM_STREAM_MODEL_CACHE_GB=${limitGib}` : undefined;
  const amount = gib(Math.max(0, bytes));
  return {
    bytes,
    limitedBy,
    text: isLimited
      ? `${limitedBy ?? ''} allows ${amount}`
      : `${amount} of GPU memory are left beside the session`,
  };
}

/** A limit that was named is said, also when it changes nothing. */
function limitReasons(limitGib: number | undefined): PlanReason[] {
  return limitGib === undefined
    ? []
    : [
        {
          kind: 'note',
          text: `weights outside the experts: at most ${gib(limitGib * gibibyte)} of GPU memory, because DS4_ROCM_STREAM_MODEL_CACHE_GB is set`,
        },
      ];
}

const usualPageSlots = 8;

/**
 * The tensors outside the routed experts that are in GPU memory when `limit` bounds the large ones among them: as
 * native/runtime/weight_store.cpp chooses them, in the graph's order each that still fits, but the embedding, of which a
 * token reads one row, behind all others.
 */
export function withinLimit(
  tensors: readonly ModelTensor[],
  limit: number,
): ReadonlySet<ModelTensor> {
  const outside = tensors.filter((entry) => partOf(entry) !== 'experts');
  const inside = new Set(outside.filter(isSmall));
  let left = limit;
  for (const isEmbedding of [false, true]) {
    for (const entry of outside) {
      const isTurn = (partOf(entry) === 'embedding') === isEmbedding && !inside.has(entry);
      if (isTurn && entry.tensor.bytes <= left) {
        left -= entry.tensor.bytes;
        inside.add(entry);
      }
    }
  }
  return inside;
}

function bytesOf(tensors: Iterable<ModelTensor>): number {
  return [...tensors].reduce((bytes, { tensor }) => bytes + tensor.bytes, 0);
}

/** The limit for the large ones that goes with so many bytes for all of them. */
function limitFor(
  tensors: readonly ModelTensor[],
  { bytes, text }: Share,
  halvings: number,
): number {
  const small = bytesOf(tensors.filter(isSmall));
  if (small > bytes) {
    throw new PlanError(
      `norms and routing tables need ${gib(small)} of GPU memory in any case, and ${text}; ` +
        'try a smaller --ctx or a larger --gpu-vram',
    );
  }
  let limit = bytes - small;
  for (let halving = 0; halving < halvings; halving += 1) {
    // Of what it was really asked for: a limit that leaves out the same tensors would be the same try again.
    limit = (bytesOf(withinLimit(tensors, limit)) - small) / 2;
  }
  // The library takes 0 for no limit.
  return Math.max(1, Math.floor(limit));
}

/**
 * The weights outside the layers stay, those of the layers take turns.
 *
 * @throws PlanError when `bytes` of GPU memory are not enough for it.
 */
function planPages(
  parts: ModelParts,
  { bytes, text, limitedBy }: Share,
  request: PlanRequest,
): NonRouted {
  const named = request.paging?.slots;
  if (named === 0) {
    throw new PlanError('--weight-paging-slots 0 leaves no place for any weights; name at least 1');
  }
  const staying = parts.embedding + parts.head;
  const layers = parts.layers.length;
  const fitting = Math.floor((bytes - staying) / parts.page);
  const wanted = Math.min(named ?? usualPageSlots, layers);
  const halvings = halvingsOf(request, 'pages');
  const most = Math.min(wanted, fitting);
  const pageSlots = halvings === 0 ? most : Math.min(most, Math.max(1, most >> halvings));
  if (pageSlots < 1) {
    throw new PlanError(
      `--weight-paging needs ${gib(staying + parts.page)} of GPU memory for the weights outside the layers (${gib(staying)}) ` +
        `and one slot (${gib(parts.page)}), and ${text}; ` +
        'try a smaller --ctx or a larger --gpu-vram',
    );
  }
  const reasons: PlanReason[] = [
    {
      kind: 'headline',
      text:
        `weights outside the experts: ${layers} layers take turns in ${pageSlots} slots of ${gib(parts.page)} ` +
        `because --weight-paging was given, and ${gib(staying)} stay`,
    },
  ];
  if (named !== undefined && pageSlots < named) {
    const why =
      pageSlots === layers
        ? `the model has ${layers} layers`
        : halvings > 0
          ? 'memory for more could not be had'
          : `${limitedBy === undefined ? '' : `${text}, and `}${gib(bytes - staying)} of GPU memory are left`;
    reasons.push({
      kind: 'warning',
      text: `--weight-paging-slots ${named}: ${why}, so ${pageSlots} are made`,
    });
  }
  return { deviceBytes: staying + pageSlots * parts.page, pinnedBytes: 0, pageSlots, reasons };
}

/**
 * Places the weights that are not routed experts into `left` bytes of GPU memory, or into `limitGib` if that is less. What
 * does not fit is pinned in main memory.
 *
 * @throws PlanError when paging was asked for and cannot be.
 */
export function planNonRouted(
  model: ModelDescription,
  parts: ModelParts,
  left: number,
  request: PlanRequest,
  limitGib?: number,
): NonRouted {
  const { paging, gpu } = request;
  // A device that has just failed to take them is asked for less.
  const halvings = halvingsOf(request, 'weights');
  const share = shareOf(left, limitGib);
  const { bytes, text, limitedBy } = share;
  const reasons = limitReasons(limitGib);
  if (paging !== undefined) {
    const pages = planPages(parts, share, request);
    return { ...pages, reasons: [...reasons, ...pages.reasons] };
  }
  if (parts.nonRouted <= bytes && halvings === 0) {
    return { deviceBytes: parts.nonRouted, pinnedBytes: 0, reasons };
  }
  const why = halvings > 0 ? 'memory for more could not be had' : text;
  if (gpu?.pinForbiddenBy !== undefined) {
    throw new PlanError(
      `the weights outside the experts (${gib(parts.nonRouted)}) do not all go into GPU memory, because ${why}, ` +
        `and ${gpu.pinForbiddenBy} forbids to pin the rest in main memory`,
    );
  }
  const tensors = model.tensors.filter(
    (entry) => belongsTo(parts.slice, entry) && partOf(entry) !== 'experts',
  );
  const limit = limitFor(tensors, share, halvings);
  const inside = withinLimit(tensors, limit);
  const deviceBytes = bytesOf(inside);
  const pinnedBytes = parts.nonRouted - deviceBytes;
  const isEmbeddingOnly = tensors.every(
    (entry) => inside.has(entry) || partOf(entry) === 'embedding',
  );
  return {
    deviceBytes,
    pinnedBytes,
    limit,
    ...(limitedBy === undefined ? {} : { limitedBy }),
    reasons: [
      ...reasons,
      {
        kind: isEmbeddingOnly ? 'note' : 'warning',
        text:
          `${gib(pinnedBytes)} of the ${gib(parts.nonRouted)} of weights outside the experts do not ` +
          (limitedBy === undefined && halvings === 0
            ? 'fit into GPU memory: '
            : `go into GPU memory, because ${why}: `) +
          (isEmbeddingOnly
            ? 'they are the embedding, which stays in main memory; a token reads one row of it'
            : 'they stay in main memory and each token reads them over the bus, which is slow'),
      },
    ],
  };
}
