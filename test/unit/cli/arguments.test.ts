import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { optionTable } from '../../../src/cli/options/index.js';
import type { Settings } from '../../../src/cli/settings.js';

function settings(...argv: string[]): Settings {
  const request = parseArguments(argv);
  if (request.kind !== 'run') {
    throw new Error(`a ${request.kind} request`);
  }
  return request.settings;
}

function refusal(...argv: string[]): string {
  try {
    parseArguments(argv);
  } catch (thrown) {
    expect(thrown).toMatchObject({ exitCode: 2 });
    return (thrown as Error).message;
  }
  throw new Error('accepted');
}

describe('defaults', () => {
  it('are those of the reference', () => {
    expect(settings()).toMatchObject({
      context: undefined,
      maxTokens: 50000,
      temperature: 1,
      topP: 1,
      minP: 0.05,
      topK: 0,
      seed: undefined,
      think: 'normal',
      system: 'You are a helpful assistant',
      logprobsTopK: 20,
      backend: undefined,
      prompt: undefined,
    });
  });
});

describe('values', () => {
  it('are whatever comes next, also when it begins with a dash', () => {
    expect(settings('-p', '--nothink')).toMatchObject({
      prompt: { kind: 'text', text: '--nothink' },
      think: 'normal',
    });
  });

  it.each([
    [['-c', '4096'], { context: 4096 }],
    [['--ctx', '4096'], { context: 4096 }],
    [['-sys', 'Be short'], { system: 'Be short' }],
    [['--system', ''], { system: '' }],
    [['-m', 'a', '--model', 'b'], { model: 'b' }],
    [['--think', '--nothink'], { think: 'none' }],
    [['--nothink', '--think-max'], { think: 'max' }],
    [['--backend', 'cuda', '--cpu'], { backend: 'cpu' }],
    [['--seed', '18446744073709551615'], { seed: 18446744073709551615n }],
    [['-p', ''], { prompt: { kind: 'text', text: '' } }],
    [['-p', '-'], { prompt: { kind: 'stdin' } }],
    [['--prompt-file', '-'], { prompt: { kind: 'stdin' } }],
    [['--logprobs-top-k', '500'], { logprobsTopK: 128 }],
    [['--quality', '--warm-weights', '--no-mmap'], { exact: true, warm: true, source: 'read' }],
    [['--mmap', '--mmap'], { source: 'mmap' }],
    [['--direct-io'], { source: 'direct' }],
    [['--no-mmap', '--direct-io'], { source: 'direct' }],
    [['--direct-io', '--no-mmap'], { source: 'direct' }],
    [['--mlock', '--no-mmap'], { source: 'read', lockWeights: true }],
    [['--ssd-streaming', '--ssd-streaming-cold'], { ssdStreaming: true, ssdStreamingCold: true }],
    [['--ssd-streaming-cache-experts', '512'], { expertCache: { kind: 'experts', count: 512 } }],
    [['--ssd-streaming-cache-experts', '6GB'], { expertCache: { kind: 'gib', gib: 6 } }],
    [['--host-expert-cache', '1.5'], { hostExpertCacheGib: 1.5 }],
    [['--expert-policy', 'lfru'], { expertPolicy: 'lfru' }],
    [['--upload-buffer-mib', '16'], { uploadBufferMib: 16 }],
    [['--weight-paging'], { weightPaging: true, weightPagingSlots: undefined }],
    [['--weight-paging-slots', '3'], { weightPagingSlots: 3 }],
    [['--stats'], { stats: 'text' }],
    [['--stats', '--stats-json'], { stats: 'json' }],
    [['--expert-trace', 'f'], { expertTrace: 'f' }],
    [['--raw'], { raw: true }],
    [['--raw-prompt'], { raw: true }],
    [['-q'], { quiet: true }],
    [['--gpu-vram', '40,12'], { gpuVram: [40, 12] }],
    [['--listen', '127.0.0.1', '9000'], { listen: { host: '127.0.0.1', port: 9000 } }],
  ])('%j are read', (argv, expected) => {
    expect(settings(...argv)).toMatchObject(expected);
  });
});

