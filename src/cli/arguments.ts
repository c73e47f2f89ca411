import { UsageError } from './errors.js';
import { findOption, optionNames, topics } from './options/index.js';
import type { Topic } from './options/index.js';
import { nearestName } from './nearest-name.js';
import { defaultSettings } from './settings.js';
import type { Settings } from './settings.js';

export type Request =
  | { readonly kind: 'run'; readonly settings: Settings }
  | { readonly kind: 'help'; readonly topic: Topic | undefined }
  | { readonly kind: 'version' };

/** The line under an unknown option. */
function hint(text: string): string {
  const nearest = nearestName(text.split('=')[0] ?? text, optionNames);
  const equals = text.startsWith('--') && text.includes('=');
  const guess =
    nearest === undefined
      ? ''
      : equals
        ? `did you mean ${nearest} ${text.slice(text.indexOf('=') + 1)}? `
        : `did you mean ${nearest}? `;
  return `${guess}--help lists the options`;
}

function helpTopic(argument: string | undefined): Topic | undefined {
  if (argument === undefined || argument.startsWith('-')) {
    return undefined;
  }
  const topic = topics.find((name) => name === argument);
  if (topic === undefined) {
    throw new UsageError(`unknown help topic '${argument}'; the topics are ${topics.join(', ')}`);
  }
  return topic;
}

/**
 * Reads the command line strictly left to right; the first fault wins. Every option and every value is an argument
 * of its own, and a value may start with a dash. `--help` and `--version` act the moment they are reached.
 *
 * @throws UsageError
 */
export function parseArguments(argv: readonly string[]): Request {
  const settings = defaultSettings();
  for (let index = 0; index < argv.length; index += 1) {
    const name = argv[index] ?? '';
    const option = findOption(name);
    if (option === undefined) {
      throw new UsageError(`unknown option: ${name}\n${hint(name)}`);
    }
    if (option.names.includes('--help')) {
      return { kind: 'help', topic: helpTopic(argv[index + 1]) };
    }
    if (option.names.includes('--version')) {
      return { kind: 'version' };
    }
    const values = argv.slice(index + 1, index + 1 + option.valueNames.length);
    if (values.length < option.valueNames.length) {
      throw new UsageError(option.missingValue(name));
    }
    option.apply(settings, { name, value: values[0] ?? '', second: values[1] ?? '' });
    index += values.length;
  }
  return { kind: 'run', settings };
}
