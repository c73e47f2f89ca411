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
  /** With the first lookup of an evaluation of few tokens: what its tokens alone decide. */
  readonly foresight?: Foresight | undefined;
}

/** Experts that are asked for before anything of an evaluation is computed. */
export interface Foresight {
  /** In the order in which they find places; none of them leaves for another. */
  readonly keys: ReadonlySet<number>;
  /** Tokens evaluated before the last evaluation: what was used since stays. */
  readonly lastToken: number;
}

/** A batch of so many choices for each expert of a layer needs nearly all of them. */
const choicesForAll = 2;
/** Larger batches foresee nothing: they fill layers as a whole. */
const mostForeseenTokens = 8;

/** The lookups of a trace in order. Experts of different layers are different keys. */
export function lookupsOf(trace: Trace): Lookup[] {
  const { layerCount, expertCount, usedCount, hashLayers } = trace;
  const lookups: Lookup[] = [];
  let token = 0;
  let lastToken = 0;
  for (const { tokens, layers } of trace.evaluations) {
    const needsAll = tokens > 1 && tokens * usedCount >= choicesForAll * expertCount;
    const decided = layers
      .filter(({ layer }) => layer < hashLayers && tokens <= mostForeseenTokens)
      .flatMap(({ layer, experts }) => experts.map((expert) => layer * expertCount + expert));
    let foresight: Foresight | undefined =
      decided.length > 0 ? { keys: new Set(decided), lastToken } : undefined;
    for (const { layer, experts } of layers) {
      const ahead =
        needsAll && layer + 1 < layerCount
          ? Array.from({ length: expertCount }, (_, expert) => (layer + 1) * expertCount + expert)
          : [];
      const keys = experts.map((expert) => layer * expertCount + expert);
      const together = new Set(keys);
      for (const key of keys) {
        lookups.push({ key, token, isBatch: tokens > 1, together, ahead, foresight });
        foresight = undefined;
      }
    }
    lastToken = token;
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
  /** The key has a place, though it may be on its way there. */
  holds(key: number): boolean;
  /** The key is held and is used. */
  use(lookup: Lookup, index: number): void;
  /** The key is not held; it may come in. */
  miss(lookup: Lookup, index: number): void;
  /** Free slots, where whole layers may come in ahead of their use. */
  readonly free?: () => number;
  /** The key is not held; a place for it before anything of the evaluation is used. False when there is none. */
  readonly foresee?: (key: number, foresight: Foresight, isBatch: boolean) => boolean;
}

/**
 * Of what a layer wants, the engine first uses what is there and then brings in what is not. Free slots that can take all
 * that the next layer lacks get it while a large batch computes this one; for that batch it is only on its way, not there.
 * The same holds for what was foreseen: the layer that wants it finds it on its way, even if it has arrived by then.
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
  const foreseen = new Set<number>();
  let arriving: readonly number[] = [];
  let landing: (readonly [Lookup, number])[] = [];
  let missed: (readonly [Lookup, number])[] = [];
  lookups.forEach((lookup, index) => {
    const { foresight, isBatch } = lookup;
    for (const key of foresight?.keys ?? []) {
      if (foresight && !cache.holds(key) && cache.foresee?.(key, foresight, isBatch) === true) {
        foreseen.add(key);
      }
    }
    if (foreseen.delete(lookup.key)) {
      tally(lookup, 0);
      landing.push([lookup, index]);
    } else if (cache.holds(lookup.key)) {
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
    for (const landed of landing) {
      cache.use(...landed);
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
    landing = [];
    missed = [];
  });
  return outcome;
}

/** Which slot gives up what it holds. A slot is known from its first touch until it is forgotten. */
interface Replacement {
  touch(slot: number, token: number): void;
  forget(slot: number): void;
  victim(mayGo: (slot: number) => boolean): number | undefined;
}

/** The engine's rules for places (native/runtime/expert_runs.cpp, expert_foresight.cpp), whatever the policy. */
function replayEngine(
  lookups: readonly Lookup[],
  capacity: number,
  replacement: Replacement,
): Outcome {
  const slotOf = new Map<number, number>();
  const slots: { key: number; token: number }[] = [];
  const take = (key: number, slot: number): void => {
    slotOf.set(key, slot);
    // Nobody has touched it yet, so nobody can want its slot.
    slots[slot] = { key, token: Infinity };
  };
  /** `spared`: none of them goes; nor does what was used since `since`. */
  const evict = (spared: ReadonlySet<number>, since: number): number | undefined => {
    const slot = replacement.victim((place) => !spared.has(slots[place]?.key ?? -1));
    const leaving = slot === undefined ? undefined : slots[slot];
    if (slot === undefined || leaving === undefined || leaving.token >= since) {
      return undefined;
    }
    replacement.forget(slot);
    slotOf.delete(leaving.key);
    return slot;
  };
  const placed = (
    key: number,
    isBatch: boolean,
    spared: ReadonlySet<number>,
    since: number,
  ): boolean => {
    const free = slots.length < capacity ? slots.length : undefined;
    const slot = free ?? (isBatch ? undefined : evict(spared, since));
    if (slot !== undefined) {
      take(key, slot);
    }
    return slot !== undefined;
  };
  const use = ({ key, token }: Lookup): void => {
    const slot = slotOf.get(key) ?? -1;
    slots[slot] = { key, token };
    replacement.touch(slot, token);
  };
  return count(lookups, {
    free: () => capacity - slots.length,
    holds: (key) => slotOf.has(key),
    use,
    miss: (lookup) => {
      if (placed(lookup.key, lookup.isBatch, lookup.together, Infinity)) {
        use(lookup);
      }
    },
    foresee: (key, { keys, lastToken }, isBatch) => placed(key, isBatch, keys, lastToken),
  });
}

/** The engine's LRU: a miss takes a free slot, else that of the key that was not used for longest. */
export function replayLru(lookups: readonly Lookup[], capacity: number): Outcome {
  /** A set goes through its members from the one that was added first. */
  const known = new Set<number>();
  return replayEngine(lookups, capacity, {
    touch: (slot) => {
      known.delete(slot);
      known.add(slot);
    },
    forget: (slot) => {
      known.delete(slot);
    },
    victim: (mayGo) => {
      for (const slot of known) {
        if (mayGo(slot)) {
          return slot;
        }
      }
      return undefined;
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
  const known: ({ score: number; uses: number; token: number } | undefined)[] = [];
  return replayEngine(lookups, capacity, {
    touch: (slot, before) => {
      // The engine counts from 1.
      const token = before + 1;
      const last = known[slot] ?? { uses: 0, token };
      const halvings =
        Math.floor(token / tokensUntilHalf) - Math.floor(last.token / tokensUntilHalf);
      const uses = Math.floor(last.uses / 2 ** halvings) + 1;
      known[slot] = { uses, token, score: token + tokensPerDoubling * Math.log2(1 + uses) };
    },
    forget: (slot) => {
      known[slot] = undefined;
    },
    victim: (mayGo) => {
      let lowest = Infinity;
      let found: number | undefined;
      known.forEach((state, slot) => {
        if (state !== undefined && state.score < lowest && mayGo(slot)) {
          lowest = state.score;
          found = slot;
        }
      });
      return found;
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
