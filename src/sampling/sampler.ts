import { bestTokens, tokensDownTo } from './order.js';
import { Xorshift64Star } from './xorshift.js';

/** How tokens are chosen. Values outside a filter's range switch that filter off. */
export interface SamplingOptions {
  /** 0 or less: always the best token, without randomness. */
  readonly temperature: number;
  /** Share of the whole probability that the kept tokens must reach, in (0, 1]; 1 (or anything outside): no filter. */
  readonly topP: number;
  /** Lowest weight of a kept token relative to the best one; 0 or less: no filter. */
  readonly minP: number;
  /** Only this many best tokens take part, at most 1024; 0 or absent: all. */
  readonly topK?: number;
  /** State of the generator, modulo 2^64. Equal seeds give equal choices for equal logits. */
  readonly seed: bigint;
}

/** The best tokens of one row: descending by logit, lower id first among equals, no token twice. */
export interface Candidates {
  readonly ids: Int32Array;
  readonly logits: Float32Array;
}

const largestTopK = 1024;

/**
 * With top-p on, tokens are sorted only as far down as the walk gets: first those within these distances of the best
 * logit (in units of temperature), then all.
 */
const sortedDepths = [6, 12, 20, Infinity];

/** In units of temperature: far more than rounding can move the logarithm of a weight. */
const roundingMargin = 1e-3;

/** Tokens that take part in the draw, in the order in which the draw walks over them. */
interface Kept {
  readonly ids: Int32Array;
  readonly weights: Float32Array;
  /** How many of the arrays' entries count. */
  readonly count: number;
  /** float32 sum of the weights in that order. */
  readonly sum: number;
  /** What the draw returns when rounding leaves a rest after the last token. */
  readonly fallback: number;
}

/**
 * Chooses tokens from logits. One sampler is one stream of random numbers: make a new one where a stream starts.
 *
 * All arithmetic is float32, in a fixed order, so equal logits and seeds give equal tokens on every machine. NaN and
 * infinite logits never take part.
 */
export class Sampler {
  /**
   * Whether this setting can do without all logits: `never` needs them, needs them `sometimes` (ask
   * `needsAllLogits` for each row), or `always`, unless the candidates are the whole vocabulary.
   */
  readonly allLogits: 'never' | 'sometimes' | 'always';

  private readonly temperature: number;
  private readonly topP: number;
  private readonly minP: number;
  private readonly topK: number;
  private readonly generator: Xorshift64Star;

  constructor(options: SamplingOptions) {
    for (const [name, value] of [
      ['temperature', options.temperature],
      ['topP', options.topP],
      ['minP', options.minP],
      ['topK', options.topK ?? 0],
    ] as const) {
      if (Number.isNaN(value)) {
        throw new RangeError(`cannot sample with ${name} NaN: give a number`);
      }
    }
    this.temperature = Math.fround(options.temperature);
    const topP = Math.fround(options.topP);
    this.topP = topP > 0 && topP <= 1 ? topP : 1;
    this.minP = Math.max(0, Math.fround(options.minP));
    this.topK = Math.min(largestTopK, Math.max(0, Math.floor(options.topK ?? 0)));
    this.generator = new Xorshift64Star(options.seed);

    if (this.temperature <= 0 || this.topK > 0) {
      this.allLogits = 'never';
    } else if (this.topP === 1 && this.minP > 0) {
      this.allLogits = 'sometimes';
    } else {
      this.allLogits = 'always';
    }
  }

  /**
   * Whether the token chosen from these candidates could differ from the one chosen from all logits.
   *
   * @param vocab how many tokens the model has
   */
  needsAllLogits(candidates: Candidates, vocab: number): boolean {
    const count = candidates.logits.length;
    if (count >= vocab) {
      return false;
    }
    for (const logit of candidates.logits) {
      // A descending order that holds NaN or +infinity proves nothing about the tokens left out.
      if (Number.isNaN(logit) || logit === Infinity) {
        return true;
      }
    }
    const best = candidates.logits[0];
    const last = candidates.logits[count - 1];
    if (best === undefined || last === undefined) {
      return true;
    }
    if (last === -Infinity) {
      return false;
    }
    if (this.temperature <= 0) {
      return false;
    }
    if (this.topK > 0) {
      return count < this.topK;
    }
    return this.topP < 1 || this.weight(last, best) >= this.minP;
  }

  /**
   * Chooses from the logits of the whole vocabulary; index is the token id.
   *
   * @returns undefined when no logit is finite: there is nothing to choose, and no token stands in for it.
   */
  sample(logits: Float32Array): number | undefined {
    const best = bestToken(logits);
    if (best === undefined || this.temperature <= 0) {
      return best;
    }
    return this.draw(this.keep(logits, best));
  }

