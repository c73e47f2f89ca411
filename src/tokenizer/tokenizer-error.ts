import { Ds4Error, ExitCode } from '../error/index.js';

/** A vocabulary that cannot be used, or an id outside it. */
export class TokenizerError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}
