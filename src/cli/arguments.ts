import { UsageError } from './errors.js';
import { optionTable, topics } from './options/index.js';
import type { OptionEntry, Topic } from './options/index.js';
import { nearestName } from './nearest-name.js';
import { defaultSettings } from './settings.js';
import type { Settings } from './settings.js';

export type Request =
  | { readonly kind: 'run'; readonly settings: Settings }
  | { readonly kind: 'help'; readonly topic: Topic | undefined }
  | { readonly kind: 'version' };

/** The line under an unknown option. */
function hint(text: string, names: readonly string[]): string {
  const nearest = nearestName(text.split('=')[0] ?? text, names);
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

/** What a command line asks for, besides what its options did to the settings. */
export type Asked =
  | { readonly kind: 'run' }
  | { readonly kind: 'help'; readonly argument: string | undefined }
  | { readonly kind: 'version' };

/**
 * Reads a command line strictly left to right; the first fault wins. Every option and every value is an argument
 * of its own, and a value may start with a dash. `--help` and `--version` act the moment they are reached.
 *
 * @throws UsageError
 */
export function readOptions(
  argv: readonly string[],
  table: readonly OptionEntry[],
  settings: Settings,
): Asked {
  const byName = new Map(table.flatMap((entry) => entry.names.map((name) => [name, entry])));
  for (let index = 0; index < argv.length; index += 1) {
    const name = argv[index] ?? '';
    const option = byName.get(name);
    if (option === undefined) {
      throw new UsageError(`unknown option: ${name}\n${hint(name, [...byName.keys()])}`);
    }
    if (option.names.includes('--help')) {
      return { kind: 'help', argument: argv[index + 1] };
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
  return { kind: 'run' };
}

/** The command line of `ds4`. Throws UsageError. */
export function parseArguments(argv: readonly string[]): Request {
  const settings = defaultSettings();
  const asked = readOptions(argv, optionTable, settings);
  switch (asked.kind) {
    case 'help':
      return { kind: 'help', topic: helpTopic(asked.argument) };
    case 'version':
      return { kind: 'version' };
    case 'run':
      return { kind: 'run', settings };
  }
}
