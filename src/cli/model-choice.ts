import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { RunError } from './errors.js';

export interface ModelChoice {
  readonly path: string;
  /** Said on stderr when the small model stands in for one that nobody named. */
  readonly note: string | undefined;
}

const usualModel = 'ds4flash.gguf';

/** Beside the program, wherever it is started from. */
const embeddedModel = fileURLToPath(new URL('../../models/ds4-small.gguf', import.meta.url));

/**
 * The model to run: the named one, else ds4flash.gguf in the current folder, else the small one that comes with ds4.
 *
 * @throws RunError when there is none of them.
 */
export function chooseModel(named: string | undefined): ModelChoice {
  if (named !== undefined) {
    return { path: named, note: undefined };
  }
  if (existsSync(usualModel)) {
    return { path: usualModel, note: undefined };
  }
  if (existsSync(embeddedModel)) {
    return {
      path: embeddedModel,
      note: `no model named and no ${usualModel} here: using the small model that comes with ds4; name one with -m`,
    };
  }
  throw new RunError(
    `no model: name a GGUF file with -m (there is no ${usualModel} here, and the small model ` +
      `that comes with ds4 is missing: ${embeddedModel})`,
  );
}
