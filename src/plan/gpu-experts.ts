import type { ModelDescription } from '../model/index.js';
import { beside, deviceText, hostRoom, refusal } from './budget.js';
import type { Room } from './budget.js';
import { planExpertCache, planHotExperts, policyFor } from './expert-memory.js';
import type { ExpertSizes } from './expert-memory.js';
import { failuresOf, withoutFailures } from './failures.js';
import { fetchBuffers } from './fetch-buffers.js';
import type { FetchBuffers } from './fetch-buffers.js';
import type { ModelParts } from './model-parts.js';
import { planHostTier } from './host-tier.js';
import { planNonRouted } from './non-routed.js';
import type { NonRouted } from './non-routed.js';
import { contextAdvice, gib } from './plan.js';
import type { ExpertMemoryPlan, PlanReason, PlanRequest } from './plan.js';
import { pinnedCost } from './ram-disk.js';
import type { Sessions } from './sessions.js';

/** A placement of the weights with the prefill chunk that goes with it. */
export interface Placed {
  readonly place: 'mappedExperts' | 'streamExperts';
  readonly chunk: number;
  readonly nonRouted: NonRouted;
  readonly pinnedBytes: number;
  readonly pinCopies: boolean;
  readonly experts: ExpertMemoryPlan;
  /** Why experts that are streamed have no tier in main memory, or a smaller one than was asked for. */
  readonly tierBecause?: string | undefined;
  /** Where weights are read while the model computes. */
  readonly fetch: FetchBuffers | undefined;
}

export interface Situation {
  readonly model: ModelDescription;
  readonly parts: ModelParts;
  readonly room: Room;
  readonly request: PlanRequest;
  readonly sessions: Sessions;
}

/** Gives `sizes` for the weights when the session has this chunk and automatic slots are bounded; undefined: no room. */
type SizesFor = (chunk: number, atMost: number, request: PlanRequest) => ExpertSizes | undefined;

/**
 * A larger prefill chunk takes memory from the slots, so it is taken only when a fair number of slots is left: one token's
 * experts of all layers for the largest, half of them for the next, and so on. Below that number a smaller chunk has no
 * more slots than the larger one would begin with; otherwise more memory could mean fewer slots.
 */
function withBestChunk(
  { parts, sessions, request }: Situation,
  sizesFor: SizesFor,
): { chunk: number; sizes: ExpertSizes } | undefined {
  const { smallestChunk } = sessions;
  // Slots that could not be had are no reason for a larger session.
  const before = withoutFailures(request, 'slots');
  const least = sizesFor(smallestChunk, Infinity, before);
  if (least === undefined) {
    return undefined;
  }
  const isNamed = request.experts?.cache !== undefined;
  // Otherwise the larger batch would read the same experts again and again.
  const fairTransit = Math.min(parts.expertsPerLayer * parts.slot, least.transitBytes);
  const perToken = Math.min(parts.expertCount, parts.used * parts.layers.length);
  let atMost = Infinity;
  let best = smallestChunk;
  for (const [index, chunk] of sessions.chunks.entries()) {
    if (chunk === smallestChunk) {
      break;
    }
    const fair = isNamed ? least.slots : perToken / 2 ** index;
    const sizes = sizesFor(chunk, atMost, before);
    const hasTransit = !isNamed || (sizes?.transitBytes ?? 0) >= fairTransit;
    if (sizes !== undefined && sizes.slots >= Math.floor(fair) && hasTransit) {
      best = chunk;
      break;
    }
    atMost = Math.floor(fair);
  }
  const sizes = sizesFor(best, atMost, request);
  return sizes === undefined ? undefined : { chunk: best, sizes };
}

/** What is not even left for the session and, when experts are read from the file, for those of one token. */
function refuseSession({ room, sessions, parts }: Situation, transit: number): never {
  const session = sessions.leastBytes;
  const need =
    transit > 0
      ? ` (${gib(session)}) and the ${parts.used} experts of one token (${gib(transit)}) need ${gib(session + transit)}`
      : ` needs ${gib(session)}`;
  throw refusal(
    `${deviceText(room.gpu)}: a context of ${sessions.context}${need}, ` +
      `${gib(room.budget)} of ${gib(room.gpu.freeBytes)} free can be used; ` +
      contextAdvice(sessions.largestContext(room.budget - transit)),
  );
}

