import { describe, expect, test } from 'vitest';
import { missingDriverFile } from '../../../src/engine/library.js';

describe('the file that a library could not be loaded without', () => {
  test.each([
    'Failed to load shared library: libamdhip64.so.6: cannot open shared object file: No such file or directory',
    'Error loading shared library libamdhip64.so.6: No such file or directory (needed by /lib/libds4-rocm.so)',
  ])('is found in %j', (text) => {
    expect(missingDriverFile('rocm', text)).toEqual({
      file: 'libamdhip64.so.6',
      from: "AMD's ROCm runtime",
    });
  });

  test.each([
    ['rocm', 'libother.so.1: cannot open shared object file: No such file or directory'],
    ['rocm', '/opt/libamdhip64.so.6: cannot open shared object file: No such file or directory'],
    ['rocm', 'libamdhip64.so.6: undefined symbol: hipInit'],
    ['cpu', 'libamdhip64.so.6: cannot open shared object file: No such file or directory'],
  ] as const)("is none of the driver's for %s in %j", (backend, text) => {
    expect(missingDriverFile(backend, text)).toBeUndefined();
  });
});
