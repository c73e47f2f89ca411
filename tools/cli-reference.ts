import { chatCommands } from '../src/cli/chat-commands.js';
import { optionTable, sections } from '../src/cli/options/index.js';
import type { OptionEntry } from '../src/cli/options/index.js';

/** Text between angle brackets and bars would be taken for markup or for a column. */
function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('<', '&lt;');
}

function optionRow({ names, valueNames, description }: OptionEntry): string {
  const term = [names.join(', '), ...valueNames].join(' ');
  return `| \`${cell(term)}\` | ${cell(description)} |`;
}

function optionTables(): string {
  return sections
    .map(({ title, topic }) =>
      [
        `### ${title}`,
        '',
        `\`ds4 --help ${topic}\``,
        '',
        '| option | what it does |',
        '| --- | --- |',
        ...optionTable.filter((entry) => entry.section === title).map(optionRow),
      ].join('\n'),
    )
    .join('\n\n');
}

function commandTable(): string {
  return [
    '| command | what it does |',
    '| --- | --- |',
    ...chatCommands.map(({ usage, description }) => `| \`${usage}\` | ${cell(description)} |`),
  ].join('\n');
}

const parts: Readonly<Record<string, () => string>> = {
  options: optionTables,
  'chat-commands': commandTable,
};

/**
 * Replaces what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` by what the program's own tables say.
 *
 * @throws Error when a page lacks a pair of markers.
 */
export function withGeneratedParts(page: string): string {
  let result = page;
  for (const [name, render] of Object.entries(parts)) {
    const [begin, end] = [`<!-- begin ${name} -->`, `<!-- end ${name} -->`];
    const from = result.indexOf(begin);
    const to = result.indexOf(end);
    if (from < 0 || to < from) {
      throw new Error(`docs/cli.md lacks ${begin} or ${end}`);
    }
    result = `${result.slice(0, from + begin.length)}\n\n${render()}\n\n${result.slice(to)}`;
  }
  return result;
}
