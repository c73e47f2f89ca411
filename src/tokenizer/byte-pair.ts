import { noRank } from './merges.js';
import type { MergeTable } from './merges.js';

/** Up to this many symbols a look at every pair is faster than a heap. */
const shortPiece = 40;

/** Heap keys hold the rank above and the position in these lower bits, so the lowest key is the leftmost lowest rank. */
const positionSpan = 2 ** 32;

const gone = -1;

/**
 * Merges symbols until no pair is left that merges: always the pair with the lowest rank, the leftmost of equals.
 *
 * @param symbols token ids, one per byte; overwritten
 * @param count how many of them
 * @returns how many are left at the start of `symbols`
 */
export function mergeSymbols(symbols: Int32Array, count: number, merges: MergeTable): number {
  return count <= shortPiece
    ? mergeShort(symbols, count, merges)
    : mergeLong(symbols, count, merges);
}

const shortRanks = new Int32Array(shortPiece);

function mergeShort(symbols: Int32Array, count: number, merges: MergeTable): number {
  const ranks = shortRanks;
  for (let index = 0; index + 1 < count; index++) {
    ranks[index] = merges.rank(symbols[index] ?? 0, symbols[index + 1] ?? 0);
  }
  let left = count;
  while (left > 1) {
    let best = 0;
    let bestRank = noRank;
    for (let index = 0; index + 1 < left; index++) {
      const rank = ranks[index] ?? noRank;
      if (rank < bestRank) {
        best = index;
        bestRank = rank;
      }
    }
    if (bestRank === noRank) {
      break;
    }
    symbols[best] = merges.made[bestRank] ?? 0;
    left--;
    for (let index = best + 1; index < left; index++) {
      symbols[index] = symbols[index + 1] ?? 0;
      ranks[index] = ranks[index + 1] ?? noRank;
    }
    if (best > 0) {
      ranks[best - 1] = merges.rank(symbols[best - 1] ?? 0, symbols[best] ?? 0);
    }
    if (best + 1 < left) {
      ranks[best] = merges.rank(symbols[best] ?? 0, symbols[best + 1] ?? 0);
    }
  }
  return left;
}

/** The same with a linked list and a heap: a run of a million equal letters is one piece and must not take hours. */
function mergeLong(symbols: Int32Array, count: number, merges: MergeTable): number {
  const next = new Int32Array(count);
  const previous = new Int32Array(count);
  /** Rank of the pair that starts here, so that outdated heap entries can be told. */
  const ranks = new Int32Array(count).fill(noRank);
  const heap = new KeyHeap(count);
  const enter = (position: number): void => {
    const right = next[position] ?? gone;
    const rank = right === gone ? noRank : merges.rank(symbols[position] ?? 0, symbols[right] ?? 0);
    ranks[position] = rank;
    if (rank !== noRank) {
      heap.push(rank * positionSpan + position);
    }
  };
  for (let index = 0; index < count; index++) {
    next[index] = index + 1 < count ? index + 1 : gone;
    previous[index] = index - 1;
  }
  for (let index = 0; index < count; index++) {
    enter(index);
  }

  for (let key = heap.pop(); key !== undefined; key = heap.pop()) {
    const position = key % positionSpan;
    const rank = (key - position) / positionSpan;
    if (ranks[position] !== rank) {
      continue;
    }
    const right = next[position] ?? gone;
    const after = next[right] ?? gone;
    symbols[position] = merges.made[rank] ?? 0;
    ranks[right] = noRank;
    next[position] = after;
    if (after !== gone) {
      previous[after] = position;
    }
    enter(position);
    const before = previous[position] ?? gone;
    if (before !== gone) {
      enter(before);
    }
  }

  let left = 0;
  for (let position = 0; position !== gone; position = next[position] ?? gone) {
    symbols[left++] = symbols[position] ?? 0;
  }
  return left;
}

/** A binary heap of doubles, lowest first. */
class KeyHeap {
  private keys: Float64Array;
  private count = 0;

  constructor(capacity: number) {
    this.keys = new Float64Array(Math.max(1, capacity));
  }

  push(key: number): void {
    if (this.count === this.keys.length) {
      const wider = new Float64Array(2 * this.keys.length);
      wider.set(this.keys);
      this.keys = wider;
    }
    const { keys } = this;
    let at = this.count++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = keys[parent] ?? 0;
      if (above <= key) {
        break;
      }
      keys[at] = above;
      at = parent;
    }
    keys[at] = key;
  }

  pop(): number | undefined {
    if (this.count === 0) {
      return undefined;
    }
    const { keys } = this;
    const top = keys[0];
    const key = keys[--this.count] ?? 0;
    const { count } = this;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= count) {
        break;
      }
      if (child + 1 < count && (keys[child + 1] ?? 0) < (keys[child] ?? 0)) {
        child++;
      }
      const below = keys[child] ?? 0;
      if (below >= key) {
        break;
      }
      keys[at] = below;
      at = child;
    }
    keys[at] = key;
    return top;
  }
}
