import { failuresOf, halvingsOf } from './failures.js';
import type { ModelParts } from './model-parts.js';
import { gib, gibibyte, OversizeError, PlanError } from './plan.js';
import type { ExpertCacheRequest, ExpertPolicy, PlanReason, PlanRequest } from './plan.js';

/** Memory that experts may take once everything else has its place. */
export interface ExpertRoom {
  /** All that is left. */
  readonly most: number;
  /** What is left when some memory has to stay free; never more than `most`. */
  readonly withinReserve: number;
  readonly reserve: number;
  /** The memory as it is when nobody uses it, if that is known. */
  readonly machine: { readonly name: string; readonly bytes: number } | undefined;
  /** Memory that the automatic share is taken of, and what counts against the share. */
  readonly total: number;
  readonly outside: number;
  /** Bytes of the session, which a budget in GiB leaves room for. */
  readonly session: number;
}

export interface ExpertSizes {
  readonly slots: number;
  readonly slotBytes: number;
  readonly transitBytes: number;
  readonly reserveBytes: number;
  readonly boundBy: string;
  readonly reasons: readonly PlanReason[];
}

/** Of all memory, the share that weights and their cache may take when nobody says how much. */
export const usualPercent = 80;
/** Layers whose experts a prefill may hold at a time: one computes while the next is read. */
const prefillLayers = 2;

interface Draft {
  readonly bytes: number;
  readonly transitBytes: number;
  /** What is kept free. */
  readonly reserveBytes?: number;
  readonly boundBy: string;
  /** Which of two bounds it is. */
  readonly binding?: string;
  readonly reasons?: readonly PlanReason[];
}

const option = '--ssd-streaming-cache-experts';

function warning(text: string): PlanReason[] {
  return [{ kind: 'warning', text }];
}

function transitLimits({ slot, used, expertsPerLayer }: ModelParts): {
  least: number;
  most: number;
} {
  return { least: used * slot, most: prefillLayers * expertsPerLayer * slot };
}

/**
 * Half for experts in transit, until they have room for whole layers: a prefill whose batch does not find room for all its
 * experts at once reads some of them again and again.
 */
function transitOf(parts: ModelParts, bytes: number): number {
  const { least, most } = transitLimits(parts);
  return Math.min(most, Math.max(least, Math.floor(bytes / 2 / parts.slot) * parts.slot));
}

function automatic(parts: ModelParts, room: ExpertRoom, percent: number): Draft {
  const transitBytes = transitOf(parts, room.withinReserve);
  const byShare = Math.max(0, (room.total * percent) / 100 - room.outside);
  const byReserve = Math.max(0, room.withinReserve - transitBytes);
  const sums =
    `${percent} % of ${gib(room.total)} less ${gib(room.outside)} for the rest leave ${gib(byShare)}, ` +
    `what is free leaves ${gib(byReserve)} with ${gib(room.reserve)} in reserve`;
  return {
    bytes: Math.min(byShare, byReserve),
    transitBytes,
    // One token's experts are placed even where only the reserve has room for them.
    reserveBytes: transitBytes <= room.withinReserve ? room.reserve : 0,
    boundBy: sums,
    binding: byShare < byReserve ? `the ${percent} % bind` : 'what is free binds',
  };
}

/** As many experts as were named, without regard to share and reserve. */
function counted(parts: ModelParts, room: ExpertRoom, count: number): Draft {
  const { least, most: headroom } = transitLimits(parts);
  if (count < parts.used) {
    throw new PlanError(
      `${option} ${count} is less than the ${parts.used} experts (${gib(least)}) that one token needs in a layer; ` +
        `name at least ${parts.used}`,
    );
  }
  const most = Math.max(0, Math.floor((room.most - least) / parts.slot));
  const bytes = Math.min(count, most, parts.expertCount) * parts.slot;
  const left = Math.floor((room.most - bytes) / parts.slot) * parts.slot;
  return {
    bytes,
    // The count is of experts that stay; what passes through has whatever else there is.
    transitBytes: Math.min(headroom, Math.max(least, left)),
    boundBy: `${option} ${count}`,
    reasons:
      count > most && parts.expertCount > most
        ? warning(
            `${option} ${count} is more than the ${gib(Math.max(0, room.most))} that are left take: ${most} experts`,
          )
        : [],
  };
}

/** A budget in GiB: two whole layers of it are for prefill, the rest is slots. */
function budgeted(parts: ModelParts, room: ExpertRoom, gibs: number): Draft {
  const { least, most: headroom } = transitLimits(parts);
  const text = `${option} ${gibs}GB`;
  const asked = gibs * gibibyte;
  if (asked < headroom + least) {
    throw new PlanError(
      `${text} is too little: ${prefillLayers} layers of experts for prefill take ${gib(headroom)} of it, ` +
        `and one token needs ${gib(least)}; name at least ${Math.ceil((headroom + least) / gibibyte)}GB`,
    );
  }
  const seven = Math.floor(((room.total * 7) / 8 - room.session) / gibibyte) * gibibyte;
  const limit = Math.min(Math.max(gibibyte, seven), Math.max(0, room.most));
  if (asked <= limit) {
    return { bytes: asked - headroom, transitBytes: headroom, boundBy: text };
  }
  // No more slots than with all of it: otherwise more memory could mean fewer.
  const bytes = Math.min(asked - headroom, Math.max(0, limit - transitOf(parts, limit)));
  const left = Math.floor((limit - bytes) / parts.slot) * parts.slot;
  return {
    bytes,
    transitBytes: Math.min(headroom, Math.max(least, left)),
    boundBy: text,
    reasons: warning(`${text} is more than there is room for: ${gib(limit)} are taken`),
  };
}