function memoryOf(
  sizes: ExpertSizes,
  { parts, request }: Situation,
  hostBytes: number,
): ExpertMemoryPlan {
  const { slots, slotBytes, transitBytes, reserveBytes, boundBy } = sizes;
  return {
    slotBytes,
    transitBytes,
    reserveBytes,
    hostBytes,
    policy: policyFor(parts, slots, request),
    slots,
    expertBytes: parts.slot,
    boundBy,
  };
}

function fetchFor({ room, request }: Situation): FetchBuffers {
  return fetchBuffers(request, room.memory);
}

/**
 * The routed experts pinned in main memory, with copies of hot ones in what is left of GPU memory unless that is the same
 * memory or `copies` forbids it.
 *
 * @returns a clause that says why it cannot be, instead of a placement.
 * @throws PlanError when not even the session has room.
 */
export function placeMapped(asked: Situation, copies: 'allowed' | 'forbidden'): Placed | string {
  const fetch = asked.request.paging === undefined ? undefined : fetchFor(asked);
  const fetchBytes = fetch?.bytes ?? 0;
  const situation = { ...asked, room: beside(asked.room, fetchBytes) };
  const { model, parts, room, request, sessions } = situation;
  if (failuresOf(request, 'pin') > 0) {
    return 'they could not be pinned in main memory';
  }
  const pinCopies =
    failuresOf(request, 'map') > 0 || (request.source !== undefined && request.source !== 'mmap');
  const { pinForbiddenBy } = request.gpu ?? {};
  if (pinCopies && pinForbiddenBy !== undefined) {
    return `${pinForbiddenBy} forbids to pin copies of them in main memory`;
  }
  if (room.budget < sessions.leastBytes) {
    refuseSession(situation, 0);
  }
  const nonRouted = planNonRouted(model, parts, room.budget - sessions.leastBytes, request);
  const pinnedBytes = parts.routed + nonRouted.pinnedBytes;
  const taken = fetchBytes + pinnedCost(room, pinnedBytes, pinCopies);
  const left = (chunk: number): number =>
    room.budget - nonRouted.deviceBytes - sessions.bytes(chunk).total;
  const hostLeft = (chunk: number): number =>
    hostRoom(room, nonRouted.deviceBytes + sessions.bytes(chunk).total) - taken;
  if (hostLeft(sessions.smallestChunk) < 0) {
    const free = hostRoom(room, nonRouted.deviceBytes + sessions.leastBytes) - fetchBytes;
    return `main memory cannot hold them pinned either (${gib(pinnedBytes)} of ${gib(Math.max(0, free))} free)`;
  }
  const isApart = room.gpu.kind === 'discrete';
  const mayCopy = isApart && copies === 'allowed';
  const best = withBestChunk(situation, (chunk, atMost, wanted) =>
    left(chunk) < 0 || hostLeft(chunk) < 0
      ? undefined
      : planHotExperts(parts, mayCopy ? left(chunk) : 0, wanted, atMost),
  );
  // Without slots to gain, a larger chunk costs nothing.
  const chunk = mayCopy
    ? best?.chunk
    : sessions.chunks.find((tokens) => left(tokens) >= 0 && hostLeft(tokens) >= 0);
  if (best === undefined || chunk === undefined) {
    throw new Error('the smallest session fits and does not fit');
  }
  return {
    place: 'mappedExperts',
    chunk,
    nonRouted,
    pinnedBytes,
    pinCopies,
    experts: memoryOf(best.sizes, situation, 0),
    fetch,
  };
}

/**
 * The routed experts in the file, with a cache in GPU memory and a tier of it in main memory.
 *
 * @throws PlanError when not even one token's experts have room beside the session, and for a cache that is too small.
 */
