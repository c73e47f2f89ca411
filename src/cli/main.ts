import { isatty } from 'node:tty';
import { ExitCode } from '../error/index.js';
import { parseArguments } from './arguments.js';
import { chooseBackend } from './backend-choice.js';
import { checkTogether, refuseUnserved } from './checks.js';
import { readEnvironment } from './environment.js';
import { openRun, reportFailure, withRun } from './open-run.js';
import type { Run } from './run.js';
import type { Settings } from './settings.js';

/** Descriptors are asked, not streams: opening stdin as a stream would start reading it. */
const stdinIsTerminal = (): boolean => isatty(0);

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
  await chooseBackend(run);
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
  return withRun(await openRun(settings, readEnvironment()), dispatch);
}

/** Prints what went wrong and returns the exit status. The launcher calls it too, for failures that nobody caught. */
export function report(thrown: unknown): number {
  return reportFailure(thrown, 'ds4');
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
