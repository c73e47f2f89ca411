import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Arena } from '../../../src/engine/abi.js';
import type { Library } from '../../../src/engine/abi.js';
import { addSnapshots, Telemetry } from '../../../src/engine/telemetry.js';
import type { TelemetrySnapshot } from '../../../src/engine/telemetry.js';

const header = readFileSync(resolve(import.meta.dirname, '../../../native/include/ds4.h'), 'utf8');

/** Number of a word in the header that native code is built with. */
function word(name: string): number {
  const found = new RegExp(`\\bDS4_WORD_${name} = (\\d+)`).exec(header)?.[1];
  if (found === undefined) {
    throw new Error(`native/include/ds4.h has no DS4_WORD_${name}`);
  }
  return Number(found);
}

const wordCount = 64;
let arena: Arena;
let snapshot: TelemetrySnapshot;

/** A library that only has telemetry, in which each word holds its own number. */
beforeEach(() => {
  arena = new Arena(8 * wordCount);
  const words = arena.take(8 * wordCount);
  for (let index = 0; index < wordCount; ++index) {
    arena.view.setBigUint64(words + 8 * index, BigInt(index), true);
  }
  const library = {
    telemetryOpen: () => 0,
    telemetryWords: () => arena.address(words),
    telemetryClose: () => undefined,
  } as unknown as Library;
  const telemetry = new Telemetry(library);
  snapshot = telemetry.read();
  telemetry.close();
});
afterEach(() => {
  arena.free();
});

const groups = ({ experts, files, pages, device, simulation }: TelemetrySnapshot) => ({
  experts,
  files,
  pages,
  device,
  simulation,
});

describe('the words of native code', () => {
  it.each([
    ['EXPERT_LOOKUPS', 'experts.lookups'],
    ['EXPERT_EVICTIONS', 'experts.evictions'],
    ['EXPERT_EVICTED_BYTES', 'experts.evictedBytes'],
    ['EXPERT_HOST_ADMISSIONS', 'experts.hostAdmissions'],
    ['EXPERT_HOST_ADMITTED_BYTES', 'experts.hostAdmittedBytes'],
    ['LAYER_LOADS', 'experts.layerLoads'],
    ['LAYER_LOAD_BYTES', 'experts.layerLoadBytes'],
    ['FILE_READ_BYTES', 'files.readBytes'],
    ['FILE_ERRORS', 'files.errors'],
    ['UPLOADS', 'files.uploads'],
    ['UPLOAD_BYTES', 'files.uploadBytes'],
    ['PIN_WAIT_NS', 'files.pinWaitNs'],
    ['PAGE_LOADS', 'pages.loads'],
    ['DEVICE_LEAST_FREE_BYTES', 'device.leastFreeBytes'],
    ['SIM_NS', 'simulation.ns'],
  ])('have DS4_WORD_%s as %s', (name, path) => {
    expect(snapshot).toHaveProperty(path, word(name));
  });

  it('are each read as one counter', () => {
    const read = Object.values(groups(snapshot)).flatMap((group) => Object.values(group));

    expect(new Set(read).size).toBe(read.length);
  });
});

describe('one snapshot of several engines', () => {
  const free = (leastFreeBytes: number): TelemetrySnapshot => ({
    ...snapshot,
    device: { leastFreeBytes },
  });
  const leastOf = (first: number, ...others: number[]): number =>
    addSnapshots([free(first), ...others.map(free)], 0).device.leastFreeBytes;

  it('has sums of counters', () => {
    const { experts, files } = addSnapshots([snapshot, snapshot, snapshot], 1);

    expect(experts.hostAdmittedBytes).toBe(3 * word('EXPERT_HOST_ADMITTED_BYTES'));
    expect(files.uploads).toBe(3 * word('UPLOADS'));
  });

  it('has the least free memory of the devices that know theirs', () => {
    expect(leastOf(7, 5, 6)).toBe(5);
    expect(leastOf(7, 0)).toBe(7);
    expect(leastOf(0, 0)).toBe(0);
  });
});
