import { existsSync, statSync } from 'node:fs';
import type { ModelDescription } from '../model/index.js';
import { RunError } from './errors.js';
import { chooseModel } from './model-choice.js';
import type { Run } from './run.js';

/** The model file, read and understood; nothing is loaded yet. */
export interface ModelFile {
  readonly path: string;
  readonly description: ModelDescription;
}

/** Which model file this run is about; says so when nobody named it. */
export function modelPath(run: Run): string {
  const choice = chooseModel(run.settings.model);
  if (choice.note !== undefined) {
    run.terminal.note(choice.note);
  }
  return choice.path;
}

/** Opens the file, or says why it cannot be opened, in the words of the system. */
export async function openModelFile(path: string): Promise<ModelFile> {
  if (existsSync(path) && statSync(path).isDirectory()) {
    throw new RunError(`cannot open model '${path}': it is a directory; name a GGUF file`);
  }
  const [{ openGguf }, { describeModel }] = await Promise.all([
    import('../gguf/index.js'),
    import('../model/index.js'),
  ]);
  return { path, description: describeModel(openGguf(path)) };
}
