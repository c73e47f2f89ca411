export { EmptyPromptError, NoFiniteLogitError, PromptTooLongError } from './errors.js';
export { scoreText, TextTooShortError, unscoredTokens } from './perplexity.js';
export type { Perplexity } from './perplexity.js';
export { Session } from './session.js';
export type { GenerateOptions, GenerationEnd, PrefillOptions, PrefillProgress } from './session.js';
export type { Timeline, TimelineRequest, TimelineResult } from './timeline.js';
