import { Ds4Error, ExitCode } from '../error/index.js';

/** The file cannot be opened, or is not a GGUF file we can trust. The message names the file and the place. */
export class GgufError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}