describe('faults', () => {
  it.each([
    [['--frobnicate'], 'unknown option: --frobnicate'],
    [['hello'], 'unknown option: hello'],
    [[''], 'unknown option: '],
    [['--'], 'unknown option: --'],
    [['--ctx=4096'], 'unknown option: --ctx=4096'],
    [['-c4096'], 'unknown option: -c4096'],
    [['--no-quality'], 'unknown option: --no-quality'],
    [['--promp', 'hi'], 'unknown option: --promp'],
  ])('%j is an unknown option, named whole', (argv, message) => {
    expect(refusal(...argv).split('\n')[0]).toBe(message);
  });

  it.each([
    ['--tmep', '--temp'],
    ['--promtp', '--prompt'],
    ['--ctx=4096', '--ctx 4096'],
    ['--role=worker', '--role worker'],
  ])('for %s the hint offers %s', (typed, offered) => {
    expect(refusal(typed).split('\n')[1]).toContain(`did you mean ${offered}?`);
  });

  it('offers nothing for a text that is like no option', () => {
    expect(refusal('hello')).not.toContain('did you mean');
  });

  it.each([
    ['-p', 'missing value for -p'],
    ['--ctx', 'missing value for --ctx'],
    ['--role', '--role requires an argument'],
    ['--layers', '--layers requires an argument'],
    ['--dist-prefill-window', '--dist-prefill-window requires an argument'],
  ])('%s without its value', (option, message) => {
    expect(refusal(option)).toBe(message);
  });

  it('names a two-value option that has only one', () => {
    expect(refusal('--listen', '127.0.0.1')).toBe('--listen requires an argument');
  });

  it.each([
    ['-c', '8k'],
    ['--ctx', '1e6'],
    ['-n', '0'],
    ['-n', '-1'],
    ['--temp', 'nan'],
    ['--temp', '100.1'],
    ['--top-p', '1.5'],
    ['--min-p', '-0.1'],
    ['--top-k', '1025'],
    ['--seed', '0'],
    ['-t', 'x'],
    ['--prefill-chunk', '0'],
    ['--decode-consistency', '0'],
    ['--kv-tiered', '50,50'],
    ['--dist-activation-bits', '12'],
    ['--color', 'yes'],
    ['--simulate-used-memory', '64GiB'],
    ['--ctx', '4294967296'],
    ['--weight-paging-slots', '0'],
    ['--host-expert-cache', '64GB'],
    ['--expert-policy', 'LRU'],
    ['--upload-buffer-mib', '15'],
    ['--upload-buffer-mib', '4097'],
  ])('%s %s is an invalid value, under the name that was typed', (option, value) => {
    expect(refusal(option, value)).toBe(`invalid value for ${option}: ${value}`);
  });

  it('names the range of --power', () => {
    expect(refusal('--power', '0')).toMatch(/--power.*1\.\.100/);
  });

  it('names a bad port and not the host', () => {
    expect(refusal('--coordinator', '127.0.0.1', '70000')).toBe(
      'invalid value for --coordinator: 70000',
    );
  });

  it('lists the valid backends on a second line', () => {
    const [first, second] = refusal('--backend', 'CUDA').split('\n');

    expect(first).toBe('invalid backend: CUDA');
    expect(second).toMatch(/cpu.*cuda.*rocm/);
  });

  it('lists the valid roles', () => {
    expect(refusal('--role', 'boss')).toMatch(/^invalid distributed role: boss \(.*worker/);
  });

  it('reports the first fault from the left', () => {
    expect(refusal('-c', '8k', '--frobnicate')).toBe('invalid value for -c: 8k');
    expect(refusal('--frobnicate', '-c', '8k')).toMatch(/^unknown option/);
  });

  it.each([
    [['-p', 'a', '-p', 'b'], 'one prompt source'],
    [['-p', 'a', '--prompt-file', '-'], 'one prompt source'],
    [['--listen', 'a', '1', '--listen', 'a', '2'], '--listen'],
    [['--coordinator', 'a', '1', '--coordinator', 'a', '2'], '--coordinator'],
    [['--prefix-file', 'a', '--prefix-file', 'b'], '--prefix-file'],
    [['--server'], 'ds4-server'],
    [['--metal-graph-generate'], 'removed'],
    [['--gpus', '0,1,0'], 'twice'],
    [['--mmap', '--no-mmap'], '--mmap and --no-mmap contradict'],
    [['--no-mmap', '--mmap'], '--no-mmap and --mmap contradict'],
    [['--mmap', '--direct-io'], '--mmap and --direct-io contradict'],
    [['--no-mmap', '--direct-io', '--mmap'], '--direct-io and --mmap contradict'],
    [['--ssd-streaming-cache-experts', '0'], '--ssd-streaming-cache-experts must be'],
    [['--sim', 'ram=4'], '--sim needs vram'],
    [['--plan-for', 'vram=4'], '--plan-for needs vram and ram'],
  ])('%j is refused', (argv, text) => {
    expect(refusal(...argv)).toContain(text);
  });
});

describe('prompt files', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ds4-arguments-'));
  });
  afterAll(() => {
    rmSync(folder, { recursive: true });
  });

  it('are read byte for byte while the line is parsed', () => {
    const path = join(folder, 'prompt');
    const bytes = Buffer.from([0x20, 0x68, 0x00, 0xff, 0x0a]);
    writeFileSync(path, bytes);

    expect(settings('--prompt-file', path).prompt).toMatchObject({ kind: 'file', text: bytes });
  });

  it('that cannot be opened come before later faults', () => {
    expect(refusal('--prompt-file', 'missing.txt', '--frobnicate')).toMatch(
      /^failed to open prompt file: missing\.txt/,
    );
  });

  it('that are folders say so', () => {
    expect(refusal('--prompt-file', folder)).toContain('directory');
  });
});