  /**
   * Chooses from the best tokens alone; the result is that of `sample` on all logits.
   *
   * @param vocab how many tokens the model has
   * @returns undefined when no logit is finite.
   * @throws Error when `needsAllLogits` says that they do not suffice.
   */
  sampleCandidates(candidates: Candidates, vocab: number): number | undefined {
    if (this.needsAllLogits(candidates, vocab)) {
      throw new Error(
        `cannot sample from ${candidates.logits.length} candidates of ${vocab} tokens: ` +
          'this setting needs all logits; ask needsAllLogits first',
      );
    }
    const best = bestToken(candidates.logits);
    if (best === undefined || this.temperature <= 0) {
      return best === undefined ? undefined : candidates.ids[best];
    }
    // The candidates in id order, as a small vocabulary of their own, so that one code chooses in both cases. Those
    // below min-p would be dropped there anyway, and sorting them costs most of the time.
    const bestLogit = candidates.logits[best] ?? NaN;
    const light = this.topP === 1 && this.topK === 0 ? this.minP : 0;
    const order: number[] = [];
    candidates.logits.forEach((logit, index) => {
      if (index === best || this.weight(logit, bestLogit) >= light) {
        order.push(index);
      }
    });
    order.sort((a, b) => (candidates.ids[a] ?? 0) - (candidates.ids[b] ?? 0));
    const logits = Float32Array.from(order, (index) => candidates.logits[index] ?? NaN);
    const chosen = this.sample(logits);
    return chosen === undefined ? undefined : candidates.ids[order[chosen] ?? -1];
  }

  /** exp of the distance to the best logit over temperature: 1 for the best token. */
  private weight(logit: number, best: number): number {
    return Math.fround(Math.exp(Math.fround(Math.fround(logit - best) / this.temperature)));
  }

  private keep(logits: Float32Array, bestId: number): Kept {
    const best = logits[bestId] ?? NaN;
    if (this.topK > 0) {
      const ids = bestTokens(logits, this.topK);
      let total = 0;
      for (const id of ids) {
        total = Math.fround(total + this.weight(logits[id] ?? NaN, best));
      }
      return this.walkSorted(ids, logits, best, total).kept;
    }
    return this.topP < 1 ? this.keepByTopP(logits, best) : this.keepByMinP(logits, bestId, best);
  }

  private keepByMinP(logits: Float32Array, bestId: number, best: number): Kept {
    // Far below the threshold the exponential need not be computed; near it rounding decides, so it must be.
    const hopeless = best + this.temperature * (Math.log(this.minP) - roundingMargin);
    const ids = new Int32Array(logits.length);
    const weights = new Float32Array(logits.length);
    let count = 0;
    let sum = 0;
    for (let id = 0; id < logits.length; id++) {
      const logit = logits[id] ?? NaN;
      if (logit < hopeless || !Number.isFinite(logit)) {
        continue;
      }
      const weight = this.weight(logit, best);
      if (weight >= this.minP) {
        ids[count] = id;
        weights[count] = weight;
        sum = Math.fround(sum + weight);
        count++;
      }
    }
    return { ids, weights, count, sum, fallback: bestId };
  }

  private keepByTopP(logits: Float32Array, best: number): Kept {
    let total = 0;
    for (const logit of logits) {
      if (Number.isFinite(logit)) {
        total = Math.fround(total + this.weight(logit, best));
      }
    }
    for (const depth of sortedDepths) {
      const lowest = depth === Infinity ? -Infinity : best - depth * this.temperature;
      const walk = this.walkSorted(tokensDownTo(lowest, logits), logits, best, total);
      if (walk.stopped || depth === Infinity) {
        return walk.kept;
      }
    }
    throw new Error('unreachable: the last depth takes all tokens');
  }

  /** Keeps tokens, best first, until one is too light or the kept ones reach top-p; `stopped` tells that this happened. */
  private walkSorted(
    sorted: Int32Array,
    logits: Float32Array,
    best: number,
    total: number,
  ): { kept: Kept; stopped: boolean } {
    const weights = new Float32Array(sorted.length);
    let count = 0;
    let sum = 0;
    let stopped = false;
    for (const id of sorted) {
      const weight = this.weight(logits[id] ?? NaN, best);
      if (count > 0 && weight < this.minP) {
        stopped = true;
        break;
      }
      weights[count++] = weight;
      sum = Math.fround(sum + weight);
      if (Math.fround(sum / total) >= this.topP) {
        stopped = true;
        break;
      }
    }
    return {
      kept: { ids: sorted, weights, count, sum, fallback: sorted[count - 1] ?? 0 },
      stopped,
    };
  }

  private draw(kept: Kept): number {
    let rest = Math.fround(this.generator.nextFloat() * kept.sum);
    for (let index = 0; index < kept.count; index++) {
      rest = Math.fround(rest - (kept.weights[index] ?? 0));
      if (rest <= 0) {
        return kept.ids[index] ?? kept.fallback;
      }
    }
    return kept.fallback;
  }
}

/** The finite token with the highest logit, the lowest id among equals. */
function bestToken(logits: Float32Array): number | undefined {
  let best: number | undefined;
  let bestLogit = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id] ?? NaN;
    if (logit > bestLogit && logit < Infinity) {
      best = id;
      bestLogit = logit;
    }
  }
  return best;
}
