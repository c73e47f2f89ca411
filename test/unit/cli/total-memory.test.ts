import { totalmem } from 'node:os';
import { afterEach, expect, it, vi } from 'vitest';
import { totalMemory } from '../../../src/cli/total-memory.js';

afterEach(() => {
  vi.restoreAllMocks();
});

it.each([
  ['a control group allows less', 2 ** 20, 2 ** 20],
  ['a control group allows more than there is', 2 ** 64, totalmem()],
  ['nobody knows of a limit', 0, totalmem()],
])('%s', (_name, limit, bytes) => {
  vi.spyOn(process, 'constrainedMemory').mockReturnValue(limit);

  expect(totalMemory()).toBe(bytes);
});
