import type { Trace } from './trace.js';

/** One wish for an expert, as the engine looks it up. */
export interface Lookup {
  readonly key: number;
  /** Tokens evaluated before. */
  readonly token: number;
  /** The evaluation has several tokens: it may fill free slots and may not evict. */
  readonly isBatch: boolean;
  /** What the same layer of the same evaluation wants: none of it may leave. */
  readonly together: ReadonlySet<number>;
  /** All experts of the next layer, if the batch is so large that they are read ahead, else none. */
  readonly ahead: readonly number[];
}

/** A batch of so many choices for each expert of a layer needs nearly all of them. */
const choicesForAll = 2;

/** The lookups of a trace in order. Experts of different layers are different keys. */
export function lookupsOf(trace: Trace): Lookup[] {
  const { layerCount, expertCount, usedCount } = trace;
  const lookups: Lookup[] = [];
  let token = 0;
  for (const { tokens, layers } of trace.evaluations) {
    const needsAll = tokens > 1 && tokens * usedCount >= choicesForAll * expertCount;
    for (const { layer, experts } of layers) {
      const ahead =
        needsAll && layer + 1 < layerCount
          ? Array.from({ length: expertCount }, (_, expert) => (layer + 1) * expertCount + expert)
          : [];
      const keys = experts.map((expert) => layer * expertCount + expert);
      const together = new Set(keys);
      for (const key of keys) {
        lookups.push({ key, token, isBatch: tokens > 1, together, ahead });
      }
    }
    token += tokens;
  }
  return lookups;
}

/** What a cache of one size made of a trace. */
export interface Outcome {
  readonly lookups: number;
  readonly hits: number;
  /** Of those, the ones of evaluations of one token. */
  readonly decodeLookups: number;
  readonly decodeHits: number;
}

/** What a policy makes of one lookup. */
interface Cache {
  holds(key: number): boolean;
  /** The key is held and is used. */
  use(lookup: Lookup, index: number): void;
  /** The key is not held; it may come in. */
  miss(lookup: Lookup, index: number): void;
  /** Free slots, where whole layers may come in ahead of their use. */
  readonly free?: () => number;
}

/**
 * Of what a layer wants, the engine first uses what is there and then brings in what is not. Free slots that can take all
 * that the next layer lacks get it while a large batch computes this one; for that batch it is only on its way, not there.
 */
function count(lookups: readonly Lookup[], cache: Cache): Outcome {
  const outcome = { lookups: 0, hits: 0, decodeLookups: 0, decodeHits: 0 };
  const tally = ({ isBatch }: Lookup, hit: number): void => {
    const decode = isBatch ? 0 : 1;
    outcome.lookups += 1;
    outcome.hits += hit;
    outcome.decodeLookups += decode;
    outcome.decodeHits += hit * decode;
  };
  const lastUse = new Map<number, number>();
  let arriving: readonly number[] = [];
  let missed: (readonly [Lookup, number])[] = [];
  lookups.forEach((lookup, index) => {
    if (cache.holds(lookup.key)) {
      tally(lookup, 1);
      cache.use(lookup, index);
    } else {
      tally(lookup, 0);
      missed.push([lookup, index]);
    }
    lastUse.set(lookup.key, lookup.token);
    if (lookups[index + 1]?.together === lookup.together) {
      return;
    }
    for (const key of arriving) {
      cache.miss({ ...lookup, key, token: lastUse.get(key) ?? -1 }, index);
    }
    for (const late of missed) {
      if (!arriving.includes(late[0].key)) {
        cache.miss(...late);
      }
    }
    const absent = lookup.ahead.filter((key) => !cache.holds(key));
    arriving = absent.length <= (cache.free?.() ?? 0) ? absent : [];
    missed = [];
  });
  return outcome;
}

/** The engine's LRU: a miss takes a free slot, else that of the key that was not used for longest. */
export function replayLru(lookups: readonly Lookup[], capacity: number): Outcome {
  /** A map goes through its keys from the one that was set first. */
  const held = new Map<number, true>();
  const victim = (together: ReadonlySet<number>): number | undefined => {
    for (const key of held.keys()) {
      if (!together.has(key)) {
        return key;
      }
    }
    return undefined;
  };
  return count(lookups, {
    free: () => capacity - held.size,
    holds: (key) => held.has(key),
    use: ({ key }) => {
      held.delete(key);
      held.set(key, true);
    },
    miss: ({ key, isBatch, together }) => {
      if (held.size >= capacity) {
        const leaves = isBatch ? undefined : victim(together);
        if (leaves === undefined) {
          return;
        }
        held.delete(leaves);
      }
      held.set(key, true);
    },
  });
}

