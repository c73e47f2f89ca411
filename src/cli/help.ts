import { Command, Help } from 'commander';
import { chatCommands } from './chat-commands.js';
import { optionTable, sections } from './options/index.js';
import type { OptionEntry, SectionTitle, Topic } from './options/index.js';

const termColumns = 30;
const helpColumns = 100;

/** Commander's help in the layout of this program: terms in 30 columns, longer ones on a line of their own. */
export class TwoColumnHelp extends Help {
  override helpWidth = helpColumns;
  override sortOptions = false;

  override optionTerm(option: { flags: string }): string {
    return option.flags;
  }

  override padWidth(): number {
    return termColumns;
  }

  override formatItem(term: string, _termWidth: number, description: string): string {
    const indent = ' '.repeat(termColumns + 3);
    const text = this.boxWrap(description, helpColumns - indent.length).split('\n');
    if (term.length <= termColumns) {
      return `  ${term.padEnd(termColumns)} ${text.join(`\n${indent}`)}`;
    }
    const wide = this.boxWrap(description, helpColumns - 6).split('\n');
    return `  ${term}\n      ${wide.join('\n      ')}`;
  }
}

const summary = 'Runs DeepSeek-V4 models from GGUF files: answers one prompt, or chats.';

const examples: Record<Topic | 'default', readonly string[]> = {
  default: ['ds4 -p "Say hi"', 'ds4 -m model.gguf --prompt-file question.txt --nothink'],
  runtime: ['ds4 -m model.gguf -c 65536 -t 8 -p "Say hi"'],
  sampling: ['ds4 --temp 0 --nothink -n 100 -p "Say hi"', 'git diff | ds4 -p - --nothink -q'],
  steering: [],
  distributed: [],
  diagnostics: ['ds4 -m model.gguf --inspect --json', 'ds4 --dump-tokens -p "Say hi"'],
  commands: ['ds4', "printf '/nothink\\nSay hi\\n' | ds4 --interactive"],
  all: ['ds4 -p "Say hi"'],
};

function shown(entry: OptionEntry, topic: Topic | undefined): boolean {
  if (topic === undefined) {
    return entry.basic;
  }
  const section = sections.find(({ title }) => title === entry.section);
  return topic === 'all' || section?.topic === topic;
}

function inSectionOrder(entries: readonly OptionEntry[]): OptionEntry[] {
  const rank = (title: SectionTitle): number =>
    sections.findIndex((section) => section.title === title);
  return [...entries].sort((a, b) => rank(a.section) - rank(b.section));
}

function list(title: string, items: readonly (readonly [string, string])[]): string {
  const help = new TwoColumnHelp();
  return [`${title}:`, ...items.map(([term, text]) => help.formatItem(term, 0, text)), ''].join(
    '\n',
  );
}

/** The text of `--help`, of one topic or the short page. Plain, because it loads nothing but commander. */
export function helpText(topic: Topic | undefined): string {
  const program = new Command('ds4')
    .usage('[(-p PROMPT | --prompt-file FILE)] [options]')
    .helpOption(false);
  program.createHelp = () => new TwoColumnHelp();
  for (const entry of inSectionOrder(optionTable.filter((entry) => shown(entry, topic)))) {
    program.addOption(entry.option);
  }
  const parts = ['ds4', summary, '', program.helpInformation()];
  if (topic === 'commands' || topic === 'all') {
    parts.push(
      list(
        'Interactive Commands',
        chatCommands.map(({ usage, description }) => [usage, description]),
      ),
    );
  }
  if (topic === undefined) {
    parts.push(
      list('More Info', [
        ['ds4 --help runtime', 'model, memory, devices, output'],
        ['ds4 --help sampling', 'prompt, sampling and thinking'],
        ['ds4 --help steering', 'directional steering'],
        ['ds4 --help distributed', 'several machines or processes'],
        ['ds4 --help diagnostics', 'dumps, scores and tests'],
        ['ds4 --help commands', 'what a chat understands'],
        ['ds4 --help all', 'everything'],
      ]),
    );
  }
  const lines = examples[topic ?? 'default'];
  if (lines.length > 0) {
    parts.push(['Examples:', ...lines.map((line) => `  ${line}`), ''].join('\n'));
  }
  return parts.join('\n');
}
