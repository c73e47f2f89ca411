import type { Simulation } from '../../src/engine/index.js';

/** A discrete GPU with room for any small model, for tests that change what they are about. */
export const simulatedMachine: Simulation = {
  kind: 'discrete',
  vramBytes: 2 ** 30,
  usedBytes: 0,
  linkBytesPerSecond: 25e9,
  mappedBytesPerSecond: 12e9,
  diskBytesPerSecond: 5e9,
  linkNs: 10_000,
  diskNs: 80_000,
};
