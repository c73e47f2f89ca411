import { Chalk } from 'chalk';
import type { Environment } from './environment.js';
import type { ColorChoice } from './settings.js';

/** Whether a stream gets colours. Decided here and nowhere else: chalk does not know NO_COLOR. */
export function colored(
  choice: ColorChoice,
  environment: Pick<Environment, 'noColor' | 'forceColor' | 'terminal'>,
  isTerminal: boolean,
): boolean {
  if (choice !== 'auto') {
    return choice === 'always';
  }
  if (environment.noColor) {
    return false;
  }
  if (environment.forceColor) {
    return true;
  }
  return isTerminal && environment.terminal !== 'dumb';
}

/** Colours of stderr by meaning, and the marks around thinking text on stdout. */
export interface Style {
  /** stderr has colours. */
  readonly isColored: boolean;
  readonly error: (text: string) => string;
  readonly warning: (text: string) => string;
  readonly progress: (text: string) => string;
  readonly memory: (text: string) => string;
  /** Written before and after a stretch of thinking text that arrives in pieces. */
  readonly thinkingOn: string;
  readonly thinkingOff: string;
}

export function createStyle(streams: {
  readonly stdout: boolean;
  readonly stderr: boolean;
}): Style {
  const stderr = new Chalk({ level: streams.stderr ? 2 : 0 });
  return {
    isColored: streams.stderr,
    error: (text) => stderr.red(text),
    warning: (text) => stderr.ansi256(208)(text),
    progress: (text) => stderr.cyan(text),
    memory: (text) => stderr.green(text),
    thinkingOn: streams.stdout ? '\u001b[90m' : '',
    thinkingOff: streams.stdout ? '\u001b[0m' : '',
  };
}
