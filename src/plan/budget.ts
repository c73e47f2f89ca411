import { gib, gibibyte, PlanError } from './plan.js';
import type { GpuFacts, MachineFacts, PlanReason, PlanRequest } from './plan.js';

/** Left of every budget for what nobody counts: fragments, the driver, recorded graphs. */
export const margin = 512 * 2 ** 20;
/** A copy that nobody asked for is made only when this much stays free besides. */
export const spareWhenAutomatic = 2 * gibibyte;
/** Device memory that a growing expert cache leaves free; it was chosen for machines that share their memory. */
const usualReserve = 16 * gibibyte;

const uploadSlots = 4;
const uploadSlotMib = { least: 16, usual: 64, most: 4096 };

/** What may be used of a device's memory when nobody says. */
export function automaticBudget(freeBytes: number): number {
  return Math.max(0, freeBytes - Math.max(2 * gibibyte, 0.05 * freeBytes));
}

export function deviceText(gpu: GpuFacts): string {
  return `${gpu.backend} device ${gpu.index} (${gpu.name})`;
}

export function refusal(text: string): PlanError {
  return new PlanError(`${text}, or let the processor compute with --cpu`);
}

/** Pinned buffers through which weights reach a device. */
export interface Ring {
  readonly slots: number;
  readonly slotBytes: number;
}

/** Smaller than asked where main memory is short, so that the ring is never what does not fit. */
function ringOf({ gpu }: PlanRequest, memoryAvailable: number): Ring {
  const { least, usual, most } = uploadSlotMib;
  let mib = Math.min(Math.max(gpu?.copyChunkMib ?? usual, least), most);
  while (mib > least && uploadSlots * mib * 2 ** 20 > memoryAvailable / 4) {
    mib = Math.max(least, Math.floor(mib / 2));
  }
  return { slots: uploadSlots, slotBytes: mib * 2 ** 20 };
}

/** What a plan may take, and where. */
export interface Room {
  readonly gpu: GpuFacts;
  readonly ring: Ring;
  /** Main memory has no room for all buffers of the ring, only for one of them. */
  readonly isRingShort: boolean;
  /** Of the device. */
  readonly budget: number;
  /** Of the device when what is free of it may not fall below the reserve. */
  readonly withinReserve: number;
  readonly reserve: number;
  /** Main memory that may be pinned beside the ring; on an integrated device its own memory comes from it too. */
  readonly memory: number;
  /** All that a process could have of it, if that is known. */
  readonly memoryTotal: number | undefined;
  readonly isFileInRamDisk: boolean;
  readonly reasons: readonly PlanReason[];
}

function reserveOf(gpu: GpuFacts, { experts }: PlanRequest, memory: number): number {
  // Of a device that shares main memory, what it says it has may be more than there is.
  const all = gpu.kind === 'integrated' ? Math.min(gpu.totalBytes, memory) : gpu.totalBytes;
  // A third at most: on a small card the usual reserve would be all there is.
  return experts?.reserveGib === undefined
    ? Math.min(usualReserve, all / 3)
    : experts.reserveGib * gibibyte;
}

/** A budget that is larger than the device is cut to what is free, not refused: scripts name one for many machines. */
function clipReasons(
  { index, freeBytes, totalBytes }: GpuFacts,
  gibs: number | undefined,
): PlanReason[] {
  if (gibs === undefined || gibs * gibibyte <= freeBytes) {
    return [];
  }
  const has =
    gibs * gibibyte > totalBytes
      ? `what device ${index} has, ${gib(totalBytes)}, of which ${gib(freeBytes)} are free`
      : `what is free on device ${index}, ${gib(freeBytes)}`;
  return [
    { kind: 'warning', text: `--gpu-vram ${gibs} is more than ${has}: no more than that is used` },
  ];
}

/** @throws PlanError when main memory has no room for even one of the buffers. */
export function refuseWithoutBuffer({ gpu, ring: { slotBytes } }: Room, memory: number): void {
  if (slotBytes > memory) {
    throw refusal(
      `${deviceText(gpu)}: weights go into GPU memory through a buffer of ${gib(slotBytes)}, ` +
        `and main memory has ${gib(memory)} free; free some`,
    );
  }
}

/** Buffers of another size than usual, or than asked; fewer than usual are the business of whoever decides about the upload. */
function ringReasons(
  { gpu }: PlanRequest,
  { slots, slotBytes }: Ring,
  taken: number,
  memory: number,
): PlanReason[] {
  const { copyChunkMib, copyChunkBy = 'who asked' } = gpu ?? {};
  const count = taken / slotBytes;
  const buffers = `upload buffers: ${count} of ${slotBytes / 2 ** 20} MiB`;
  if (slotBytes === (copyChunkMib ?? uploadSlotMib.usual) * 2 ** 20) {
    return copyChunkMib === undefined
      ? []
      : [{ kind: 'note', text: `${buffers}, because ${copyChunkBy} says so` }];
  }
  const short =
    `main memory has only ${gib(memory)} free` +
    (count < slots ? '' : ', and they may take a quarter of it');
  return copyChunkMib === undefined
    ? [{ kind: 'note', text: `${buffers}, because ${short}` }]
    : [
        {
          kind: 'warning',
          text: `${buffers} instead of the ${copyChunkMib} MiB of ${copyChunkBy}, because ${short}`,
        },
      ];
}

export function roomOf(facts: MachineFacts, gpu: GpuFacts, request: PlanRequest): Room {
  const gibs = request.gpu?.budgetGib;
  const ring = ringOf(request, facts.memoryAvailable);
  const isRingShort = ring.slots * ring.slotBytes > facts.memoryAvailable;
  const taken = (isRingShort ? 1 : ring.slots) * ring.slotBytes;
  const memory = Math.max(0, facts.memoryAvailable - taken);
  const wanted = gibs === undefined ? automaticBudget(gpu.freeBytes) : gibs * gibibyte;
  const free = gpu.kind === 'integrated' ? Math.min(gpu.freeBytes, memory) : gpu.freeBytes;
  const reserve = reserveOf(gpu, request, memory);
  const upTo = (bytes: number): number => Math.max(0, Math.min(free, wanted, bytes) - margin);
  return {
    gpu,
    ring,
    isRingShort,
    budget: upTo(free),
    withinReserve: upTo(free - reserve),
    reserve,
    memory,
    memoryTotal: facts.memoryTotal,
    isFileInRamDisk: facts.isFileInRamDisk === true,
    reasons: [
      ...clipReasons(gpu, gibs),
      ...ringReasons(request, ring, taken, facts.memoryAvailable),
    ],
  };
}

/** What is left when so many bytes of main memory are taken besides; only a device that shares it notices. */
export function beside(room: Room, bytes: number): Room {
  if (room.gpu.kind === 'discrete') {
    return room;
  }
  const most = Math.max(0, room.memory - bytes - margin);
  return {
    ...room,
    budget: Math.min(room.budget, most),
    withinReserve: Math.min(room.withinReserve, most),
  };
}

/** Main memory that is left for pinned weights once the device's own are placed. */
export function hostRoom({ gpu, memory }: Room, deviceBytes: number): number {
  return gpu.kind === 'integrated' ? memory - deviceBytes : memory;
}
