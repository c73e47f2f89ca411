// The line below an answer in a chat on a terminal.
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { endlessWords, run, temporaryFolder } from './program.js';
import type { Folder } from './program.js';
import { ProgramInTerminal } from './terminal.js';

let folder: Folder;
const open: ProgramInTerminal[] = [];
beforeAll(() => {
  folder = temporaryFolder();
});
afterEach(() => {
  for (const program of open.splice(0)) {
    program.close();
  }
});
afterAll(() => {
  folder.remove();
});

function start(
  args: readonly string[],
  options: ConstructorParameters<typeof ProgramInTerminal>[2],
): ProgramInTerminal {
  const program = new ProgramInTerminal(folder, args, options);
  open.push(program);
  return program;
}

const timing = 'ds4: prefill:';

describe('experts that are read while an answer is written', () => {
  const rate = /^[0-9.]+ % of the experts in memory$/;
  let words: string;
  beforeAll(() => {
    words = endlessWords(folder.file('words.gguf'));
  });

  const options = (): string[] => [
    ...['-m', words, '--nothink', '--seed', '5', '-c', '4000', '-n', '3000'],
    ...['--cpu', '--ssd-streaming', '--ssd-streaming-cache-experts', '4'],
  ];

  it('are counted in a line below it that leaves no trace', async () => {
    const question = 'Tell me about the lamp. What is 3 + 4?';
    const { stdout: whole } = await run(folder, [...options(), '--interactive', '-n', '500'], {
      stdin: { text: `${question}\n` },
    });
    const program = start(options(), { columns: 44, rows: 12 });
    await program.prompt();

    program.type(`${question}\r`);
    await program.shows('(100.0%)');
    const begin = program.cursor.row;
    // The terminal shows what is typed ahead where the answer stands, and nobody tells ds4.
    program.type('#');
    await program.shows('#');
    for (let row = begin; row < begin + 8; row = program.cursor.row) {
      await program.until(
        () => program.cursor.row > row && rate.test(program.lines[program.cursor.row + 1] ?? ''),
        'it showed how many experts were in memory',
      );
    }
    program.type('#');
    await program.shows('#', 2);
    program.type('\u0003');
    await program.shows(timing);
    await program.prompt();

    const shown = program.logicalLines;
    const first = shown.findIndex((line) => line.includes('(100.0%)')) + 1;
    const last = shown.findIndex((line) => line.startsWith(timing));
    const answer = shown.slice(first, last).join('\n').replaceAll('#', '');
    // At Ctrl+C the kernel throws away what the terminal has not taken yet. More may still come behind it.
    const [before = '', behind = ''] = answer.split('^C');
    expect(before.length).toBeGreaterThan(100);
    // Whichever of the two went on for longer.
    const common = Math.min(before.length, whole.trimEnd().length);
    expect(before.slice(0, common)).toBe(whole.slice(0, common));
    const rest = behind.trimEnd();
    expect(`${whole.slice(common)}${common < before.length ? rest : ''}`).toContain(rest);
    expect(shown.slice(last).join('\n')).not.toMatch(/in memory/);
  });

  it('are not, where the answer goes elsewhere', async () => {
    const program = start([...options(), '-n', '200', '--interactive'], {
      shell: 'echo hi | "$@" | cat; echo done',
    });

    await program.done;

    expect(program.text).toMatch(/experts: [0-9.]+ % of [0-9]+ lookups hit/);
    // The bar of a slow load saves the cursor, too.
    const answering = program.sent.slice(program.sent.lastIndexOf('(100.0%)'));
    expect(answering).toContain('lookups hit');
    expect(answering).not.toContain('\u001b7');
  });
});