describe('help and version', () => {
  it('act when they are reached', () => {
    expect(parseArguments(['-c', '1', '--help', '--frobnicate'])).toEqual({
      kind: 'help',
      topic: undefined,
    });
    expect(parseArguments(['--version', '-c'])).toEqual({ kind: 'version' });
    expect(refusal('-c', '8k', '--help')).toBe('invalid value for -c: 8k');
  });

  it('takes the next word as the topic, unless it begins with a dash', () => {
    expect(parseArguments(['-h', 'distributed'])).toEqual({ kind: 'help', topic: 'distributed' });
    expect(parseArguments(['-h', '-c'])).toEqual({ kind: 'help', topic: undefined });
  });

  it('refuses an unknown topic and lists the topics', () => {
    expect(refusal('--help', 'nonsense')).toMatch(/'nonsense'.*runtime.*all/);
  });
});

describe('the option table', () => {
  it('names no option twice', () => {
    const names = optionTable.flatMap((entry) => entry.names);

    expect(new Set(names).size).toBe(names.length);
  });

  it('has a sentence for every option', () => {
    expect(optionTable.filter(({ description }) => !/[.)]$/.test(description))).toEqual([]);
  });

  it('records every option that this build lacks, so that none is accepted and ignored', () => {
    const sample: Record<string, string[]> = {
      '--kv-tiered': ['25,25,50'],
      '--gpus': ['0'],
      '--layers': ['0:1'],
      '--listen': ['h', '1'],
      '--coordinator': ['h', '1'],
      '--dist-activation-bits': ['16'],
      '--ui-logo': ['ascii'],
      '--tier-eviction-policy': ['1'],
    };
    const lacking = optionTable.filter(({ lacks }) => lacks !== undefined);
    for (const { names, valueNames } of lacking) {
      const name = names.at(-1) ?? '';
      const values = sample[name] ?? valueNames.map(() => '1');

      expect(settings(name, ...values).unserved.map(({ option }) => option)).toEqual([name]);
    }
    expect(lacking.length).toBeGreaterThan(35);
  });
});

describe('the instruction for thinking at length', () => {
  const scratch = mkdtempSync(join(tmpdir(), 'ds4-effort-'));
  afterAll(() => {
    rmSync(scratch, { recursive: true });
  });

  it('is taken from a file byte for byte', () => {
    const path = join(scratch, 'effort.txt');
    writeFileSync(path, 'Think hard.\n\n');

    expect(settings('--effort-file', path).effortText).toBe('Think hard.\n\n');
  });

  it.each([
    ['missing.txt', undefined, /failed to open effort file: .*missing\.txt/],
    ['empty.txt', '', /empty\.txt is empty/],
    ['latin1.txt', Buffer.from([0xe9]), /latin1\.txt is not UTF-8/],
  ])('is refused when it is %s', (name, content, sentence) => {
    const path = join(scratch, name);
    if (content !== undefined) {
      writeFileSync(path, content);
    }

    expect(refusal('--effort-file', path)).toMatch(sentence);
  });
});
