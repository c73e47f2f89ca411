import { TokenizerError } from './tokenizer-error.js';
import { quoted } from './vocabulary.js';
import type { Vocabulary } from './vocabulary.js';

/** No rank: the two tokens do not merge. Greater than every rank. */
export const noRank = 0x7fffffff;

/** Ranks share a double with a position (see `byte-pair.ts`), which leaves them this much room. */
const mostMerges = 2 ** 20;

/**
 * Which pairs of tokens merge, when, and into what.
 *
 * An open-addressed table in typed arrays, because a Map would box each of the 2^34 possible pair keys.
 */
export class MergeTable {
  /** Token that the merge of a rank makes; index is the rank. */
  readonly made: Int32Array;

  private readonly mask: number;
  /** Per slot left token, right token, rank; a slot with rank `noRank` is free. */
  private readonly slots: Int32Array;

  /**
   * A merge that makes or takes a special token is left out: text never becomes one. Of two equal merges the first counts.
   *
   * @throws TokenizerError when a merge is no pair or names an unknown token.
   */
  constructor(merges: readonly string[], vocabulary: Vocabulary) {
    if (merges.length > mostMerges) {
      throw new TokenizerError(
        `cannot use the vocabulary: it has ${merges.length} merges, at most ${mostMerges} are supported`,
      );
    }
    const capacity = 2 ** Math.ceil(Math.log2(Math.max(8, 2 * merges.length)));
    this.mask = capacity - 1;
    this.slots = new Int32Array(3 * capacity).fill(noRank);
    this.made = new Int32Array(merges.length);
    merges.forEach((merge, rank) => {
      this.add(merge, rank, vocabulary);
    });
  }

  /** Rank of the merge of two tokens, `noRank` when they do not merge. */
  rank(left: number, right: number): number {
    const { slots, mask } = this;
    let slot = slotOf(left, right) & mask;
    for (;;) {
      const at = 3 * slot;
      const rank = slots[at + 2] ?? noRank;
      if (rank === noRank || (slots[at] === left && slots[at + 1] === right)) {
        return rank;
      }
      slot = (slot + 1) & mask;
    }
  }

  private add(merge: string, rank: number, vocabulary: Vocabulary): void {
    const blank = merge.indexOf(' ');
    if (blank <= 0 || blank === merge.length - 1 || merge.includes(' ', blank + 1)) {
      throw new TokenizerError(
        `cannot use the vocabulary: merge ${rank} is ${quoted(merge)}, not two tokens with one blank between; ` +
          'the model file is damaged or was converted wrongly',
      );
    }
    const leftPart = merge.slice(0, blank);
    const rightPart = merge.slice(blank + 1);
    const left = vocabulary.ordinary.get(leftPart);
    const right = vocabulary.ordinary.get(rightPart);
    const made = vocabulary.ordinary.get(leftPart + rightPart);
    if (left === undefined || right === undefined || made === undefined) {
      for (const part of [leftPart, rightPart, leftPart + rightPart]) {
        if (!vocabulary.ordinary.has(part) && !vocabulary.specials.has(part)) {
          throw new TokenizerError(
            `cannot use the vocabulary: merge ${rank} (${quoted(merge)}) needs the token ${quoted(part)}, ` +
              'which is not there; the model file is damaged or was converted wrongly',
          );
        }
      }
      return;
    }
    let slot = slotOf(left, right) & this.mask;
    for (;;) {
      const at = 3 * slot;
      if (this.slots[at + 2] === noRank) {
        this.slots.set([left, right, rank], at);
        this.made[rank] = made;
        return;
      }
      if (this.slots[at] === left && this.slots[at + 1] === right) {
        return;
      }
      slot = (slot + 1) & this.mask;
    }
  }
}

function slotOf(left: number, right: number): number {
  const mixed = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
  return mixed ^ (mixed >>> 15);
}
