// The real program on a simulated GPU on which something fails, in every memory mode: it gives the right answer, or says in one
// sentence what was not to be had.
import { mkdirSync, readdirSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { run, temporaryFolder } from '../e2e/program.js';
import type { Outcome } from '../e2e/program.js';
import { sum } from '../support/probes.js';
import { parseStats } from '../support/stats-line.js';

const probe = sum(47, 38);

interface Mode {
  readonly name: string;
  readonly sim: string;
  readonly options: string;
}

const modes: readonly Mode[] = [
  { name: 'resident', sim: 'vram=24', options: '' },
  { name: 'resident in shared memory', sim: 'vram=24,kind=integrated', options: '' },
  { name: 'experts over the bus and in slots', sim: 'vram=2.6', options: '' },
  { name: 'experts in pinned copies', sim: 'vram=24', options: '--no-gpu-resident --no-mmap' },
  {
    name: 'streaming',
    sim: 'vram=24',
    options: '--ssd-streaming --ssd-streaming-cache-experts 6 --host-expert-cache 0',
  },
  {
    name: 'streaming into shared memory',
    sim: 'vram=24,kind=integrated',
    options: '--ssd-streaming --ssd-streaming-cache-experts 6',
  },
  {
    name: 'streaming with a tier in main memory',
    sim: 'vram=24',
    options: '--ssd-streaming --ssd-streaming-cache-experts 12 --host-expert-cache 0.002',
  },
  { name: 'paging', sim: 'vram=24', options: '--weight-paging --weight-paging-slots 2' },
];

interface Run extends Outcome {
  /** In its folder for temporary files. */
  readonly left: readonly string[];
}

async function ask({ sim, options }: Mode, failure = ''): Promise<Run> {
  const folder = temporaryFolder();
  try {
    const temporary = folder.file('tmp');
    mkdirSync(temporary);
    const described = ['--sim', `${sim},ram=64${failure}`, ...options.split(' ').filter(Boolean)];
    const asked = ['-c', '512', '--nothink', '--temp', '0', '-p', probe.prompt, '--stats-json'];
    const outcome = await run(folder, [...described, ...asked], { env: { TMPDIR: temporary } });
    return { ...outcome, left: readdirSync(temporary) };
  } finally {
    folder.remove();
  }
}

/** Runs work on every item, two at a time. */
async function inPairs<Item>(
  items: readonly Item[],
  work: (item: Item) => Promise<void>,
): Promise<void> {
  const rest = [...items];
  const worker = async (): Promise<void> => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) {
      await work(item);
    }
  };
  await Promise.all([worker(), worker()]);
}

/** At the start and in the middle of a load; once, a few times, and from then on. */
const atLoad = [
  ...['allocate:1', 'allocate:3:0', 'pin:1:0', 'map:1:0', 'send:2', 'wait:2:0'],
  ...['read:2:0', 'read:7', 'short:1:0', 'memory-info:1:0', 'lost:3'],
];
/** While the answer is written: parts of all calls together. Each sort is a part of them, so that some are never reached. */
const later = [
  ...[['copy', 0.1, ''] as const, ['copy', 0.3, ':0'] as const],
  ...[['send', 0.1, ':0'] as const, ['send', 0.2, ''] as const],
  ...[['wait', 0.1, ''] as const, ['wait', 0.3, ':0'] as const],
  ...[['read', 0.1, ':0'] as const, ['read', 0.2, ''] as const],
  ...[['lost', 0.3, ''] as const, ['lost', 0.5, ''] as const],
];

describe.each(modes)('$name', (mode) => {
  it('answers rightly, or ends with one sentence and status 1, whatever fails', async () => {
    const whole = await ask(mode);
    expect(whole).toMatchObject({ stdout: `${probe.answer}\n`, status: 0 });
    const calls = Number(parseStats(whole.stderr).simulation?.['calls']);
    expect(calls).toBeGreaterThan(100);
    const faults = [
      ...atLoad,
      ...later.map(([call, part, more]) => `${call}:${Math.ceil(part * calls)}${more}`),
    ];
    const ends = { right: 0, failed: 0 };

    await inPairs(faults, async (fault) => {
      const { stdout, stderr, status, signal, left } = await ask(mode, `,fail=${fault}`);

      const where = `${fault}: ${stdout}${stderr}`;
      expect(signal, where).toBeNull();
      expect(left, where).toEqual([]);
      expect(stderr, where).not.toMatch(/^ +at |Error:|undefined|NaN/m);
      if (status === 0) {
        ends.right += 1;
        expect(stdout, where).toBe(`${probe.answer}\n`);
      } else {
        ends.failed += 1;
        expect(status, where).toBe(1);
        expect(probe.answer.startsWith(stdout.trimEnd()), where).toBe(true);
        expect(stderr.trimEnd().split('\n').at(-1), where).toMatch(/^ds4: .{20,}$/);
      }
    });
    expect(ends.right).toBeGreaterThan(2);
    expect(ends.failed).toBeGreaterThan(2);
  });
});
