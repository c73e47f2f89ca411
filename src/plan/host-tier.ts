import type { Room } from './budget.js';
import { failuresOf } from './failures.js';
import type { ModelParts } from './model-parts.js';
import { gib, gibibyte, OversizeError } from './plan.js';
import type { PlanReason, PlanRequest } from './plan.js';

/** Pinned main memory for experts that find no slot. */
export interface HostTier {
  /** A whole number of experts. */
  readonly bytes: number;
  /** Why there is none, or why it is less than what was asked for. */
  readonly because: string | undefined;
  readonly reasons: readonly PlanReason[];
}

const option = '--host-expert-cache';
const variable = 'DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK';

function none(because: string, warning?: string): HostTier {
  return {
    bytes: 0,
    because,
    reasons: warning === undefined ? [] : [{ kind: 'warning', text: warning }],
  };
}

/** What leaves no tier at all, whatever the sums say. */
function withoutTier({ gpu }: Room, request: PlanRequest): HostTier | undefined {
  const { hostTier = true, hostGib } = request.experts ?? {};
  if (gpu.kind === 'integrated') {
    const shared = 'the GPU shares main memory, and its slots are in it';
    return none(
      shared,
      (hostGib ?? 0) > 0 ? `${option} ${hostGib ?? 0} has no effect: ${shared}` : undefined,
    );
  }
  if (hostGib === 0) {
    return none(`${option} 0 was given`);
  }
  if (!hostTier) {
    return none(`${variable} is 0`);
  }
  return failuresOf(request, 'hostTier') > 0 ? none('it could not be had') : undefined;
}

/**
 * Half of main memory at most, and no more than there are experts without a slot.
 *
 * @throws OversizeError for a named size that is more than the machine has.
 */
export function planHostTier(
  parts: ModelParts,
  room: Room,
  request: PlanRequest,
  pinnedBytes: number,
  slots: number,
): HostTier {
  const left = withoutTier(room, request);
  if (left !== undefined) {
    return left;
  }
  const { hostGib } = request.experts ?? {};
  const asked = hostGib === undefined ? Infinity : hostGib * gibibyte;
  const text = `${option} ${hostGib ?? ''}`;
  const { memory, memoryTotal = Infinity } = room;
  if (hostGib !== undefined && asked > memoryTotal) {
    throw new OversizeError(
      `${text} asks for ${gib(asked)} of main memory, and the machine has ${gib(memoryTotal)}; ` +
        'name less, or leave it out for half of what is free',
    );
  }
  const without = parts.expertCount - slots;
  if (without === 0) {
    return none('every expert has a slot');
  }
  if (asked < parts.slot) {
    const less = `${text} (${gib(asked)}) is less than one expert (${gib(parts.slot)})`;
    return none(less, `${less}: none is kept in main memory`);
  }
  const most = Math.max(0, Math.min(memory / 2, memory - pinnedBytes));
  const experts = Math.min(Math.floor(Math.min(most, asked) / parts.slot), without);
  const bytes = experts * parts.slot;
  const free =
    `${gib(memory)} of main memory can be pinned` +
    (pinnedBytes > 0 ? ` (${gib(pinnedBytes)} of it taken otherwise)` : '');
  if (asked !== Infinity && asked > most && experts < without) {
    return {
      bytes,
      because: undefined,
      reasons: [
        {
          kind: 'warning',
          text: `${text} is more than there is room for: ${free}, half of that at most for experts, and ${gib(bytes)} are taken`,
        },
      ],
    };
  }
  if (experts === 0) {
    return none(`${free}, half of that at most for experts, which is less than one`);
  }
  return {
    bytes,
    because:
      asked !== Infinity && experts === without
        ? `there are no more without a slot, for all that ${text} allows ${gib(asked)}`
        : undefined,
    reasons: [],
  };
}
