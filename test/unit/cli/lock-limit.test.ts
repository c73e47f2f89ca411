import { expect, it } from 'vitest';
import { parseLockLimit } from '../../../src/cli/lock-limit.js';

const ordinary = 'Name:\tnode\nCapEff:\t0000000000000000\n';
const limits = (bytes: string) =>
  `Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         ${bytes.padEnd(20)} unlimited            bytes\n`;

it('the limit is the soft one', () => {
  expect(parseLockLimit(ordinary, limits('8388608'))).toBe(8_388_608);
});

it('there is none for the privileged, where the system has none, and where it does not tell', () => {
  expect(parseLockLimit('CapEff:\t0000000000004000\n', limits('8388608'))).toBeUndefined();
  expect(parseLockLimit(ordinary, limits('unlimited'))).toBeUndefined();
  expect(parseLockLimit('', '')).toBeUndefined();
});
