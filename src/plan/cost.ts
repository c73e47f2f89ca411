import type { ModelDescription } from '../model/index.js';
import { belongsTo, partOf, partsOf, sliceOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import { withinLimit } from './non-routed.js';
import type {
  GpuFacts,
  GpuPlan,
  HostPlan,
  LoadPlan,
  MachineFacts,
  PlanRequest,
  Rates,
} from './plan.js';

// Nominal figures of ordinary machines, for plans to be compared with each other; measured ones come with the facts.
const ratesOfKind: Readonly<Record<GpuFacts['kind'] | 'host', Rates>> = {
  discrete: { compute: 600e9, link: 25e9, mapped: 12e9, disk: 5e9 },
  integrated: { compute: 200e9, link: 60e9, mapped: 150e9, disk: 5e9 },
  host: { compute: 60e9, link: Infinity, mapped: 60e9, disk: 5e9 },
};

/** What one decoded token costs, with experts chosen evenly. */
export interface TokenCost {
  readonly seconds: number;
  /** Bytes that each part of the machine moves for it. */
  readonly computeBytes: number;
  readonly mappedBytes: number;
  readonly diskBytes: number;
  readonly linkBytes: number;
}

type Traffic = Omit<TokenCost, 'seconds'>;

/** One row of the embedding is read, the other weights outside the experts whole. */
function outsideBytes({ nonRouted, embedding }: ModelParts): number {
  return nonRouted - embedding;
}

function routedBytes({ layers, used }: ModelParts): number {
  return layers.reduce((bytes, { expert }) => bytes + used * expert, 0);
}

function hostTraffic(parts: ModelParts, { weights }: HostPlan, memoryAvailable: number): Traffic {
  const routed = routedBytes(parts);
  const computeBytes = outsideBytes(parts) + routed;
  // What a mapping holds beyond free memory has to come from the disk again.
  const share = (bytes: number, memory: number): number =>
    bytes === 0 ? 0 : Math.max(0, 1 - Math.max(0, memory) / bytes);
  const { experts } = weights;
  const diskBytes =
    experts !== undefined
      ? routed * (1 - Math.min(1, experts.slots / parts.expertCount))
      : weights.source === 'mmap'
        ? computeBytes * share(parts.total, memoryAvailable)
        : 0;
  return { computeBytes, mappedBytes: 0, diskBytes, linkBytes: 0 };
}

/** Layers whose pages are loaded for each token: all but those that keep a slot, and two slots are for taking turns. */
function pagedLayers({ layers }: ModelParts, slots: number): number {
  return slots >= layers.length ? 0 : layers.length - Math.max(0, slots - 2);
}

/** Weights outside the experts that a token reads over the bus; of the embedding it is a row only, wherever that is. */
function mappedOutside(
  { tensors }: ModelDescription,
  { slice }: ModelParts,
  limit: number,
): number {
  const outside = tensors.filter(
    (entry) => belongsTo(slice, entry) && ['layer', 'head'].includes(partOf(entry)),
  );
  const inside = withinLimit(outside, limit);
  return outside.reduce((bytes, entry) => bytes + (inside.has(entry) ? 0 : entry.tensor.bytes), 0);
}

function gpuTraffic(
  model: ModelDescription,
  parts: ModelParts,
  { weights }: GpuPlan,
  memoryAvailable: number,
): Traffic {
  const routed = routedBytes(parts);
  const { place, experts, pageSlots, deviceWeightBytes: limit } = weights;
  const pageBytes = pageSlots === undefined ? 0 : pagedLayers(parts, pageSlots) * parts.page;
  const outsideMapped = limit === undefined ? 0 : mappedOutside(model, parts, limit);
  const inSlots = place === 'device' ? 1 : Math.min(1, (experts?.slots ?? 0) / parts.expertCount);
  const inHost =
    place === 'streamExperts' && experts !== undefined
      ? Math.min(1 - inSlots, experts.hostBytes / experts.expertBytes / parts.expertCount)
      : 1 - inSlots;
  const missBytes = routed * (1 - inSlots - inHost);
  return {
    computeBytes: outsideBytes(parts) - outsideMapped + routed * (1 - inHost),
    mappedBytes: routed * inHost + outsideMapped,
    // Pages come out of the page cache where that can hold the file.
    diskBytes: missBytes + (memoryAvailable < parts.total ? pageBytes : 0),
    linkBytes: missBytes + pageBytes,
  };
}

/**
 * Estimates one decoded token: what is computed on, what is read from the disk, what kernels read over the bus and what is
 * copied over it, one after the other. Made for comparing plans: nothing overlaps, and experts are chosen evenly, where real
 * models have favourites.
 */
export function tokenCost(
  plan: LoadPlan,
  model: ModelDescription,
  facts: Pick<MachineFacts, 'memoryAvailable' | 'isFileInRamDisk' | 'rates'>,
  request: Pick<PlanRequest, 'layers'> = {},
): TokenCost {
  const { memoryAvailable, isFileInRamDisk = false, rates: known = {} } = facts;
  const parts = partsOf(model, sliceOf(model, request));
  const kind = plan.backend === 'cpu' ? 'host' : plan.device.kind;
  const rates = { ...ratesOfKind[kind], ...known };
  const needed =
    plan.backend === 'cpu'
      ? hostTraffic(parts, plan, memoryAvailable)
      : gpuTraffic(model, parts, plan, memoryAvailable);
  // What is read of a file in a RAM disk comes from no disk, and goes over the link like everything else.
  const traffic = isFileInRamDisk ? { ...needed, diskBytes: 0 } : needed;
  return {
    ...traffic,
    seconds:
      traffic.computeBytes / rates.compute +
      traffic.mappedBytes / rates.mapped +
      traffic.diskBytes / rates.disk +
      traffic.linkBytes / rates.link,
  };
}
