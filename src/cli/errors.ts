import { Ds4Error, ExitCode } from '../error/index.js';

/** The command line is wrong: one sentence, status 2, nothing on stdout. */
export class UsageError extends Ds4Error {
  readonly exitCode = ExitCode.usage;
}

/** The command line is right, but the work cannot be done: status 1. */
export class RunError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}

/** A value that does not fit its option's grammar; the parser adds the option's name as it was typed. */
export class InvalidValue extends Error {
  constructor(readonly text: string) {
    super(`invalid value: ${text}`);
  }
}

/** The sentence of anything that was thrown. */
export function sentenceOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}

/** The system's own words for a failed file operation, without Node's code and call in front. */
export function systemReason(thrown: unknown): string {
  const sentence = sentenceOf(thrown);
  const match = /^[A-Z0-9]+: ([^,]+)/.exec(sentence);
  return match?.[1] ?? sentence;
}
