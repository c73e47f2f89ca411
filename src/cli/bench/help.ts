import { Command } from 'commander';
import { TwoColumnHelp } from '../help.js';
import type { OptionEntry } from '../options/index.js';

const summary = [
  'Measures speed at growing contexts: evaluates a text up to each frontier, generates greedily from there, goes back,',
  'and goes on. Rows come as CSV on stdout; everything else is on stderr.',
];
const example =
  'ds4-bench -m model.gguf --prompt-file long.txt --ctx-start 4096 --ctx-max 8192 --step-incr 4096';

/** The text of `ds4-bench --help`: its own options first. */
export function benchHelp(table: readonly OptionEntry[]): string {
  const program = new Command('ds4-bench')
    .usage('(--prompt-file | --chat-prompt-file) FILE [options]')
    .helpOption(false);
  program.createHelp = () => new TwoColumnHelp();
  for (const { option, basic } of table) {
    if (basic) {
      program.addOption(option);
    }
  }
  return [
    'ds4-bench',
    ...summary,
    '',
    program.helpInformation(),
    'Every option of ds4 about the model, devices and memory is known here too: ds4 --help runtime.',
    '',
    'Example:',
    `  ${example}`,
    '',
  ].join('\n');
}
