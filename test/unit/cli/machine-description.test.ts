import { describe, expect, it } from 'vitest';
import {
  plannedMachine,
  simulatedCallNames,
  simulatedMachine,
} from '../../../src/cli/machine-description.js';
import { simulatedCalls } from '../../../src/engine/index.js';

const sim = (text: string) => simulatedMachine('--sim', text);
const planFor = (text: string) => plannedMachine('--plan-for', text);

describe('a simulated machine', () => {
  it('needs only its memory; the rest is that of a usual one', () => {
    expect(sim('vram=24')).toEqual({
      kind: 'discrete',
      devices: 1,
      vramBytes: 24 * 2 ** 30,
      usedBytes: 0,
      ramBytes: undefined,
      linkBytesPerSecond: 25e9,
      mappedBytesPerSecond: 12e9,
      diskBytesPerSecond: 5e9,
      linkNs: 10_000,
      diskNs: 80_000,
    });
  });

  it('is read key by key', () => {
    const text =
      'kind=integrated,devices=2,vram=0.5,used=.25,ram=64,link=50,mapped=1.7,disk=7.5,link-us=2.5,disk-us=0,slow-ms=1.5,fail=allocate:3';

    expect(sim(text)).toEqual({
      kind: 'integrated',
      devices: 2,
      vramBytes: 2 ** 29,
      usedBytes: 2 ** 28,
      ramBytes: 64 * 2 ** 30,
      linkBytesPerSecond: 50e9,
      mappedBytesPerSecond: 1.7e9,
      diskBytesPerSecond: 7.5e9,
      linkNs: 2500,
      diskNs: 0,
      readWaitUs: 1500,
      failure: { call: 'allocate', at: 3, count: 1 },
    });
  });

  it.each([
    ['read:2:4', { call: 'read', at: 2, count: 4 }],
    ['memory-info:1:0', { call: 'memory-info', at: 1, count: 0 }],
    ['short:7', { call: 'short', at: 7, count: 1 }],
    ['read-at:0:0', { call: 'read-at', at: 0, count: 0 }],
    ['wrong-at:4096', { call: 'wrong-at', at: 4096, count: 1 }],
    ['lost:5', { call: 'lost', at: 5, count: 0 }],
  ])('fails as fail=%s says', (text, failure) => {
    expect(sim(`vram=1,fail=${text}`).failure).toEqual(failure);
  });

  it('knows the calls that the library knows', () => {
    expect(['none', ...simulatedCallNames]).toEqual([...simulatedCalls]);
  });

  it.each([
    ['', "unknown key ''"],
    ['vrma=4', "unknown key 'vrma'; the keys are vram, used, ram, kind"],
    ['vram', 'vram has no value; it takes GiB'],
    ['vram=', 'vram has no value'],
    ['vram=4,', "unknown key ''"],
    ['vram=4,vram=4', 'vram is given twice'],
    ['vram=4G', 'invalid value of vram: 4G'],
    ['vram=-4', 'invalid value of vram: -4'],
    ['vram=4,kind=simulated', 'discrete or integrated'],
    ['vram=4,link=0', 'invalid value of link: 0; it takes GB/s'],
    ['vram=4,disk-us=1e3', 'microseconds'],
    ['vram=4,devices=0', 'devices: 0; it takes a number from 1 to 16'],
    ['vram=4,devices=17', 'devices: 17; it takes'],
    ['vram=4,fail=allocate', 'CALL:N'],
    ['vram=4,fail=allocate:0', 'CALL:N'],
    ['vram=4,fail=none:1', 'one of allocate, copy, pin'],
    ['vram=4,fail=read:1:2:3', 'CALL:N'],
    ['vram=4,fail=lost:1:2', 'CALL:N'],
    ['vram=4,fail=short:0', 'CALL:N'],
    ['vram=4,fail=read-at:x', 'CALL:N'],
    ['vram=4,slow-ms=60001', 'milliseconds up to 60000'],
    ['vram=4,toString=1', "unknown key 'toString'"],
    ['ram=4', '--sim needs vram'],
    ['vram=0', '--sim needs vram'],
    ['vram=4,used=5', 'used (5 GiB) is more than vram (4 GiB)'],
  ])('%j is refused: %s', (text, sentence) => {
    expect(() => sim(text)).toThrow(sentence);
    expect(() => sim(text)).toThrow(expect.objectContaining({ exitCode: 2 }) as Error);
  });
});

describe('a machine to plan for', () => {
  it('has two kinds of memory', () => {
    expect(planFor('vram=24,ram=64')).toEqual({
      kind: 'discrete',
      vramBytes: [24 * 2 ** 30],
      ramBytes: 64 * 2 ** 30,
    });
    expect(planFor('kind=integrated,ram=1.5,vram=0')).toEqual({
      kind: 'integrated',
      vramBytes: [],
      ramBytes: 1.5 * 2 ** 30,
    });
  });

  it('may have several GPUs', () => {
    expect(planFor('vram=20+0.5+24,ram=64').vramBytes).toEqual(
      [20, 0.5, 24].map((vram) => vram * 2 ** 30),
    );
    expect(planFor(`vram=${Array(16).fill('1').join('+')},ram=64`).vramBytes).toHaveLength(16);
  });

  it.each([
    ['vram=24', 'needs vram and ram'],
    ['ram=24', 'needs vram and ram'],
    [
      'vram=20+,ram=64',
      'invalid value of vram: 20+; it takes GiB, such as 24 or, of two GPUs, 20+20',
    ],
    ['vram=20+0,ram=64', 'invalid value of vram: 20+0'],
    ['vram=0+0,ram=64', 'invalid value of vram: 0+0'],
    [`vram=${Array(17).fill('1').join('+')},ram=64`, 'at most 16 of them'],
    ['vram=24,ram=64,link=25', "unknown key 'link'; the keys are vram, ram, kind"],
  ])('%j is refused', (text, sentence) => {
    expect(() => planFor(text)).toThrow(`--plan-for`);
    expect(() => planFor(text)).toThrow(sentence);
  });
});
