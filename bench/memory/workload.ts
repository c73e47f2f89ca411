import { Noise } from '../gpu/noise.js';

/** Token ids drawn evenly from the whole vocabulary: no expert is more likely than another. */
export function evenTokens(count: number, vocab: number, seed: number): number[] {
  const noise = new Noise(seed);
  return Array.from({ length: count }, () => noise.bits() % vocab);
}

/** Token ids drawn evenly from `distinct` of them: a text that stays with its topic, and with its experts. */
export function topicTokens(
  count: number,
  vocab: number,
  distinct: number,
  seed: number,
): number[] {
  const noise = new Noise(seed);
  const topic = evenTokens(distinct, vocab, seed + 1);
  return Array.from({ length: count }, () => topic[noise.bits() % distinct] ?? 0);
}
