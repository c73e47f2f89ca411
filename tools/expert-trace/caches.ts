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
}

/** The lookups of a trace in order. Experts of different layers are different keys. */
export function lookupsOf(trace: Trace): Lookup[] {
  const lookups: Lookup[] = [];
  let token = 0;
  for (const { tokens, layers } of trace.evaluations) {
    for (const { layer, experts } of layers) {
      const keys = experts.map((expert) => layer * trace.expertCount + expert);
      const together = new Set(keys);
      for (const key of keys) {
        lookups.push({ key, token, isBatch: tokens > 1, together });
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

/** Finds the key (and brings it in, if its policy wants that). */
type Find = (lookup: Lookup, index: number) => boolean;

function count(lookups: readonly Lookup[], find: Find): Outcome {
  const outcome = { lookups: 0, hits: 0, decodeLookups: 0, decodeHits: 0 };
  lookups.forEach((lookup, index) => {
    const hit = find(lookup, index) ? 1 : 0;
    const decode = lookup.isBatch ? 0 : 1;
    outcome.lookups += 1;
    outcome.hits += hit;
    outcome.decodeLookups += decode;
    outcome.decodeHits += hit * decode;
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
  return count(lookups, ({ key, isBatch, together }) => {
    const isHit = held.delete(key);
    if (!isHit && held.size >= capacity) {
      const leaves = isBatch ? undefined : victim(together);
      if (leaves === undefined) {
        return false;
      }
      held.delete(leaves);
    }
    held.set(key, true);
    return isHit;
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
  const touch = (slot: number, key: number, token: number, usesBefore: number): void => {
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
  return count(lookups, ({ key, token, isBatch, together }) => {
    const slot = slotOf.get(key);
    const known = slot === undefined ? undefined : slots[slot];
    if (slot !== undefined && known !== undefined) {
      const halvings =
        Math.floor(token / tokensUntilHalf) - Math.floor(known.token / tokensUntilHalf);
      touch(slot, key, token, Math.floor(known.uses / 2 ** halvings));
      return true;
    }
    if (slots.length < capacity) {
      touch(slots.length, key, token, 0);
      return false;
    }
    const leaves = isBatch ? undefined : victim(together);
    const leaving = leaves === undefined ? undefined : slots[leaves];
    if (leaves !== undefined && leaving !== undefined) {
      slotOf.delete(leaving.key);
      touch(leaves, key, token, 0);
    }
    return false;
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
  return count(lookups, ({ key }) => {
    const isHit = held.has(key);
    if (pinned.has(key)) {
      held.add(key);
    }
    return isHit;
  });
}

/**
 * What nobody can beat, because it knows the future: of what is held and what comes, that leaves which is wanted again
 * last. Unlike the engine it may evict in a batch, and what comes may be what leaves.
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
  return count(lookups, ({ key }, index) => {
    const isHit = held.has(key);
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
    return isHit;
  });
}

export const policies = {
  LRU: replayLru,
  LFRU: replayLfru,
  'static pin': replayPinned,
  Belady: replayBelady,
} as const;
export type PolicyName = keyof typeof policies;
