import { describe, expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { checkTogether, refuseUnserved, withoutEffect } from '../../../src/cli/checks.js';
import type { Settings } from '../../../src/cli/settings.js';

function settings(line: string): Settings {
  const request = parseArguments(line.split(' ').filter((word) => word !== ''));
  if (request.kind !== 'run') {
    throw new Error(request.kind);
  }
  return request.settings;
}

function failure(work: () => unknown): { message: string; exitCode: number } {
  try {
    work();
  } catch (thrown) {
    return thrown as Error & { exitCode: number };
  }
  throw new Error('accepted');
}

const worker = '--role worker --coordinator 127.0.0.1 9000';

describe('options together', () => {
  it.each([
    ['--imatrix-dataset d', '--imatrix-out'],
    ['--imatrix-out o', '--imatrix-dataset'],
    ['--perplexity-file f -p hi', '--perplexity-file'],
    ['--prefix-file f --raw -p hi', '--prefix-file'],
    ['--prefix-file f --dump-tokens -p hi', '--dump-tokens'],
    ['--inspect --dump-tokens -p hi', 'exclude'],
    ['--dump-logits a --dump-logprobs b -p hi', 'exclude'],
    ['--dump-tokens', '-p or --prompt-file'],
    ['--dump-logits f', '-p or --prompt-file'],
    ['--dump-logprobs f', '-p or --prompt-file'],
    ['--decode-consistency 4', '-p or --prompt-file'],
    ['--json', '--inspect'],
    ['--json --dump-tokens -p hi', '--inspect'],
    ['--interactive -p hi', '--interactive'],
    ['--interactive --inspect', '--interactive'],
    ['--layers 0:20', '--layers needs a role'],
    ['--listen h 1', '--listen needs a role'],
    ['--coordinator h 1', '--coordinator needs a role'],
    ['--dist-prefill-window 2', '--dist-prefill-window needs a role'],
    ['--role none --layers 0:20', '--layers needs a role'],
    [worker, '--role worker requires --layers'],
    ['--role coordinator --listen h 1', '--role coordinator requires --layers'],
    ['--role coordinator --layers 0:20', 'requires --listen HOST PORT'],
    ['--role coordinator --layers 0:20 --listen h 1 --coordinator h 2', '--coordinator'],
    ['--role coordinator --layers 1:20 --listen h 1', 'must start at layer 0'],
    ['--role worker --layers 0:20', 'requires --coordinator'],
    [`${worker} --layers 1:2 --dist-prefill-chunk 4`, '--dist-prefill-chunk'],
    [`${worker} --layers 1:2 --dist-replay-check`, '--dist-replay-check'],
    ['--dist-replay-check', '--dist-replay-check'],
    ['--gpu-resident --ssd-streaming', '--gpu-resident and --ssd-streaming'],
    ['--gpu-resident --weight-paging', '--gpu-resident and --weight-paging'],
    [
      '--gpu-resident --ssd-streaming --ssd-streaming-cache-experts 300',
      'or 300 of its experts (--ssd-streaming-cache-experts)',
    ],
    [
      '--gpu-resident --ssd-streaming --ssd-streaming-cache-experts 12GB',
      'or 12 GiB of its experts',
    ],
    [
      '--weight-paging-slots 5 --weight-paging --gpu-resident',
      'or 5 of its layers at a time (--weight-paging-slots)',
    ],
    ['--sim vram=4 --backend cuda', '--sim and --backend cuda'],
    ['--cpu --sim vram=4', '--sim and --backend cpu'],
    ['--sim vram=4 --gpu-vram 0', '--sim and --gpu-vram 0'],
    ['--sim vram=4 --gpu-devices 1', '--sim and --gpu-devices 1'],
    ['--sim vram=4 --gpu-vram 2,2', '--sim and --gpu-vram 2,2'],
    ['--sim devices=2,vram=4 --gpu-devices 0,2', 'has the devices 0..1'],
    ['--sim devices=2,vram=4 --gpu-vram 2,2,2', 'has 2 GPUs'],
    ['--plan-for vram=4,ram=8', '--plan-for goes with --inspect'],
    ['--plan-for vram=4,ram=8 --dump-tokens -p hi', '--plan-for goes with --inspect'],
    ['--inspect --plan-for vram=4,ram=8 --gpu-devices 0', '--plan-for and --gpu-devices 0'],
    ['--inspect --plan-for vram=4,ram=8 --sim vram=4', '--sim and --plan-for'],
    ['--inspect --stats', '--stats goes with'],
    ['--dump-logits f -p hi --stats-json', '--stats-json goes with'],
    ['--dump-tokens -p hi --expert-trace f', '--expert-trace goes with'],
    ['--dump-logits f -p hi --expert-profile p', '--expert-profile goes with'],
    ['--ssd-streaming --ssd-streaming-preload-experts 4', 'needs --expert-profile FILE'],
    ['--gpu-vram 0 --gpu-devices 0', 'conflict'],
    ['--gpu-devices 1,0,1', '--gpu-devices: device 1 is named twice'],
    [
      '--gpu-vram 40,12 --gpu-devices 0',
      '--gpu-devices count (1) does not match --gpu-vram count (2)',
    ],
  ])('%s is a usage error about %s', (line, text) => {
    const { message, exitCode } = failure(() => {
      checkTogether(settings(line));
    });

    expect(message).toContain(text);
    expect(exitCode).toBe(2);
  });

  it.each([
    '',
    '-p hi',
    '--interactive',
    '--inspect --json',
    '--dump-logits a --dump-logits b -p hi',
    '--perplexity-file f',
    '--role none',
    `${worker} --layers 1:output`,
    '--role coordinator --layers 0:20 --listen h 1 --dist-prefill-chunk 8 --dist-replay-check',
    '--gpu-vram 40,12 --gpu-devices 0,1',
    '--imatrix-dataset d --imatrix-out o',
    '--no-gpu-resident --ssd-streaming --weight-paging',
    '--sim vram=4 --backend sim --gpu-devices 0 --gpu-vram 2',
    '--sim devices=2,vram=4 --gpu-devices 1,0 --gpu-vram 2,3',
    '--inspect --plan-for vram=4,ram=8 --gpu-vram 2',
    '--perplexity-file f --stats --expert-trace t',
    '-p hi --stats-json --expert-trace t',
    '--ssd-streaming-cold',
    '--ssd-streaming --expert-profile f --ssd-streaming-preload-experts 9',
    '--perplexity-file f --expert-profile p',
  ])('%j is consistent', (line) => {
    expect(() => {
      checkTogether(settings(line));
    }).not.toThrow();
  });
});

describe('what this build lacks', () => {
  it.each([
    ['--ssd-streaming-full-layers 4', 'layers that stay whole'],
    ['--kv-warm-device -1', 'KV tiers'],
    ['--mtp draft.gguf', 'draft models'],
    [`${worker} --layers 0:1`, 'distributed inference'],
    ['--power 50', 'duty cycle'],
    ['--vision v.gguf', 'image'],
    ['--dir-steering-file f', 'steering'],
    ['--head-test', 'self-test'],
  ])('%s is refused with status 1, by name', (line, text) => {
    const { message, exitCode } = failure(() => {
      refuseUnserved(settings(line));
    });

    expect(message).toContain(text);
    expect(message).toMatch(/^--/);
    expect(exitCode).toBe(1);
  });

  it('names the first of several', () => {
    const { message } = failure(() => {
      refuseUnserved(settings('--vision f --mtp g'));
    });

    expect(message).toMatch(/^--vision /);
  });

  it('says first that a steering strength has no file', () => {
    const { message, exitCode } = failure(() => {
      refuseUnserved(settings('--dir-steering-attn 2'));
    });

    expect(message).toBe('--dir-steering-attn needs --dir-steering-file');
    expect(exitCode).toBe(1);
  });

  it('lets full power through, which is what runs anyway', () => {
    expect(() => {
      refuseUnserved(settings('--power 100'));
    }).not.toThrow();
  });
});

describe('memory options without effect', () => {
  it.each([
    ['--ssd-streaming-cache-experts 8', 'cuda', /^--ssd-streaming-cache-experts .*without --ssd-/],
    ['--host-expert-cache 1', 'rocm', /^--host-expert-cache .*without --ssd-streaming/],
    ['--host-expert-cache 1 --ssd-streaming', 'cpu', /^--host-expert-cache .*cpu backend/],
    ['--expert-policy lfru', 'cpu', /^--expert-policy .*without --ssd-streaming/],
    ['--upload-buffer-mib 32', 'cpu', /^--upload-buffer-mib .*cpu/],
    ['--weight-paging-slots 4', 'cuda', /^--weight-paging-slots .*without --weight-paging/],
  ])('%s on %s get one sentence', (line, backend, sentence) => {
    const found = withoutEffect(settings(line), backend);

    expect(found).toHaveLength(1);
    expect(found[0]).toMatch(sentence);
  });

  it.each([
    ['--ssd-streaming --ssd-streaming-cache-experts 8 --expert-policy lru', 'cpu'],
    ['--ssd-streaming --host-expert-cache 1 --upload-buffer-mib 32', 'sim'],
    ['--expert-policy lfru --weight-paging --weight-paging-slots 2', 'cuda'],
    ['--ssd-streaming-cold', 'cpu'],
  ])('%s on %s get none', (line, backend) => {
    expect(withoutEffect(settings(line), backend)).toEqual([]);
  });
});
