import type { ModelDescription, ModelTensor } from '../model/index.js';
import { belongsTo, partOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import { gib, PlanError } from './plan.js';
import type { PlanReason, PlanRequest } from './plan.js';

/** Where the weights are that are not routed experts. */
export interface NonRouted {
  /** GPU memory, the pool of pages included. */
  readonly deviceBytes: number;
  readonly pinnedBytes: number;
  readonly limit?: number;
  readonly pageSlots?: number;
  readonly reasons: readonly PlanReason[];
}

const usualPageSlots = 8;

/** The tensors outside the routed experts that a limit of GPU memory has room for: in the graph's order, each that still fits. */
export function withinLimit(
  tensors: readonly ModelTensor[],
  limit: number,
): ReadonlySet<ModelTensor> {
  const inside = new Set<ModelTensor>();
  let left = limit;
  for (const entry of tensors) {
    if (partOf(entry) !== 'experts' && entry.tensor.bytes <= left) {
      left -= entry.tensor.bytes;
      inside.add(entry);
    }
  }
  return inside;
}

/**
 * The weights outside the layers stay, those of the layers take turns.
 *
 * @throws PlanError when `bytes` of GPU memory are not enough for it.
 */
function planPages(parts: ModelParts, bytes: number, named: number | undefined): NonRouted {
  if (named === 0) {
    throw new PlanError('--weight-paging-slots 0 leaves no place for any weights; name at least 1');
  }
  const staying = parts.embedding + parts.head;
  const layers = parts.layers.length;
  const fitting = Math.floor((bytes - staying) / parts.page);
  const wanted = Math.min(named ?? usualPageSlots, layers);
  const pageSlots = Math.min(wanted, fitting);
  if (pageSlots < 1) {
    throw new PlanError(
      `--weight-paging needs ${gib(staying + parts.page)} of GPU memory for the weights outside the layers (${gib(staying)}) ` +
        `and one slot (${gib(parts.page)}), ${gib(Math.max(0, bytes))} are left beside the session; ` +
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
        : `${gib(bytes - staying)} of GPU memory are left`;
    reasons.push({
      kind: 'warning',
      text: `--weight-paging-slots ${named}: ${why}, so ${pageSlots} are made`,
    });
  }
  return { deviceBytes: staying + pageSlots * parts.page, pinnedBytes: 0, pageSlots, reasons };
}

/**
 * Places the weights that are not routed experts into `bytes` of GPU memory. What does not fit is pinned in main memory.
 *
 * @throws PlanError when paging was asked for and cannot be.
 */
export function planNonRouted(
  model: ModelDescription,
  parts: ModelParts,
  bytes: number,
  { paging, gpu }: PlanRequest,
): NonRouted {
  if (paging !== undefined) {
    return planPages(parts, bytes, paging.slots);
  }
  if (parts.nonRouted <= bytes) {
    return { deviceBytes: parts.nonRouted, pinnedBytes: 0, reasons: [] };
  }
  if (gpu?.pinForbiddenBy !== undefined) {
    throw new PlanError(
      `the weights outside the experts (${gib(parts.nonRouted)}) do not fit into the ${gib(bytes)} of GPU memory that are left for them, ` +
        `and ${gpu.pinForbiddenBy} forbids to pin the rest in main memory`,
    );
  }
  // The library takes 0 for no limit.
  const limit = Math.max(1, Math.floor(bytes));
  const tensors = model.tensors.filter((entry) => belongsTo(parts.slice, entry));
  let deviceBytes = 0;
  for (const { tensor } of withinLimit(tensors, limit)) {
    deviceBytes += tensor.bytes;
  }
  const pinnedBytes = parts.nonRouted - deviceBytes;
  return {
    deviceBytes,
    pinnedBytes,
    limit,
    reasons: [
      {
        kind: 'warning',
        text:
          `${gib(pinnedBytes)} of the ${gib(parts.nonRouted)} of weights outside the experts do not fit into GPU memory: ` +
          'they stay in main memory and each token reads them over the bus, which is slow',
      },
    ],
  };
}
