import { isatty } from 'node:tty';
import { Ds4Error, ExitCode } from '../error/index.js';
import { simulationOf } from './backend-choice.js';
import { wantsDebug } from './environment.js';
import type { Environment } from './environment.js';
import { sentenceOf } from './errors.js';
import type { Run } from './run.js';
import type { Settings } from './settings.js';

function writeError(program: string, text: string): void {
  for (const line of text.split('\n')) {
    process.stderr.write(`${program}: ${line}\n`);
  }
}

/** What a bug looks like to the person who meets it: one line, and how to see more. */
function describeBug(thrown: unknown): string {
  if (wantsDebug() && thrown instanceof Error) {
    return `internal error: ${thrown.stack ?? thrown.message}`;
  }
  return `internal error: ${sentenceOf(thrown)}; this is a bug in ds4, DS4_DEBUG=1 shows where`;
}

/** Prints what went wrong, in the name of a program, and returns the exit status. */
export function reportFailure(thrown: unknown, program: string): number {
  if (thrown instanceof Ds4Error) {
    if (thrown.message !== '') {
      writeError(program, thrown.message);
    }
    return thrown.exitCode;
  }
  writeError(program, describeBug(thrown));
  return ExitCode.runtime;
}

/** Everything a command works with: the terminal, and signals from now on. */
export async function openRun(
  settings: Settings,
  environment: Environment,
  program = 'ds4',
): Promise<Run> {
  const [{ Terminal }, { colored, createStyle }, { Stop }] = await Promise.all([
    import('./terminal.js'),
    import('./style.js'),
    import('./stop.js'),
  ]);
  const [stdoutIsTerminal, stderrIsTerminal] = [isatty(1), isatty(2)];
  const terminal = new Terminal({
    stdout: process.stdout,
    stderr: process.stderr,
    style: createStyle({
      stdout: colored(settings.color, environment, stdoutIsTerminal),
      stderr: colored(settings.color, environment, stderrIsTerminal),
    }),
    quiet: settings.quiet,
    stdoutIsTerminal,
    stderrIsTerminal,
    program,
  });
  const stop = new Stop();
  stop.listen();
  stop.onStop(() => {
    terminal.stopWaiting();
  });
  terminal.whenClosed(() => {
    stop.request(ExitCode.brokenPipe);
  });
  const simulation = simulationOf({ settings, environment });
  return { settings: { ...settings, simulation }, environment, terminal, stop };
}

/** Does the work of a run and returns its exit status, which is the signal's when one ended it. */
export async function withRun(run: Run, work: (run: Run) => Promise<number>): Promise<number> {
  try {
    return await work(run);
  } catch (thrown) {
    // A request to stop comes back as the failure of whatever was under way.
    const isStopped =
      thrown instanceof Ds4Error &&
      (thrown.exitCode === ExitCode.interrupted || thrown.exitCode === ExitCode.brokenPipe);
    if (run.stop.status === undefined || !isStopped) {
      throw thrown;
    }
    return run.stop.status;
  } finally {
    run.stop.close();
  }
}
