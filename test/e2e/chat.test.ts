import { readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  endlessModel,
  lastLine,
  model,
  processedTokens,
  Program,
  run,
  temporaryFolder,
  timingLine,
} from './program.js';
import type { Folder, Outcome } from './program.js';

let folder: Folder;
let endless: string;
beforeAll(() => {
  folder = temporaryFolder();
  endless = endlessModel(folder.file('endless.gguf'));
});
afterAll(() => {
  folder.remove();
});

function chat(lines: readonly string[], ...options: string[]): Promise<Outcome> {
  return run(folder, ['-m', endless, '--interactive', '--temp', '0', '-n', '8', ...options], {
    stdin: { text: lines.map((line) => `${line}\n`).join('') },
  });
}

describe('a chat over a pipe', () => {
  it('answers line by line, without a prompt, a command list or a history', async () => {
    const { stdout, stderr, status } = await chat(['/nothink', 'Say hi', '/quit', 'never']);

    expect(stdout).toMatch(/^Thinking mode: none\.\n[^]+\n$/);
    expect(stdout).not.toContain('ds4> ');
    expect(stdout).not.toContain('Commands:');
    expect(stderr.match(/^ds4: prefill/gm)).toHaveLength(1);
    expect(readdirSync(folder.path)).not.toContain('.ds4_history');
    expect(status).toBe(0);
  });

  it('ends with status 0 at the end of its input, also of an empty one', async () => {
    expect((await chat([])).status).toBe(0);
    expect((await chat(['', '  '])).status).toBe(0);
  });

  it.each([
    ['/ctx abc', /invalid value for \/ctx: abc/],
    ['/ctx', /\/ctx needs/],
    ['/frob', /unknown command: \/frob[^]*\/help/],
    ['/helpme', /unknown command: \/helpme/],
    ['/help x', /unknown command: \/help x/],
    ['/read', /\/read needs/],
    ['/read missing.txt', /failed to open prompt file: missing\.txt/],
    ['/ctx 2147483647', /GiB.*32768 stays/],
  ])('goes on after %s', async (command, sentence) => {
    const { stdout, stderr, status } = await chat([command, '/nothink', 'hi']);

    expect(stderr).toMatch(sentence);
    expect(stdout).toContain('Thinking mode: none.');
    expect(lastLine(stderr)).toMatch(timingLine);
    expect(status).toBe(0);
  });

  it('computes only what is new in the second turn', async () => {
    const { stderr } = await chat(['/nothink', 'word '.repeat(50), 'hi']);

    const [first = 0, second = 0] = processedTokens(stderr);
    expect(first).toBeGreaterThan(50);
    expect(second).toBeLessThan(12);
  });

  it('computes only what follows the dropped thinking when it thinks', async () => {
    const long = 'word '.repeat(400);

    const { stderr } = await chat([long, 'hi'], '-n', '700', '-c', '4096');

    const [first = 0, second = 0] = processedTokens(stderr);
    expect(first).toBeGreaterThan(400);
    expect(second).toBeLessThan(20);
  });

  it('gives the second turn the answer that a fresh run would give', async () => {
    const small = await chat(['/nothink', 'one', 'two'], '--quality');
    const large = await chat(['/nothink', 'one', '/ctx 1000', 'two'], '--quality');

    const answers = (outcome: Outcome): string => outcome.stdout.replace(/^Context.*\n/m, '');
    expect(answers(large)).toBe(answers(small));
    // After /ctx everything is computed again.
    expect(processedTokens(large.stderr)[1]).toBeGreaterThan(processedTokens(small.stderr)[1] ?? 0);
  });

  it('starts over with /reset', async () => {
    const { stdout, stderr } = await chat(['/nothink', 'one', '/reset', 'one']);

    const answers = stdout.replace('Thinking mode: none.\n', '').split('Chat reset.\n');
    expect(answers[1]).toBe(answers[0]);
    expect(processedTokens(stderr)).toHaveLength(2);
  });

  it('sends a file with /read, blanks in its name included', async () => {
    folder.file('a file.txt', 'hello\nthere');

    const { stderr, status } = await chat(['/nothink', '/read a file.txt']);

    expect(processedTokens(stderr)[0]).toBeGreaterThan(20);
    expect(status).toBe(0);
  });

  it('shows its state with /status and its commands with /help', async () => {
    const { stdout } = await chat(['/nothink', 'hi', '/status', '/help'], '--seed', '5');

    expect(stdout).toMatch(/model: +.*endless\.gguf/);
    expect(stdout).toMatch(/context: +[0-9]+ of 32768 tokens used, 1 turns/);
    expect(stdout).toMatch(/seed 5/);
    expect(stdout).toContain('/think-max');
  });

  it('takes back a turn that does not fit, says so with both numbers, and goes on', async () => {
    const { stderr, status } = await chat(['/nothink', 'word '.repeat(80), 'hi'], '-c', '64');

    expect(stderr).toMatch(/prompt processing failed: the prompt has [0-9]+ tokens.*context of 64/);
    expect(stderr).toMatch(/\/ctx.*\/reset/);
    expect(lastLine(stderr)).toMatch(timingLine);
    expect(status).toBe(0);
  });

  it('has the status of its last turn', async () => {
    expect((await chat(['/nothink', 'word '.repeat(80), '/quit'], '-c', '64')).status).toBe(1);
  });

  it('says when the context is nearly full', async () => {
    const { stderr, status } = await chat(['/nothink', 'hi'], '-c', '38', '-n', '10');

    expect(stderr).toMatch(/context is 9[0-9] % full \([0-9]+ of 38 tokens\).*\/ctx.*\/reset/);
    expect(status).toBe(0);
  });

  it('ends the turn when the context is full, with what to do next', async () => {
    const { stderr, status } = await chat(['/nothink', 'hi'], '-c', '38', '-n', '500');

    expect(stderr).toMatch(/stopped because the context of 38 tokens is full; \/ctx.*\/reset/);
    expect(status).toBe(0);
  });

  it('offers what is less than thinking at length when the context is too small', async () => {
    const { stdout, stderr } = await chat(['/think-max']);

    expect(stdout).toBe('Thinking mode: high (ctx below 393216).\n');
    expect(stderr).toMatch(/393216/);
  });

  it('ends a turn at SIGINT and keeps the conversation', async () => {
    const program = new Program(
      folder,
      ['-m', endless, '--interactive', '--nothink', '--temp', '0'],
      {
        stdin: 'open',
      },
    );
    await program.says('memory:');
    program.child.stdin?.write('first\n');
    await program.until(() => program.stdout.length > 20, 'it wrote 20 bytes');
    program.kill('SIGINT');
    await program.says(/^ds4: prefill/m);
    const answered = program.stdout.length;
    program.child.stdin?.write('second\n');
    await program.until(() => program.stdout.length > answered + 20, 'it answered again');

    program.kill('SIGINT');
    await program.until(() => program.stderr.split('ds4: prefill').length > 2, 'it stopped again');
    program.child.stdin?.end();
    const { stderr, status } = await program.done;

    const [, second = Infinity] = processedTokens(stderr);
    expect(second).toBeLessThan(20);
    expect(status).toBe(0);
  });

  it('takes a turn back that is interrupted in its prompt, and keeps what was computed', async () => {
    const file = folder.file('long.txt', 'word '.repeat(1500));
    const program = new Program(
      folder,
      ['-m', endless, '--interactive', '--nothink', '-n', '4', '--prefill-chunk', '32'],
      { stdin: 'open' },
    );
    await program.says('memory:');
    program.child.stdin?.write(`/read ${file}\n`);
    await program.says(': 96/');
    program.kill('SIGINT');
    await program.says('the turn is taken back');
    program.child.stdin?.end(`/status\n/read ${file}\n`);
    const { stdout, stderr, status } = await program.done;

    const [first = 0, second = Infinity] = processedTokens(stderr);
    expect(second).toBeLessThanOrEqual(first - 96);
    expect(stdout).toContain(' 0 turns');
    expect(status).toBe(0);
  });
});

describe('a model that ends its turns', () => {
  it('is not evaluated past its end mark', async () => {
    const { stderr, status } = await run(
      folder,
      ['-m', model, '--interactive', '--nothink', '-n', '3000', '--seed', '1'],
      { stdin: { text: 'hi\nhi\nhi\n' } },
    );

    expect(stderr.match(/^ds4: prefill/gm)).toHaveLength(3);
    expect(status).toBe(0);
  });
});
