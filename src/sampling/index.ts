export { Sampler } from './sampler.js';
export type { Candidates, SamplingOptions } from './sampler.js';
export { Xorshift64Star } from './xorshift.js';
export { logprobOf, logSumExp, topLogprobs } from './logprobs.js';
export type { TokenLogprob } from './logprobs.js';
