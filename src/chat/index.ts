export { Chat, ChatError } from './chat.js';
export type { AssistantMessage, Message, PromptMessage, RenderOptions, ThinkMode } from './chat.js';
export { findEffortPrefix, identifyEffortPrefix } from './effort-prefix.js';
export type { EffortTier } from './effort-prefix.js';
export { ThinkFilter } from './think-filter.js';
export type { OutputSegment } from './think-filter.js';