/** A named size that no free memory would make possible is refused, whatever is free now. */
function refuseOversize(
  parts: ModelParts,
  { machine }: ExpertRoom,
  cache: ExpertCacheRequest,
  budgetGib: number | undefined,
): void {
  if (cache.kind === 'experts' && cache.count > parts.expertCount) {
    throw new OversizeError(
      `${option} ${cache.count} is more than the ${parts.expertCount} experts (${gib(parts.expertCount * parts.slot)}) that there are; ` +
        `name at most ${parts.expertCount}`,
    );
  }
  const [text, asked] =
    cache.kind === 'experts'
      ? [`${option} ${cache.count}`, cache.count * parts.slot]
      : [`${option} ${cache.gib}GB`, cache.gib * gibibyte];
  if (machine !== undefined && asked > machine.bytes) {
    throw new OversizeError(
      `${text} asks for ${gib(asked)}, and ${machine.name} has ${gib(machine.bytes)} in all; ` +
        'name less, or leave it out for what fits',
    );
  }
  if (budgetGib !== undefined && asked > budgetGib * gibibyte) {
    throw new OversizeError(
      `${text} and --gpu-vram ${budgetGib} contradict each other: ${gib(asked)} for experts alone, ` +
        `and ${gib(budgetGib * gibibyte)} for everything`,
    );
  }
}

function draftOf(
  parts: ModelParts,
  room: ExpertRoom,
  cache: ExpertCacheRequest | undefined,
  percent: number,
): Draft {
  switch (cache?.kind) {
    case undefined:
      return automatic(parts, room, percent);
    case 'experts':
      return counted(parts, room, cache.count);
    case 'gib':
      return budgeted(parts, room, cache.gib);
  }
}

/** Fewer slots than one token's experts of a layer would be emptied before they are used again. */
function usable(parts: ModelParts, slots: number): number {
  const whole = Math.min(Math.floor(slots), parts.expertCount);
  return whole < parts.used ? 0 : whole;
}

/**
 * The expert cache of a model whose experts are read from the file, or undefined when not even one token's experts of one
 * layer fit. `atMost` bounds an automatic number of slots.
 *
 * @throws PlanError for a named size that is too small for one token; OversizeError for one that can never be had.
 */
export function planExpertCache(
  parts: ModelParts,
  room: ExpertRoom,
  request: PlanRequest,
  atMost: number,
): ExpertSizes | undefined {
  const { cache, percent = usualPercent } = request.experts ?? {};
  if (cache !== undefined) {
    refuseOversize(parts, room, cache, request.gpu?.budgetGib);
  }
  const draft = draftOf(parts, room, cache, percent);
  if (room.most < transitLimits(parts).least) {
    return undefined;
  }
  const halvings = halvingsOf(request);
  const bound = cache === undefined ? atMost : Infinity;
  const wanted = Math.min(draft.bytes / parts.slot, parts.expertCount);
  const slots = usable(parts, Math.min(wanted, bound) / 2 ** halvings);
  const remarks = [
    slots === parts.expertCount ? 'every expert has a slot' : draft.binding,
    halvings > 0
      ? `halved ${halvings === 1 ? 'once' : `${halvings} times`} after failures`
      : undefined,
    slots === 0
      ? `that is less than the ${gib(parts.used * parts.slot)} of one token, so no expert is kept`
      : undefined,
  ].filter((remark) => remark !== undefined);
  return {
    slots,
    slotBytes: slots * parts.slot,
    transitBytes: draft.transitBytes,
    reserveBytes: draft.reserveBytes ?? 0,
    boundBy: [draft.boundBy, ...remarks].join('; '),
    reasons: draft.reasons ?? [],
  };
}

/**
 * Which expert leaves its slot when nobody says: the one that was not used for longest, unless there are fewer slots than
 * one token's experts. Then all of them would have left before the next token, and frequency decides (docs/memory.md).
 */
export function policyFor(parts: ModelParts, slots: number, request: PlanRequest): ExpertPolicy {
  const perToken = parts.used * parts.layers.length;
  return request.experts?.policy ?? (slots < perToken ? 'lfru' : 'lru');
}

/** Slots for copies of experts that are pinned in main memory anyway: whatever GPU memory is left. */
export function planHotExperts(
  parts: ModelParts,
  leftBytes: number,
  request: PlanRequest,
  atMost: number,
): ExpertSizes {
  const left = Math.max(0, leftBytes);
  // A device that has just failed to hold the model is not asked for as much again.
  const share = failuresOf(request, 'copy') > 0 ? 2 : 1;
  const wanted = Math.min(left / share / parts.slot, atMost);
  const slots = usable(parts, wanted / 2 ** halvingsOf(request));
  return {
    slots,
    slotBytes: slots * parts.slot,
    transitBytes: 0,
    reserveBytes: 0,
    boundBy: `${gib(left)} of GPU memory are left`,
    reasons: [],
  };
}
