import { Ds4Error, ExitCode } from '../error/index.js';

/** The prompt does not fit: it must be shorter than the context, so that there is room for an answer. */
export class PromptTooLongError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor(
    readonly promptTokens: number,
    readonly context: number,
  ) {
    super(
      `the prompt has ${promptTokens} tokens and its length exceeds the context of ${context}: ` +
        `it must be shorter; shorten it or try --ctx ${promptTokens + 1} or more`,
    );
  }
}

export class EmptyPromptError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor() {
    super('the prompt is empty: there is no token to start from');
  }
}

/** No token can be chosen. `position` is that of the token to be chosen. */
export class NoFiniteLogitError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor(readonly position: number) {
    super(`non-finite logits at position ${position}: generation stops, no token can be chosen`);
  }
}
