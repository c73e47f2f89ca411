import { readFileSync, statSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { writeGguf } from '../support/gguf-writer.js';
import { tinyModel } from '../support/tiny-model.js';
import { endlessModel, environment, model, temporaryFolder } from './program.js';
import type { Folder } from './program.js';
import { ProgramInTerminal } from './terminal.js';

let folder: Folder;
let home: Folder;
let endless: string;
const open: ProgramInTerminal[] = [];
beforeAll(() => {
  folder = temporaryFolder();
  endless = endlessModel(folder.file('endless.gguf'));
});
beforeEach(() => {
  home = temporaryFolder();
});
afterEach(() => {
  for (const program of open.splice(0)) {
    program.close();
  }
  home.remove();
});
afterAll(() => {
  folder.remove();
});

function start(
  args: readonly string[],
  options: ConstructorParameters<typeof ProgramInTerminal>[2] = {},
): ProgramInTerminal {
  const program = new ProgramInTerminal(folder, args, {
    ...options,
    env: { HOME: home.path, ...options.env },
  });
  open.push(program);
  return program;
}

async function startChat(
  args: readonly string[] = [],
  options: ConstructorParameters<typeof ProgramInTerminal>[2] = {},
): Promise<ProgramInTerminal> {
  const program = start(['-m', endless, '--nothink', '--temp', '0', '-n', '8', ...args], options);
  await program.prompt();
  return program;
}

const timing = 'ds4: prefill:';
const pasteOff = '\u001b[?2004l';

/** Both switch pairs must end in the off state. */
function expectTerminalGivenBack(program: ProgramInTerminal): void {
  expect(program.sent.lastIndexOf(pasteOff)).toBeGreaterThan(
    program.sent.lastIndexOf('\u001b[?2004h'),
  );
  expect(program.sent.lastIndexOf('\u001b[?25h')).toBeGreaterThanOrEqual(
    program.sent.lastIndexOf('\u001b[?25l'),
  );
}

describe('a chat in a terminal', () => {
  it('lists its commands, answers, and leaves with Ctrl+D', async () => {
    const program = await startChat();
    expect(program.text).toContain('/think-max');

    program.type('Say hi\r');
    await program.shows(timing);
    await program.prompt();
    program.type('\u0004');

    expect(await program.done).toEqual({ status: 0, signal: undefined });
    expectTerminalGivenBack(program);
  });

  it('keeps its lines in a private history and brings them back in the next chat', async () => {
    const first = await startChat();
    first.type('remember me\r');
    await first.shows(timing);
    await first.prompt();
    first.type('/quit\r');
    await first.done;
    const path = home.file('.ds4_history');
    expect(readFileSync(path, 'utf8')).toBe('remember me\n/quit\n');
    expect(statSync(path).mode & 0o777).toBe(0o600);

    const second = await startChat();
    second.type('\u001b[A\u001b[A');

    await second.shows('ds4> remember me');
  });

  it('computes only what is new in the second turn', async () => {
    const program = await startChat();
    program.type(`${'word '.repeat(30)}\r`);
    await program.shows(timing);
    await program.prompt();

    program.type('hi\r');
    await program.shows(timing, 2);

    const processed = [...program.text.matchAll(/processing ([0-9]+) input tokens/g)];
    expect(Number(processed[1]?.[1])).toBeLessThan(12);
  });

  it('draws the prefill line in place and once to 100 %', async () => {
    const program = await startChat(['--prefill-chunk', '8']);

    program.type('hi\r');
    await program.shows(timing);

    expect(program.lines.filter((line) => line.startsWith('processing '))).toHaveLength(1);
    expect(program.text).toMatch(/processing ([0-9]+) input tokens: \1\/\1 \(100\.0%\)/);
    expect(program.sent).toContain('\r\u001b[36mprocessing ');
  });

  it('ends an answer at Ctrl+C and goes on talking, with the KV cache', async () => {
    const program = await startChat(['-n', '50000']);
    program.type('first\r');
    await program.until(() => (program.sent.split('(100.0%)')[1] ?? '').length > 60, 'it answered');
    program.type('\u0003');
    await program.shows(timing);
    await program.prompt();

    program.type('second\r');
    await program.shows('processing ', 2);
    await program.until(() => (program.sent.split('(100.0%)')[2] ?? '').length > 60, 'it answered');
    program.type('\u0003');
    await program.prompt();
    program.type('\u0004');

    expect(await program.done).toEqual({ status: 0, signal: undefined });
    const processed = [...program.sent.matchAll(/processing ([0-9]+) input tokens: 0\//g)];
    expect(Number(processed[1]?.[1])).toBeLessThan(20);
  });

  it('ends a prompt at Ctrl+C, takes the turn back and shows a prompt', async () => {
    folder.file('long.txt', 'word '.repeat(20_000));
    const program = await startChat(['-c', '100000']);
    program.type('/read long.txt\r');
    await program.shows(': 512/');

    program.type('\u0003');
    await program.shows('the turn is taken back');
    await program.prompt();
    program.type('hi\r');
    await program.shows(timing, 2);
    await program.prompt();
    program.type('\u0004');

    expect((await program.done).status).toBe(0);
  });

  it('clears the line at Ctrl+C, and leaves at the second in a row', async () => {
    const program = await startChat();
    program.type('unfinished');
    await program.shows('ds4> unfinished');
    program.type('\u0003');
    await program.prompt();
    program.type('\u0003');

    expect((await program.done).status).toBe(0);
    expectTerminalGivenBack(program);
  });

  it('sends a pasted text as one turn and shows it folded', async () => {
    const program = await startChat();
    program.type('\u001b[200~one\rtwo\rthree\u001b[201~');
    await program.shows('ds4> [... 3 pasted lines ...]');

    program.type('\r');
    await program.shows(timing);
    await program.prompt();
    program.type('\u0004');
    await program.done;

    expect(program.text.split(timing)).toHaveLength(2);
    expect(readFileSync(home.file('.ds4_history'), 'utf8')).toBe('one\rtwo\rthree\n');
  });

  it('takes Ctrl+J as a line break within the message', async () => {
    const program = await startChat();
    program.type('one\ntwo');
    await program.until(() => program.lines.at(-1) === 'two', 'the second row');

    expect(program.lines.at(-2)).toBe('ds4> one');
    program.type('\r');
    await program.shows(timing);
  });

  it('edits over several rows, also with wide characters', async () => {
    const program = await startChat([], { columns: 20 });
    program.type('日本語日本語日本語x');
    await program.until(() => program.lines.at(-1) === '本語x', 'the second row');
    expect(program.lines.at(-2)).toBe('ds4> 日本語日本語日');

    program.type('\u0001[[');

    await program.until(() => program.lines.at(-1) === '日本語x', 'the rows moved on');
    expect(program.lines.at(-2)).toBe('ds4> [[日本語日本語');
    expect(program.cursor.column).toBe(7);
  });

  it('draws the line again when the terminal changes its width', async () => {
    const program = await startChat([], { columns: 40 });
    const words = 'one two three four five six seven eight';
    program.type(words);
    await program.until(() => program.lines.at(-1) === 'ight', 'two rows');

    program.resize(60, 24);

    await program.until(() => program.lines.at(-1) === `ds4> ${words}`, 'one row');
    expect(program.cursor.column).toBe(5 + words.length);
    program.resize(30, 24);
    await program.until(
      () => program.lines.slice(-2).join('') === `ds4> ${words}` && program.cursor.column === 14,
      'two rows again',
    );
  });

  it('gives the terminal back when SIGTERM ends it at the prompt', async () => {
    const program = await startChat([], {
      shell: 'before=$(stty -g); "$@"; echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same',
    });

    process.kill(Number(readFileSync(folder.file('lock'), 'utf8')), 'SIGTERM');
    await program.done;

    expect(program.text).toContain('status 143');
    expect(program.text).toMatch(/^same$/m);
    expectTerminalGivenBack(program);
  });

  it('gives the terminal back when it is killed while it answers', async () => {
    const program = await startChat(['-n', '50000', '--think'], {
      shell:
        'before=$(stty -g); "$@"; echo; echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same',
    });
    program.type('hi\r');
    await program.until(() => (program.sent.split('(100.0%)')[1] ?? '').length > 60, 'it answered');

    process.kill(Number(readFileSync(folder.file('lock'), 'utf8')), 'SIGKILL');
    await program.done;

    expect(program.text).toMatch(/^same$/m);
    expectTerminalGivenBack(program);
  });

  it('reads plain lines on a terminal that cannot move its cursor', async () => {
    const program = start(['-m', endless, '--nothink', '-n', '4'], { env: { TERM: 'dumb' } });
    await program.shows('ds4>');

    program.type('hi\r');
    await program.shows(timing);
    program.type('\u0004');

    expect((await program.done).status).toBe(0);
    expect(program.sent).not.toContain('\u001b');
  });

  it('stops with Ctrl+Z and goes on with fg', async () => {
    const program = start(['-m', endless, '--nothink', '-n', '4'], {
      shell: 'set -m; "$@"; echo "stopped $?"; fg; echo "status $?"',
    });
    await program.prompt();
    program.type('half');
    await program.shows('ds4> half');

    program.type('\u001a');
    await program.shows('stopped ');
    await program.shows('ds4> half', 2);
    program.type('\u0003\u0004');
    await program.done;

    expect(program.text).toContain('status 0');
    expectTerminalGivenBack(program);
  });
});

describe('a slow load in a terminal', () => {
  it('shows how far it is, and ends at Ctrl+C with nothing left on the screen', async () => {
    const spec = tinyModel({ weights: 'zero', dims: { experts: 64, width: 4096, embedding: 512 } });
    const path = folder.file('large.gguf');
    writeGguf(spec).save(path);
    const program = start(['-m', path, '--no-mmap', '-p', 'hi'], {
      shell: 'trap : INT; "$@"; echo "status $?"',
    });
    await program.shows('% ');
    await program.shows('MiB of 1.');

    program.type('\u0003');
    await program.done;

    expect(program.text).toMatch(/^status 130$/m);
    expect(program.text).not.toContain('MiB of 1.');
    // A kill could not undo a hidden cursor or a switched-off line wrap.
    expect(program.sent).not.toContain('\u001b[?25l');
    expect(program.sent).not.toContain('\u001b[?7l');
  });
});

describe('one answer in a terminal', () => {
  it('is grey while it thinks, and black again at its end', async () => {
    const program = start(['-m', endless, '-n', '8', '-p', 'hi']);

    await program.done;

    const answer = program.sent.slice(program.sent.indexOf('(100.0%)'));
    expect(answer).toContain('\u001b[90m');
    expect(answer.indexOf('\u001b[90m')).toBeLessThan(answer.indexOf('\u001b[0m'));
  });

  it.each([
    ['NO_COLOR', { NO_COLOR: '1' }, []],
    ['--color never', {}, ['--color', 'never']],
  ])('has no colour with %s', async (_name, env, options) => {
    const program = start(['-m', endless, '-n', '8', ...options, '-p', 'hi'], { env });

    await program.done;

    // eslint-disable-next-line no-control-regex -- colours are what is looked for
    expect(program.sent).not.toMatch(/\u001b\[[0-9;]*m/);
  });

  it('stops at Ctrl+C with status 130 and a prompt on a line of its own', async () => {
    const program = start(['-m', endless, '-p', 'hi'], {
      // The shell gets the signal too, and would end before it can tell.
      shell: 'trap : INT; "$@"; echo "status $?"',
    });
    await program.until(() => (program.sent.split('(100.0%)')[1] ?? '').length > 60, 'it answered');

    program.type('\u0003');
    await program.done;

    expect(program.text).toMatch(/^status 130$/m);
    expect(program.text).toContain(timing);
  });

  it('dies at the second Ctrl+C, whatever it is doing', async () => {
    const { bin } = await import('./program.js');
    const { spawn } = await import('node:child_process');
    // Nobody reads stdout, so the first request to stop cannot be served.
    const child = spawn(bin, ['-m', endless, '-n', '50000', '-p', 'hi'], {
      env: environment(folder, { DS4_TOKEN_TIMING: '1' }),
      cwd: folder.path,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    child.stdout.pause();
    let interrupts = 0;
    const again = (): void => {
      interrupts += 1;
      child.kill('SIGINT');
    };
    child.stderr.on('data', again);

    const [status, signal] = await new Promise<[number | null, string | null]>((settle) => {
      child.on('exit', (code, name) => {
        settle([code, name]);
      });
    });

    expect(interrupts).toBeGreaterThan(0);
    expect(signal === 'SIGINT' || status === 130).toBe(true);
  });

  it('does not read the terminal when it has a prompt', async () => {
    const program = start(['-m', model, '--nothink', '-n', '4', '-p', 'hi'], {
      shell: '"$@"; read -r line; echo "got $line"',
    });
    program.type('typed ahead\r');

    await program.done;

    expect(program.text).toContain('got typed ahead');
  });
});
