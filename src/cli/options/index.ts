import { diagnosticOptions } from './diagnostics.js';
import { distributedOptions } from './distributed.js';
import type { OptionEntry } from './entry.js';
import { placementOptions } from './placement.js';
import { promptOptions, steeringOptions } from './prompt.js';
import { outputOptions, runtimeOptions } from './runtime.js';

export { entry, sections, topics } from './entry.js';
export type { OptionEntry, SectionTitle, Topic } from './entry.js';

/** Every option of `ds4`. The parser, the help and docs/cli.md all come from this table. */
export const optionTable: readonly OptionEntry[] = [
  ...runtimeOptions,
  ...outputOptions,
  ...placementOptions,
  ...promptOptions,
  ...steeringOptions,
  ...distributedOptions,
  ...diagnosticOptions,
];
