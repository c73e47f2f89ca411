import { readdirSync, readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { text } from '../support/gguf-spec.js';
import { removeKey, setKey } from '../support/gguf-spec.js';
import { writeGguf } from '../support/gguf-writer.js';
import { tinyModel } from '../support/tiny-model.js';
import { endlessModel, model, run, temporaryFolder } from './program.js';
import type { Folder } from './program.js';

let folder: Folder;
let endless: string;
beforeAll(() => {
  folder = temporaryFolder();
  endless = endlessModel(folder.file('endless.gguf'));
});
afterAll(() => {
  folder.remove();
});

describe('--dump-tokens', () => {
  const dump = async (prompt: string, ...options: string[]): Promise<number[]> => {
    const { stdout } = await run(folder, ['-m', model, '--dump-tokens', ...options, '-p', prompt]);
    return JSON.parse(stdout.split('\n')[0] ?? '') as number[];
  };

  it('prints the ids and then each piece as the vocabulary spells it', async () => {
    const { stdout, stderr, status } = await run(folder, [
      '-m',
      model,
      '--dump-tokens',
      '-p',
      'Hi the',
    ]);

    const [list, ...lines] = stdout.trimEnd().split('\n');
    const ids = JSON.parse(list ?? '') as number[];
    expect(lines).toHaveLength(ids.length);
    expect(lines.map((line) => Number(line.slice(0, 6)))).toEqual(ids);
    expect(lines.map((line) => line.slice(8)).join('')).toBe('HiĠthe');
    expect(stderr).toBe('');
    expect(status).toBe(0);
  });

  it.each(['<｜User｜>', '<｜Assistant｜>', '<think>', '</think>', '<｜end▁of▁sentence｜>'])(
    'takes %s as text, and as a marker with --raw',
    async (marker) => {
      const plain = await dump(`${marker}x`);
      const raw = await dump(`${marker}x`, '--raw');

      expect(plain.length).toBeGreaterThan(raw.length);
      expect(Math.max(...plain)).toBeLessThan(504);
      expect(raw).toHaveLength(2);
    },
  );

  it('reads the prompt from stdin as well', async () => {
    const { stdout } = await run(folder, ['-m', model, '--dump-tokens', '-p', '-'], {
      stdin: { text: 'Hi' },
    });

    expect(JSON.parse(stdout.split('\n')[0] ?? '')).toEqual(await dump('Hi'));
  });
});

describe('--inspect', () => {
  it('prints what the model holds', async () => {
    const { stdout, stderr, status } = await run(folder, ['-m', model, '--inspect']);

    expect(stdout).toMatch(/^arch: {2}deepseek4$/m);
    expect(stdout).toMatch(/^layers: 7$/m);
    expect(stdout).toMatch(/^attention: heads=8 .*swa=32$/m);
    expect(stdout).toMatch(/^Q8_0 +93 /m);
    expect(stdout).toMatch(/^plan: +KV cache: /m);
    expect(stderr).not.toContain('prefill');
    expect(status).toBe(0);
  });

  it('prints the same as JSON with a schema version', async () => {
    const { stdout } = await run(folder, ['-m', model, '--inspect', '--json', '-c', '4096']);

    const inspected = JSON.parse(stdout) as Record<string, unknown>;
    expect(inspected).toMatchObject({
      version: 1,
      architecture: 'deepseek4',
      layers: 7,
      problems: [],
      plan: { backend: 'cpu', context: 4096 },
    });
  });

  it('shows a file that cannot run as far as it can be read, says why, and fails', async () => {
    const spec = tinyModel();
    setKey(spec, 'general.architecture', text('llama'));
    const path = folder.file('llama.gguf');
    writeGguf(spec).save(path);

    const { stdout, stderr, status } = await run(folder, ['-m', path, '--inspect']);

    expect(stdout).toMatch(/^arch: {2}llama$/m);
    expect(stderr).toContain('llama');
    expect(status).toBe(1);
  });

  it('lists every missing key at once', async () => {
    const spec = tinyModel();
    removeKey(spec, 'deepseek4.attention.head_count');
    removeKey(spec, 'deepseek4.expert_count');
    const path = folder.file('keys.gguf');
    writeGguf(spec).save(path);

    const { stderr } = await run(folder, ['-m', path, '--inspect']);

    expect(stderr).toContain('deepseek4.attention.head_count');
    expect(stderr).toContain('deepseek4.expert_count');
  });
});

interface Token {
  readonly id: number;
  readonly text: string;
  readonly bytes: number[];
}

describe('--dump-logprobs', () => {
  interface Dump {
    readonly top_k: number;
    readonly steps: readonly {
      readonly step: number;
      readonly selected: Token;
      readonly top_logprobs: readonly { token: Token; logit: number; logprob: number }[];
    }[];
  }

  it('writes each step with its best tokens in order, and nothing on stdout', async () => {
    const { stdout, status } = await run(folder, [
      '-m',
      endless,
      '--nothink',
      '-n',
      '3',
      '--dump-logprobs',
      'o.json',
      '-p',
      'hi',
    ]);

    const dump = JSON.parse(readFileSync(folder.file('o.json'), 'utf8')) as Dump;
    expect(stdout).toBe('');
    expect(status).toBe(0);
    expect(dump.steps.map(({ step }) => step)).toEqual([0, 1, 2]);
    for (const { selected, top_logprobs } of dump.steps) {
      const logprobs = top_logprobs.map(({ logprob }) => logprob);
      expect(top_logprobs).toHaveLength(20);
      expect(logprobs).toEqual([...logprobs].sort((a, b) => b - a));
      expect(selected.id).toBe(top_logprobs[0]?.token.id);
      expect(logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0)).toBeLessThanOrEqual(
        1.00001,
      );
    }
  });

  it('chooses the tokens of a greedy answer', async () => {
    const args = ['-m', endless, '--nothink', '--temp', '0', '-n', '5', '-p', 'hi'];
    await run(folder, [...args, '--dump-logprobs', 'p.json']);
    const { stdoutBytes } = await run(folder, args);

    const dump = JSON.parse(readFileSync(folder.file('p.json'), 'utf8')) as Dump;
    const bytes = dump.steps.flatMap(({ selected }) => selected.bytes);
    expect(Buffer.from(bytes)).toEqual(stdoutBytes.subarray(0, bytes.length));
  });

  it('caps --logprobs-top-k at 128', async () => {
    await run(folder, [
      '-m',
      endless,
      '--nothink',
      '-n',
      '1',
      '--logprobs-top-k',
      '500',
      '--dump-logprobs',
      'q.json',
      '-p',
      'hi',
    ]);

    const dump = JSON.parse(readFileSync(folder.file('q.json'), 'utf8')) as Dump;
    expect(dump.top_k).toBe(128);
    expect(dump.steps[0]?.top_logprobs).toHaveLength(128);
  });

  it('leaves no file when it fails, and says that a folder is missing before it loads', async () => {
    const failed = await run(folder, [
      '-m',
      'missing.gguf',
      '--dump-logprobs',
      'r.json',
      '-p',
      'hi',
    ]);
    const nowhere = await run(folder, ['-m', model, '--dump-logprobs', 'no/r.json', '-p', 'hi']);

    expect(failed.status).toBe(1);
    expect(readdirSync(folder.path).filter((name) => name.startsWith('r.json'))).toEqual([]);
    expect(nowhere.stderr).toMatch(/^ds4: cannot write no\/r\.json/);
    expect(nowhere.status).toBe(1);
  });
});

