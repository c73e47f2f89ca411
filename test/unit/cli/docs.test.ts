import { readFileSync } from 'node:fs';
import { format, resolveConfig } from 'prettier';
import { expect, it } from 'vitest';
import { withGeneratedParts } from '../../../tools/cli-reference.js';
import { optionTable } from '../../../src/cli/options/index.js';

const path = 'docs/cli.md';
const page = readFileSync(path, 'utf8');

it('docs/cli.md holds what make docs would write now', async () => {
  const options = { ...(await resolveConfig(path)), parser: 'markdown' };

  expect(page).toBe(await format(withGeneratedParts(page), options));
});

it('docs/cli.md names every option', () => {
  for (const { names } of optionTable) {
    for (const name of names) {
      expect(page).toContain(name);
    }
  }
});

it('docs/cli.md names every environment variable that the program reads', () => {
  const source = readFileSync('src/cli/environment.ts', 'utf8');
  const variables = [...source.matchAll(/'((?:DS4_[A-Z0-9_]+)|NO_COLOR|FORCE_COLOR|HOME|TERM)'/g)];

  expect(variables.length).toBeGreaterThan(15);
  for (const [, variable = ''] of variables) {
    expect(page).toContain(variable);
  }
});

/** The cells of each row of the tables about variables, the headings and the lines below them left out. */
function variableRows(): string[][] {
  const [, chapter = ''] = page.split('\n## Environment\n');
  const [text = ''] = chapter.split('\n## ');
  return text
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .map((line) => line.split(' | ').map((cell) => cell.replaceAll(/^\| | \|$/g, '').trim()));
}

it('docs/cli.md has for every environment variable the option that says the same, or the reason why there is none', () => {
  const names = new Set(optionTable.flatMap((entry) => entry.names));
  const rows = variableRows();

  expect(rows.length).toBeGreaterThan(25);
  for (const [variable = '', , option = '', effect = ''] of rows) {
    const options = [...option.matchAll(/--[a-z-]+/g)].map(([name]) => name);
    const isReason = /^none: .{10}/.test(option) || option === 'as above';
    expect(options.length > 0 || isReason, `${variable} has '${option}'`).toBe(true);
    expect(
      options.filter((name) => !names.has(name)),
      variable,
    ).toEqual([]);
    expect(effect, variable).not.toBe('');
  }
});

it('fails when a page has lost its markers', () => {
  expect(() => withGeneratedParts('nothing here')).toThrow(/begin options/);
});
