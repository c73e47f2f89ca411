import type { ModelDescription } from '../model/index.js';
import {
  deviceText,
  margin,
  refusal,
  refuseWithoutBuffer,
  roomOf,
  spareWhenAutomatic,
} from './budget.js';
import type { Ring, Room } from './budget.js';
import { failureReasons, failuresOf } from './failures.js';
import { fetchReasons } from './fetch-buffers.js';
import { cacheReasons, placeMapped, placeStreamed, policyReasons } from './gpu-experts.js';
import type { Placed, Situation } from './gpu-experts.js';
import { pinnedLockOf } from './lock.js';
import { machineReasons } from './machine-reasons.js';
import { partsOf, sliceOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import { checkpointCount, contextAdvice, deviceBytesOf, gib, PlanError } from './plan.js';
import type {
  GpuFacts,
  GpuPlan,
  GpuWeightsPlan,
  MachineFacts,
  PlanReason,
  PlanRequest,
  UploadPath,
  WeightSource,
} from './plan.js';

import { readingReasons } from './reading.js';
import { Sessions } from './sessions.js';
import { variableReasons } from './variables.js';
import { wishOf } from './wish.js';
import type { Wish } from './wish.js';

/** Weights are streamed through the page cache when main memory has room for all of them and this much more. */
const spareForPageCache = 8 * 2 ** 30;
/** As native/runtime/upload.cpp has it. */
const windowBytes = 32 * 2 ** 20;

function deviceReasons({ gpu, budget }: Room, { gpu: request = {} }: PlanRequest): PlanReason[] {
  const { treatAs, resident } = request;
  const reasons: PlanReason[] = [
    {
      kind: 'note',
      text: `device: ${deviceText(gpu)}, ${gpu.kind}, ${gib(gpu.freeBytes)} free, ${gib(budget)} to use`,
    },
  ];
  if (treatAs !== undefined) {
    reasons.push({
      kind: 'headline',
      text: `device ${gpu.index} is treated as ${treatAs.kind}, because ${treatAs.by} is set`,
    });
  }
  if (resident === true && gpu.kind === 'integrated') {
    reasons.push({
      kind: 'headline',
      text: '--gpu-resident makes no difference here: the GPU shares main memory, and what fits is copied anyway',
    });
  }
  return reasons;
}

/** Whether there are no pinned buffers through which weights could go. */
function lacksRing({ isRingShort }: Room, request: PlanRequest): boolean {
  return isRingShort || failuresOf(request, 'ring') > 0;
}

/** Why weights are copied from the mapping, if they are. */
function mappingBecause(
  { gpu: { kind }, ring, isRingShort, memory }: Room,
  place: GpuWeightsPlan['place'],
  request: PlanRequest,
): string | undefined {
  if (failuresOf(request, 'ring') > 0) {
    return 'those could not be had';
  }
  if (isRingShort) {
    return `main memory has only ${gib(memory + ring.slotBytes)} free, too little for ${ring.slots} of ${gib(ring.slotBytes)}`;
  }
  const isRead = request.source === 'read' || request.source === 'direct';
  if (kind === 'discrete' || place === 'streamExperts' || isRead) {
    return undefined;
  }
  return request.source === 'mmap'
    ? 'the mapping of the file was asked for'
    : request.lock === true
      ? '--mlock keeps the mapping of the file'
      : request.gpu?.checkUpload === true
        ? '--check-tensors compares with it'
        : undefined;
}

/** How weights get from the file into GPU memory, with the grounds when it is not the usual way. */
function uploadPath(
  room: Room,
  place: GpuWeightsPlan['place'],
  request: PlanRequest,
): { path: UploadPath; reasons: PlanReason[] } {
  const because = mappingBecause(room, place, request);
  if (because === undefined) {
    const isIdle = request.source === 'mmap' && place === 'device';
    const text = '--mmap has no effect: a card takes its weights through pinned buffers';
    return {
      path: request.source === 'direct' ? 'direct' : 'staged',
      reasons: isIdle ? [{ kind: 'warning', text }] : [],
    };
  }
  const text = `upload: from the mapping of the file instead of through pinned buffers, because ${because}`;
  return { path: 'mapping', reasons: [{ kind: 'note', text }] };
}

/** One ordinary buffer, at most of the size at which the library cuts what it copies from a mapping. */
function mappingUpload({ slotBytes }: Ring): GpuPlan['upload'] {
  return { path: 'mapping', slots: 1, slotBytes: Math.min(slotBytes, windowBytes) };
}

/** Main memory that is left for the system's page cache. */
function cacheBytes({ experts, pinnedBytes }: Placed, { memory }: Room): number {
  return Math.max(0, memory - experts.hostBytes - pinnedBytes);
}

function sourceOf(
  placed: Placed | undefined,
  path: UploadPath,
  { room, parts, request }: Situation,
): WeightSource {
  if (lacksRing(room, request)) {
    return 'mmap';
  }
  if (request.source !== undefined) {
    return request.source;
  }
  if (placed === undefined) {
    return path === 'mapping' ? 'mmap' : 'read';
  }
  if (placed.place === 'mappedExperts') {
    return placed.pinCopies ? 'read' : 'mmap';
  }
  if (request.experts?.bufferedBy !== undefined) {
    return 'read';
  }
  // A RAM disk has no page cache to read past.
  return room.isFileInRamDisk || cacheBytes(placed, room) > parts.total + spareForPageCache
    ? 'read'
    : 'direct';
}

function mappedReason(
  parts: ModelParts,
  gpu: GpuFacts,
  wish: Wish,
  placed: Placed,
  why: string,
): PlanReason {
  const read =
    gpu.kind === 'integrated'
      ? 'are used in place'
      : placed.experts.slots > 0
        ? 'stay in main memory and are read over the bus, those in frequent use copied'
        : 'stay in main memory and are read over the bus at each use, which is slow';
  return {
    kind: wish.kind === 'asked' ? 'warning' : 'headline',
    text:
      `weights: ${gib(placed.nonRouted.deviceBytes)} go into GPU memory; ` +
      `${gib(parts.routed)} of experts ${read}, because ${why}` +
      (placed.pinCopies ? '; they are read into pinned memory of our own' : ''),
  };
}

function streamedReason(parts: ModelParts, wish: Wish, placed: Placed, why: string): PlanReason {
  return {
    kind: wish.kind === 'asked' ? 'warning' : 'headline',
    text:
      `weights: ${gib(placed.nonRouted.deviceBytes)} go into GPU memory; ` +
      `${gib(parts.routed)} of experts are read from the file when they are needed, because ${why}`,
  };
}

/** Where the experts go when the whole model is not, or may not be, in GPU memory. */
function placeExperts(
  situation: Situation,
  wish: Wish,
  why: string,
): { placed: Placed; reasons: PlanReason[] } {
  const { parts, room, request } = situation;
  let because = why;
  if (request.experts?.streaming !== true) {
    const isForbidden = wish.kind === 'forbidden' && wish.by === 'user';
    const placed = placeMapped(situation, isForbidden ? 'forbidden' : 'allowed');
    if (typeof placed !== 'string') {
      return {
        placed,
        reasons: [mappedReason(parts, room.gpu, wish, placed, why), ...cacheReasons(placed)],
      };
    }
    because = `${why}, and ${placed}`;
  }
  const placed = placeStreamed(situation);
  return {
    placed,
    reasons: [streamedReason(parts, wish, placed, because), ...cacheReasons(placed)],
  };
}

function noRoomText({ parts, room, sessions }: Situation, spare: number): string {
  return (
    `the whole model (${gib(parts.total)}) and the session (${gib(sessions.leastBytes)}) ` +
    `${spare > 0 ? `with ${gib(spare)} to spare ` : ''}exceed the ${gib(room.budget)} that can be used`
  );
}

/**
 * Plans a run on a GPU: the whole model in its memory when that is asked for or fits with room to spare; else everything
 * but the routed experts, which are pinned in main memory, or read from the file when that cannot hold them. The session
 * and what kernels need is in GPU memory in any case.
 *
 * @throws PlanError with the sums and what would help.
 */
export function planGpu(
  model: ModelDescription,
  facts: MachineFacts,
  measured: GpuFacts,
  request: PlanRequest,
): GpuPlan {
  const gpu = { ...measured, kind: request.gpu?.treatAs?.kind ?? measured.kind };
  if (gpu.freeBytes === 0) {
    throw refusal(
      `${deviceText(gpu)} has no free memory, or cannot tell how much; end what uses it`,
    );
  }
  const parts = partsOf(model, sliceOf(model, request));
  const room = roomOf(facts, gpu, request);
  refuseWithoutBuffer(room, facts.memoryAvailable);
  const sessions = new Sessions(model, request);
  const situation = { model, parts, room, request, sessions };
  const wish = wishOf(request, gpu);
  const spare = wish.kind === 'automatic' && gpu.kind === 'discrete' ? spareWhenAutomatic : 0;
  const residentChunk =
    wish.kind === 'forbidden' ? undefined : sessions.fitting(room.budget - parts.total - spare);

  if (residentChunk === undefined && request.gpu?.residentRequired === true) {
    const why = wish.kind === 'forbidden' ? wish.because : noRoomText(situation, spare);
    throw refusal(
      `${deviceText(gpu)}: the whole model has to be in GPU memory, and cannot: ${why}`,
    );
  }
  const weightReasons: PlanReason[] = [];
  let placed: Placed | undefined;
  if (residentChunk === undefined) {
    const why = wish.kind === 'forbidden' ? wish.because : noRoomText(situation, spare);
    const experts = placeExperts(situation, wish, why);
    placed = experts.placed;
    weightReasons.push(
      ...(wish.kind === 'forbidden' ? wish.reasons : []),
      ...experts.reasons,
      ...placed.nonRouted.reasons,
      ...(placed.fetch === undefined ? [] : fetchReasons(placed.fetch, request)),
    );
  } else {
    const how = wish.kind === 'asked' ? `${wish.by} asks for it` : 'they fit';
    weightReasons.push({
      kind: 'headline',
      text:
        `weights: all ${gib(parts.total)} go into GPU memory, because ${how}: ` +
        `with the session ${gib(parts.total + sessions.bytes(residentChunk).total)} of ${gib(room.budget)}`,
    });
  }

  const chunk = placed?.chunk ?? residentChunk ?? sessions.smallestChunk;
  const session = sessions.bytes(chunk);
  const { path, reasons: uploadReasons } = uploadPath(room, placed?.place ?? 'device', request);
  const source = sourceOf(placed, path, situation);
  const dropReadPages = dropsPages(situation, placed, facts);
  const lock = pinnedLockOf(request, placed?.pinnedBytes ?? 0);
  return {
    backend: gpu.backend,
    device: {
      index: gpu.index,
      name: gpu.name,
      kind: gpu.kind,
      freeBytes: gpu.freeBytes,
      budgetBytes: room.budget,
    },
    weights: {
      ...weightsOf(parts, placed),
      source,
      lock: lock.lock,
      ...(facts.isFileInRamDisk === true ? { isFileInRamDisk: true as const } : {}),
      dropReadPages,
      ...(request.readThreads === undefined ? {} : { readThreads: request.readThreads }),
      ...(placed?.fetch === undefined
        ? {}
        : { readThreads: placed.fetch.readers, fetchBytes: placed.fetch.bytes }),
    },
    upload: path === 'mapping' ? mappingUpload(room.ring) : { path, ...room.ring },
    kv: { place: 'device', bytes: session.kv, bytesPerPosition: sessions.perPosition(chunk) },
    bufferBytes: session.buffers,
    context: sessions.context,
    prefillChunk: chunk,
    checkpoints: checkpointCount,
    reasons: [
      ...failureReasons(request),
      ...variableReasons(request.variables, {
        isOnGpu: true,
        streams: placed?.place === 'streamExperts',
        fetches: placed?.fetch !== undefined,
      }),
      ...deviceReasons(room, request),
      ...room.reasons,
      ...machineReasons(facts),
      ...weightReasons,
      ...policyReasons(request, placed),
      ...uploadReasons,
      ...readingReasons(request, {
        streams: placed?.place === 'streamExperts' && !room.isFileInRamDisk,
        source,
        dropReadPages,
        fileBytes: parts.total,
        cacheBytes: placed === undefined ? room.memory : cacheBytes(placed, room),
      }),
      ...lock.reasons,
      ...sessions.reasons(chunk),
    ],
  };
}

function weightsOf(
  parts: ModelParts,
  placed: Placed | undefined,
): Omit<GpuWeightsPlan, 'source' | 'lock' | 'dropReadPages'> {
  const sums = { bytes: parts.total, routedBytes: parts.routed };
  if (placed === undefined) {
    return { place: 'device', ...sums, deviceBytes: parts.total, pinnedBytes: 0, pinCopies: false };
  }
  const { place, nonRouted, pinnedBytes, pinCopies, experts } = placed;
  return {
    place,
    ...sums,
    deviceBytes: nonRouted.deviceBytes,
    pinnedBytes,
    pinCopies,
    ...(nonRouted.limit === undefined ? {} : { deviceWeightBytes: nonRouted.limit }),
    ...(nonRouted.pageSlots === undefined ? {} : { pageSlots: nonRouted.pageSlots }),
    ...(place === 'mappedExperts' && experts.slots === 0 ? {} : { experts }),
  };
}

/** Where main memory cannot hold the file beside what is copied from it, the system should not try. */
function dropsPages(
  { room, parts, request }: Situation,
  placed: Placed | undefined,
  { memoryAvailable, isFileInRamDisk = false }: MachineFacts,
): boolean {
  const copied =
    room.gpu.kind === 'integrated' ? (placed?.nonRouted.deviceBytes ?? parts.total) : 0;
  return !isFileInRamDisk && request.keepPages !== true && memoryAvailable - copied < parts.total;
}

/**
 * Plans a session that takes the place of the one that `current` has: its memory counts as free.
 *
 * @throws PlanError when it does not fit.
 */
export function planGpuSession(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  current: GpuPlan,
): GpuPlan {
  const sessions = new Sessions(model, request);
  const held = current.kv.bytes + current.bufferBytes;
  const free = Math.max(0, (facts.gpu?.freeBytes ?? 0) + held - margin);
  const beside = deviceBytesOf(current) - held;
  const room =
    request.gpu?.budgetGib === undefined
      ? free
      : Math.max(0, Math.min(free, current.device.budgetBytes - beside));
  const chunk = sessions.fitting(room);
  if (chunk === undefined) {
    throw new PlanError(
      `a context of ${sessions.context} needs ${gib(sessions.leastBytes)} of GPU memory, ` +
        `${gib(room)} can be used; ${contextAdvice(sessions.largestContext(room))}`,
    );
  }
  const session = sessions.bytes(chunk);
  return {
    ...current,
    kv: { ...current.kv, bytes: session.kv },
    bufferBytes: session.buffers,
    context: sessions.context,
    prefillChunk: chunk,
    reasons: sessions.reasons(chunk),
  };
}