describe('--dump-logits', () => {
  it('writes all logits after the prompt', async () => {
    const { stdout, status } = await run(folder, [
      '-m',
      model,
      '--nothink',
      '--dump-logits',
      'l.json',
      '-p',
      'hi',
    ]);

    const dump = JSON.parse(readFileSync(folder.file('l.json'), 'utf8')) as {
      vocab: number;
      logits: number[];
      argmax_token: Token;
      argmax_logit: number;
      model: string;
    };
    expect(stdout).toBe('');
    expect(status).toBe(0);
    expect(dump).toMatchObject({ source: 'ds4', backend: 'cpu', model, vocab: 512, ctx: 32768 });
    expect(dump.logits).toHaveLength(512);
    expect(Math.max(...dump.logits)).toBe(dump.argmax_logit);
    expect(dump.logits[dump.argmax_token.id]).toBe(dump.argmax_logit);
  });

  it('does not depend on the prefill chunk, to the last bit', async () => {
    const prompt = 'word '.repeat(80);
    const args = ['-m', model, '--nothink', '-p', prompt];
    await run(folder, [...args, '--dump-logits', 'w.json', '--prefill-chunk', '2048']);
    await run(folder, [...args, '--dump-logits', 'c.json', '--prefill-chunk', '7']);

    const logits = (name: string): unknown =>
      (JSON.parse(readFileSync(folder.file(name), 'utf8')) as { logits: unknown }).logits;
    expect(logits('c.json')).toEqual(logits('w.json'));
  });
});

describe('--perplexity-file', () => {
  it('prints exactly one line', async () => {
    const file = folder.file(
      'text.txt',
      'The quick brown fox jumps over the lazy dog. '.repeat(10),
    );

    const { stdout, status } = await run(folder, ['-m', model, '--perplexity-file', file]);

    const match =
      /^tokens=([0-9]+) scored=([0-9]+) nll=([0-9]+\.[0-9]{9}) avg_nll=([0-9.]+) ppl=([0-9.]+)\n$/.exec(
        stdout,
      );
    const [tokens, scored, nll, average, perplexity] = (match ?? []).slice(1).map(Number);
    expect(scored).toBe((tokens ?? 0) - 32);
    expect(average).toBeCloseTo((nll ?? 0) / (scored ?? 1), 6);
    expect(Math.log(perplexity ?? 0)).toBeCloseTo(average ?? 0, 6);
    expect(status).toBe(0);
  });

  it('scores at most -n tokens', async () => {
    const file = folder.file(
      'text.txt',
      'The quick brown fox jumps over the lazy dog. '.repeat(10),
    );

    const { stdout } = await run(folder, ['-m', model, '--perplexity-file', file, '-n', '7']);

    expect(stdout).toContain(' scored=7 ');
  });

  it('refuses a text that is too short with status 1 and a missing one with 2', async () => {
    const short = await run(folder, ['-m', model, '--perplexity-file', folder.file('s.txt', 'hi')]);
    const missing = await run(folder, ['-m', model, '--perplexity-file', 'none.txt']);

    expect(short.stderr).toMatch(/more than 32/);
    expect(short.status).toBe(1);
    expect(missing.stderr).toContain('none.txt');
    expect(missing.status).toBe(2);
  });
});

describe('--decode-consistency', () => {
  it('finds the live session and a fresh one equal', async () => {
    const { stdout, stderr, status } = await run(folder, [
      '-m',
      endless,
      '--nothink',
      '--decode-consistency',
      '40',
      '-p',
      'hi',
    ]);

    expect(stdout).toBe('');
    expect(stderr).toMatch(/prompt_tokens=[0-9]+ check_after=40/);
    expect(stderr).toMatch(/prefix_tokens=[0-9]+ vocab=512 max_abs=0 at token=.* rms=0/);
    expect(stderr.match(/^ds4: decode step /gm)).toHaveLength(40);
    expect(stderr.match(/^ds4: (live|fresh) top /gm)).toHaveLength(20);
    expect(status).toBe(0);
  });
});
