// --check-tensors through the real program: bytes that came wrong are found, and so are files that hold no numbers.
import { resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { openGguf } from '../../src/gguf/index.js';
import { patchedModel, run, temporaryFolder } from '../e2e/program.js';
import type { Folder, Outcome } from '../e2e/program.js';
import { sum } from '../support/probes.js';

const small = resolve('models/ds4-small.gguf');
const probe = sum(12, 30);
const streaming = '--ssd-streaming --ssd-streaming-cache-experts 2 --host-expert-cache 0';
const pages = '--weight-paging --weight-paging-slots 2';

let folder: Folder;
beforeEach(() => {
  folder = temporaryFolder();
});
afterEach(() => {
  folder.remove();
});

function ask(options: string, model = small): Promise<Outcome> {
  const asked = ['-c', '512', '--nothink', '--temp', '0', '-p', probe.prompt];
  return run(folder, ['-m', model, ...options.split(' '), ...asked]);
}

/** Somewhere within a tensor's bytes in the file. */
function placeIn(name: string): number {
  const tensor = openGguf(small).tensors.find((each) => each.name === name);
  return (tensor?.offset ?? NaN) + Math.floor((tensor?.bytes ?? NaN) * 0.7) + 1;
}

const shared = 'blk.2.attn_q_b.weight';
const experts = 'blk.2.ffn_up_exps.weight';

describe('a byte that comes wrong from the drive', () => {
  it.each([
    ['of a resident model', '', shared, shared],
    ['of the experts of a resident model', '', experts, experts],
    ['of a model in shared memory', ',kind=integrated --no-mmap', shared, shared],
    ['of experts in pinned memory', ' --no-gpu-resident --no-mmap', experts, experts],
    ['of weights beside streamed experts', ` ${streaming}`, shared, shared],
  ])('%s is found while it is loaded, and read again', async (_, options, name, named) => {
    const at = placeIn(name);
    const sim = `--sim vram=24,ram=64,fail=wrong-at:${at}${options}`;

    const checked = await ask(`--check-tensors ${sim}`);
    const trusted = await ask(sim);

    expect(checked.stderr).toContain(`tensor ${named} differs in memory for simulated `);
    expect(checked.stderr).toContain(`${small} at byte ${at} of the file`);
    expect(checked).toMatchObject({ stdout: `${probe.answer}\n`, status: 0 });
    expect(trusted.stderr).not.toContain('differs');
  });

  it.each([
    ['an expert that is streamed', streaming, experts],
    // Of the first layer, which nobody has read ahead: that would be read again.
    ['a page', pages, 'blk.0.attn_output_a.weight'],
  ])('of %s is found before it is used', async (_, options, name) => {
    const at = placeIn(name);

    const { stdout, stderr, status, signal } = await ask(
      // The first read of it looks for values that are no numbers.
      `--check-tensors --sim vram=24,ram=64,fail=wrong-at:${at}:2 ${options}`,
    );

    expect(stderr.trimEnd().split('\n').at(-1)).toBe(
      `ds4: a copy of weights differs in memory for simulated discrete GPU from ${small} at byte ${at} of the file`,
    );
    expect({ stdout: stdout.trim(), status, signal }).toEqual({
      stdout: '',
      status: 1,
      signal: null,
    });
  });
});

describe('a file with values that are no numbers', () => {
  it.each([
    ['', shared],
    [` ${streaming}`, experts],
    [` ${pages}`, shared],
    [' --no-gpu-resident', experts],
    [',kind=integrated', 'output_norm.weight'],
  ])('is refused with tensor and offset before it is used: %s', async (options, name) => {
    const path = patchedModel(
      folder.file('damaged.gguf'),
      name,
      (bytes) => {
        bytes.fill(0xff, bytes.length - 300);
      },
      small,
    );

    const { stdout, stderr, status } = await ask(
      `--check-tensors --sim vram=24,ram=64${options}`,
      path,
    );

    const said = stderr.trimEnd().split('\n').at(-1) ?? '';
    expect(said).toMatch(
      /^ds4: tensor .* has values that are no numbers, the first at byte [0-9]+ of the file: it is damaged; get it again$/,
    );
    expect(said).toContain(`tensor ${name} of ${path} has`);
    const { offset = NaN, bytes = NaN } =
      openGguf(path).tensors.find((each) => each.name === name) ?? {};
    const at = Number(/at byte ([0-9]+)/.exec(said)?.[1]);
    expect(at).toBeGreaterThanOrEqual(offset + bytes - 300 - 256);
    expect(at).toBeLessThan(offset + bytes);
    expect({ stdout, status }).toEqual({ stdout: '', status: 1 });
  });
});
