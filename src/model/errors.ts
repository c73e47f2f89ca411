import { Ds4Error, ExitCode } from '../error/index.js';

/** Longest list of problems that a message shows: about a screenful. */
const shownProblems = 20;

/**
 * The file is sound GGUF but not a model that ds4 can run. `problems` has everything that is wrong, one sentence
 * each; the message is the first of them, the others on lines of their own, and ends with the file.
 */
export class ModelError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor(
    readonly path: string,
    readonly problems: readonly string[],
  ) {
    super(messageOf(path, problems));
  }
}

function messageOf(path: string, problems: readonly string[]): string {
  const lines = problems.slice(0, shownProblems);
  const hidden = problems.length - lines.length;
  if (hidden > 0) {
    lines.push(`and ${hidden} more`);
  }
  if (lines.length === 1) {
    return `${lines[0] ?? ''} (in '${path}')`;
  }
  return [...lines, `(${problems.length} problems in '${path}')`].join('\n  ');
}
