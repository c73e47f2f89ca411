/** Exit statuses a script may rely on; `docs/cli.md` explains them. */
export const ExitCode = {
  ok: 0,
  runtime: 1,
  usage: 2,
  interrupted: 130,
  brokenPipe: 141,
  terminated: 143,
} as const;
export type ExitCode = (typeof ExitCode)[keyof typeof ExitCode];

/** A failure we expected: it has a sentence for the user and an exit status. Everything else is a bug. */
export abstract class Ds4Error extends Error {
  abstract readonly exitCode: ExitCode;

  override get name(): string {
    return this.constructor.name;
  }
}