export function placeStreamed(asked: Situation): Placed {
  const fetch = fetchFor(asked);
  const situation = { ...asked, room: beside(asked.room, fetch.bytes) };
  const { model, parts, room, request, sessions } = situation;
  const transit = parts.used * parts.slot;
  const least = sessions.leastBytes + transit;
  if (room.budget < least) {
    refuseSession(situation, transit);
  }
  const nonRouted = planNonRouted(
    model,
    parts,
    room.budget - least,
    request,
    request.experts?.outsideGib,
  );
  const memory = hostRoom(room, nonRouted.deviceBytes + least) - fetch.bytes;
  const pinCopies = nonRouted.pinnedBytes > 0 && failuresOf(request, 'map') > 0;
  const pinned = pinnedCost(room, nonRouted.pinnedBytes, pinCopies);
  if (pinned > memory) {
    throw refusal(
      `${deviceText(room.gpu)}: ${gib(nonRouted.pinnedBytes)} of the weights outside the experts fit neither into GPU memory ` +
        `(${gib(room.budget)} can be used, ${gib(least)} of it for the session and one token's experts` +
        `${nonRouted.limitedBy === undefined ? '' : `, and ${nonRouted.limitedBy} bounds the rest`}) nor, pinned, ` +
        `into main memory (${gib(Math.max(0, memory))} free); try a smaller --ctx, a larger --gpu-vram or --weight-paging`,
    );
  }
  const best = withBestChunk(situation, (chunk, atMost, wanted) => {
    const session = sessions.bytes(chunk).total;
    const taken = nonRouted.deviceBytes + session;
    // Where memory is shared, slots must leave room for what is pinned as well.
    const shared =
      room.gpu.kind === 'integrated' ? hostRoom(room, taken) - pinned - fetch.bytes : Infinity;
    return planExpertCache(
      parts,
      {
        most: Math.min(room.budget - taken, shared),
        withinReserve: Math.min(room.withinReserve - taken, shared),
        reserve: room.reserve,
        total: room.gpu.totalBytes,
        machine: { name: deviceText(room.gpu), bytes: room.gpu.totalBytes },
        outside: nonRouted.deviceBytes,
        session,
      },
      wanted,
      atMost,
    );
  });
  if (best === undefined) {
    throw new Error('the smallest session fits and does not fit');
  }
  const tier = planHostTier(parts, room, request, pinned + fetch.bytes, best.sizes.slots);
  return {
    place: 'streamExperts',
    chunk: best.chunk,
    nonRouted: {
      ...nonRouted,
      reasons: [...nonRouted.reasons, ...best.sizes.reasons, ...tier.reasons],
    },
    pinnedBytes: nonRouted.pinnedBytes,
    pinCopies: nonRouted.pinnedBytes > 0 && failuresOf(request, 'map') > 0,
    experts: memoryOf(best.sizes, situation, tier.bytes),
    tierBecause: tier.because,
    fetch,
  };
}

/** A rule for who leaves, where no expert ever does. */
export function policyReasons(
  { experts = {} }: PlanRequest,
  placed: Placed | undefined,
): PlanReason[] {
  const isForGood =
    placed === undefined || (placed.place === 'mappedExperts' && placed.experts.slots === 0);
  return experts.policy !== undefined && isForGood
    ? [
        {
          kind: 'warning',
          text: '--expert-policy has no effect: every expert has its place for good',
        },
      ]
    : [];
}

function pluralExperts(count: number): string {
  return count === 1 ? '1 expert' : `${count} experts`;
}

/** What the cache of a placement is and why it has this size. */
export function cacheReasons({ place, experts, tierBecause }: Placed): PlanReason[] {
  const { slots, slotBytes, transitBytes, hostBytes, expertBytes, boundBy } = experts;
  const reasons: PlanReason[] = [];
  if (place === 'streamExperts' || slots > 0) {
    const transit =
      place === 'streamExperts'
        ? `; and ${gib(transitBytes)} for ${pluralExperts(transitBytes / expertBytes)} that a prompt needs only once`
        : '';
    reasons.push({
      kind: place === 'streamExperts' ? 'headline' : 'note',
      text: `expert cache: ${pluralExperts(slots)} (${gib(slotBytes)}) in GPU memory, because ${boundBy}${transit}`,
    });
  }
  if (place === 'streamExperts') {
    reasons.push({
      kind: 'note',
      text:
        (hostBytes > 0
          ? `experts in main memory: ${pluralExperts(hostBytes / expertBytes)} (${gib(hostBytes)}), pinned, read over the bus`
          : 'experts in main memory: none') +
        (tierBecause === undefined ? '' : `, because ${tierBecause}`),
    });
  }
  return reasons;
}