const tokensPerDoubling = 64;
const tokensUntilHalf = 1024;

/**
 * The engine's LFRU (native/runtime/replacement.h): each doubling of its uses lets a key count as used 64 tokens later;
 * uses count half after each 1024 tokens. Among equals the lowest slot goes.
 */
export function replayLfru(lookups: readonly Lookup[], capacity: number): Outcome {
  const slots: { key: number; score: number; uses: number; token: number }[] = [];
  const slotOf = new Map<number, number>();
  const touch = (slot: number, { key, token: before }: Lookup, usesBefore: number): void => {
    // The engine counts from 1.
    const token = before + 1;
    const uses = usesBefore + 1;
    slots[slot] = { key, uses, token, score: token + tokensPerDoubling * Math.log2(1 + uses) };
    slotOf.set(key, slot);
  };
  const victim = (together: ReadonlySet<number>): number | undefined => {
    let lowest = Infinity;
    let found: number | undefined;
    slots.forEach(({ key, score }, slot) => {
      if (score < lowest && !together.has(key)) {
        lowest = score;
        found = slot;
      }
    });
    return found;
  };
  return count(lookups, {
    free: () => capacity - slots.length,
    holds: (key) => slotOf.has(key),
    use: (lookup) => {
      const slot = slotOf.get(lookup.key) ?? -1;
      const { token, uses } = slots[slot] ?? { token: 0, uses: 0 };
      const halvings =
        Math.floor((lookup.token + 1) / tokensUntilHalf) - Math.floor(token / tokensUntilHalf);
      touch(slot, lookup, Math.floor(uses / 2 ** halvings));
    },
    miss: (lookup) => {
      if (slots.length < capacity) {
        touch(slots.length, lookup, 0);
        return;
      }
      const leaves = lookup.isBatch ? undefined : victim(lookup.together);
      const leaving = leaves === undefined ? undefined : slots[leaves];
      if (leaves !== undefined && leaving !== undefined) {
        slotOf.delete(leaving.key);
        touch(leaves, lookup, 0);
      }
    },
  });
}

/** Slots for the keys that the first half of the tokens wanted most, and for no others; each is read when first wanted. */
export function replayPinned(lookups: readonly Lookup[], capacity: number): Outcome {
  const half = (lookups.at(-1)?.token ?? 0) / 2;
  const uses = new Map<number, number>();
  for (const { key, token } of lookups) {
    if (token <= half) {
      uses.set(key, (uses.get(key) ?? 0) + 1);
    }
  }
  const hottest = [...uses].sort(([, left], [, right]) => right - left).slice(0, capacity);
  const pinned = new Set(hottest.map(([key]) => key));
  const held = new Set<number>();
  return count(lookups, {
    holds: (key) => held.has(key),
    use: () => undefined,
    miss: ({ key }) => {
      if (pinned.has(key)) {
        held.add(key);
      }
    },
  });
}

/**
 * What nobody can beat, because it knows the future: of what is held and what comes, that leaves which is wanted again
 * last. Unlike the engine it may evict in a batch, what comes may be what leaves, and nothing comes before it is wanted.
 */
export function replayBelady(lookups: readonly Lookup[], capacity: number): Outcome {
  const nextUse = new Float64Array(lookups.length);
  const later = new Map<number, number>();
  for (let index = lookups.length - 1; index >= 0; index -= 1) {
    const key = lookups[index]?.key ?? -1;
    nextUse[index] = later.get(key) ?? Infinity;
    later.set(key, index);
  }
  const held = new Map<number, number>();
  const keep = ({ key }: Lookup, index: number): void => {
    held.set(key, nextUse[index] ?? Infinity);
    if (held.size > capacity) {
      let [leaves, latest] = [key, -1];
      for (const [candidate, next] of held) {
        if (next > latest) {
          [leaves, latest] = [candidate, next];
        }
      }
      held.delete(leaves);
    }
  };
  return count(lookups, { holds: (key) => held.has(key), use: keep, miss: keep });
}

export const policies = {
  LRU: replayLru,
  LFRU: replayLfru,
  'static pin': replayPinned,
  Belady: replayBelady,
} as const;
export type PolicyName = keyof typeof policies;
