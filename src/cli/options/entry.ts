import { Option } from 'commander';
import { InvalidValue, UsageError } from '../errors.js';
import type { Settings } from '../settings.js';

/** Help topics, in the order in which the help lists them. */
export const topics = [
  'runtime',
  'sampling',
  'steering',
  'distributed',
  'diagnostics',
  'commands',
  'all',
] as const;
export type Topic = (typeof topics)[number];

/** The sections of the help, in the order in which `--help all` prints them. */
export const sections = [
  { title: 'Benchmark', topic: 'runtime' },
  { title: 'Model And Runtime', topic: 'runtime' },
  { title: 'Output And Help', topic: 'runtime' },
  { title: 'GPU Placement', topic: 'runtime' },
  { title: 'Expert Streaming', topic: 'runtime' },
  { title: 'KV Tiers And Weight Paging', topic: 'runtime' },
  { title: 'Draft Models', topic: 'runtime' },
  { title: 'Prompt And Sampling', topic: 'sampling' },
  { title: 'Directional Steering', topic: 'steering' },
  { title: 'Distributed Inference', topic: 'distributed' },
  { title: 'Diagnostics And Data Collection', topic: 'diagnostics' },
] as const satisfies readonly { title: string; topic: Topic }[];
export type SectionTitle = (typeof sections)[number]['title'];

/** One occurrence of an option on the command line: its name as typed and its values. */
export interface OptionUse {
  readonly name: string;
  readonly value: string;
  readonly second: string;
}

export interface OptionEntry {
  readonly option: Option;
  readonly names: readonly string[];
  readonly section: SectionTitle;
  readonly valueNames: readonly string[];
  readonly description: string;
  /** Shown on the default help page. */
  readonly basic: boolean;
  /** What this build does not have; the option is checked and then refused. */
  readonly lacks: string | undefined;
  readonly missingValue: (name: string) => string;
  readonly apply: (settings: Settings, use: OptionUse) => void;
}

export interface OptionText {
  /** Short name first, as `-c, --ctx`. */
  readonly names: string;
  /** What the help calls the values, separated by a blank. */
  readonly values?: string;
  readonly section: SectionTitle;
  readonly description: string;
  readonly basic?: boolean;
  readonly lacks?: string;
  readonly requiresArgument?: boolean;
  readonly apply?: (settings: Settings, use: OptionUse) => void;
}

/**
 * An entry of the option table around a commander Option. Commander formats the help from it; its own parser is not
 * used, because it accepts `--x=y`, bundles and abbreviations, which this command line refuses.
 */
export function entry(text: OptionText): OptionEntry {
  const names = text.names.split(', ');
  const valueNames = text.values?.split(' ') ?? [];
  const description =
    text.lacks === undefined ? text.description : `${text.description} (not in this build)`;
  const option = new Option(names.at(-1) ?? '', description).helpGroup(`${text.section}:`);
  // Set here and not by the constructor, which refuses a short name of three letters such as -sys.
  option.flags = [names.join(', '), ...valueNames].join(' ');
  option.required = valueNames.length > 0;
  return {
    option,
    names,
    section: text.section,
    valueNames,
    description,
    basic: text.basic ?? false,
    lacks: text.lacks,
    missingValue: (name) =>
      text.requiresArgument === true ? `${name} requires an argument` : `missing value for ${name}`,
    apply: (settings, use) => {
      try {
        text.apply?.(settings, use);
      } catch (thrown) {
        throw thrown instanceof InvalidValue
          ? new UsageError(`invalid value for ${use.name}: ${thrown.text}`)
          : thrown;
      }
      if (text.lacks !== undefined) {
        settings.unserved.push({ option: use.name, lacks: text.lacks });
      }
    },
  };
}

/** Checks the value of an option whose effect this build does not have. */
export function checked(parse: (text: string) => unknown): NonNullable<OptionText['apply']> {
  return (_settings, use) => {
    parse(use.value);
  };
}
