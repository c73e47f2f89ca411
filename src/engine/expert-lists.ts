import { Arena, ErrorSlot, Struct } from './abi.js';
import type { Library, ModelHandle } from './abi.js';
import { layoutOf } from './layout.js';

/** A routed expert of the model. */
export interface ExpertId {
  readonly layer: number;
  readonly expert: number;
}

export interface ExpertUse extends ExpertId {
  /** It has a slot, or a place in pinned host memory. */
  readonly isKept: boolean;
  /** Evaluations that wanted it since the model was loaded. */
  readonly uses: number;
}

const expertBytes = layoutOf('ds4_expert').bytes;

/** Native memory for `count` experts and the small things around them. */
function arenaFor(count: number): Arena {
  return new Arena(ErrorSlot.bytes + count * expertBytes + 256);
}

/** `ds4_seed_experts`. */
export async function seedExperts(
  library: Library,
  model: ModelHandle,
  experts: readonly ExpertId[],
): Promise<number> {
  const arena = arenaFor(experts.length);
  try {
    const error = new ErrorSlot(arena);
    const seeded = arena.take(4);
    const list = arena.take(experts.length * expertBytes);
    for (const [index, { layer, expert }] of experts.entries()) {
      const entry = new Struct(arena, 'ds4_expert', list + index * expertBytes);
      entry.setU32('layer', layer);
      entry.setU32('expert', expert);
    }
    const status = await library.seedExperts(
      model,
      arena.address(list),
      experts.length,
      arena.address(seeded),
      error.address,
    );
    error.check('ds4_seed_experts', status);
    return arena.view.getUint32(seeded, true);
  } finally {
    arena.free();
  }
}

/** `ds4_list_experts`; `most`: how many there can be. */
export function listExperts(library: Library, model: ModelHandle, most: number): ExpertUse[] {
  const arena = arenaFor(most);
  try {
    const error = new ErrorSlot(arena);
    const count = arena.take(4);
    const list = arena.take(most * expertBytes);
    const entries = Array.from(
      { length: most },
      (_, index) => new Struct(arena, 'ds4_expert', list + index * expertBytes),
    );
    error.check(
      'ds4_list_experts',
      library.listExperts(model, arena.address(list), most, arena.address(count), error.address),
    );
    return entries.slice(0, arena.view.getUint32(count, true)).map((entry) => ({
      layer: entry.u32('layer'),
      expert: entry.u32('expert'),
      isKept: entry.u32('is_kept') === 1,
      uses: entry.u64('uses'),
    }));
  } finally {
    arena.free();
  }
}

/**
 * The lists of several parts of a model as one. Caches of different parts are never compared with each other: what counts
 * is how far up in its own list an expert is.
 */
export function mergeExpertLists(lists: readonly (readonly ExpertUse[])[]): ExpertUse[] {
  const kept = lists.flatMap((list) => {
    const own = list.filter(({ isKept }) => isKept);
    return own.map((use, index) => ({ use, rank: (index + 0.5) / own.length }));
  });
  const others = lists.flatMap((list) => list.filter(({ isKept }) => !isKept));
  return [
    ...kept.sort((one, other) => one.rank - other.rank).map(({ use }) => use),
    ...others.sort((one, other) => other.uses - one.uses),
  ];
}
