import { isatty } from 'node:tty';
import { Ds4Error, ExitCode } from '../error/index.js';
import { parseArguments } from './arguments.js';
import { chooseBackend } from './backend-choice.js';
import { checkTogether, refuseUnserved } from './checks.js';
import { readEnvironment } from './environment.js';
import type { Environment } from './environment.js';
import { sentenceOf } from './errors.js';
import type { Run } from './run.js';
import type { Settings } from './settings.js';

/** Descriptors are asked, not streams: opening stdin as a stream would start reading it. */
const stdinIsTerminal = (): boolean => isatty(0);

function writeError(text: string, paint: (line: string) => string = (line) => line): void {
  for (const line of text.split('\n')) {
    process.stderr.write(`${paint(`ds4: ${line}`)}\n`);
  }
}

/** What a bug looks like to the person who meets it: one line, and how to see more. */
function describeBug(thrown: unknown, environment: Environment): string {
  if (environment.debug && thrown instanceof Error) {
    return `internal error: ${thrown.stack ?? thrown.message}`;
  }
  return `internal error: ${sentenceOf(thrown)}; this is a bug in ds4, DS4_DEBUG=1 shows where`;
}

/**
 * Prints what went wrong and returns the exit status. The launcher calls it too, for failures that nobody caught.
 */
export function report(thrown: unknown): number {
  if (thrown instanceof Ds4Error) {
    if (thrown.message !== '') {
      writeError(thrown.message);
    }
    return thrown.exitCode;
  }
  writeError(describeBug(thrown, readEnvironment()));
  return ExitCode.runtime;
}

async function openRun(settings: Settings, environment: Environment): Promise<Run> {
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
  });
  const stop = new Stop();
  stop.listen();
  stop.onStop(() => {
    terminal.stopWaiting();
  });
  terminal.whenClosed(() => {
    stop.request(ExitCode.brokenPipe);
  });
  return { settings, environment, terminal, stop };
}

/** Finds the command for these settings and runs it. Each loads only what it needs. */
async function dispatch(run: Run): Promise<number> {
  const { settings } = run;
  const [mode] = settings.diagnostics;
  const prompt =
    settings.prompt ??
    (settings.interactive || stdinIsTerminal() ? undefined : ({ kind: 'stdin' } as const));

  if (mode?.kind === 'dumpTokens' && prompt !== undefined) {
    return (await import('./commands/dump-tokens.js')).dumpTokens(run, prompt);
  }
  refuseUnserved(settings);
  // Checked before anything is read, so that nobody waits for a prompt or a model only to be refused.
  chooseBackend(settings);
  for (const warning of run.environment.warnings) {
    run.terminal.warning(warning);
  }
  if (settings.debug && settings.role === undefined) {
    run.terminal.warning('--debug has no effect without --role');
  }
  switch (mode?.kind) {
    case 'inspect':
      return (await import('./commands/inspect.js')).inspect(run);
    case 'perplexity':
      return (await import('./commands/perplexity.js')).perplexity(run, mode.file);
    default:
  }
  if (prompt === undefined) {
    return (await import('./commands/chat.js')).chat(run);
  }
  switch (mode?.kind) {
    case 'dumpLogits':
      return (await import('./commands/dump-logits.js')).dumpLogits(run, prompt, mode.file);
    case 'dumpLogprobs':
      return (await import('./commands/dump-logprobs.js')).dumpLogprobs(run, prompt, mode.file);
    case 'decodeConsistency':
      return (await import('./commands/decode-consistency.js')).decodeConsistency(
        run,
        prompt,
        mode.tokens,
      );
    default:
      return (await import('./commands/one-shot.js')).oneShot(run, prompt);
  }
}

async function runSettings(settings: Settings): Promise<number> {
  checkTogether(settings);
  const run = await openRun(settings, readEnvironment());
  try {
    return await dispatch(run);
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

function print(text: string): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.on('error', () => {
      resolve();
    });
    process.stdout.write(text, () => {
      resolve();
    });
  });
}

/**
 * The program: reads the command line, does the work, and returns the exit status. Prints every error itself and
 * never throws.
 */
export async function main(argv: readonly string[]): Promise<number> {
  try {
    const request = parseArguments(argv);
    switch (request.kind) {
      case 'help':
        await print((await import('./help.js')).helpText(request.topic));
        return ExitCode.ok;
      case 'version':
        await print(`${await (await import('./version.js')).versionText()}\n`);
        return ExitCode.ok;
      case 'run':
        return await runSettings(request.settings);
    }
  } catch (thrown) {
    return report(thrown);
  }
}
