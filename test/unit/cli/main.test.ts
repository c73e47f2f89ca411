import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { RunError, UsageError } from '../../../src/cli/errors.js';
import { main, report } from '../../../src/cli/main.js';
import { OutputClosedError } from '../../../src/cli/terminal.js';

let written = '';
beforeEach(() => {
  written = '';
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    written += String(text);
    return true;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

describe('a failure', () => {
  it.each([
    [new UsageError('one\ntwo'), 2],
    [new RunError('one\ntwo'), 1],
  ])('%s has its sentence, a line each, and its status', (failure, status) => {
    expect(report(failure)).toBe(status);
    expect(written).toBe('ds4: one\nds4: two\n');
  });

  it('is silent when nobody reads the output any more', () => {
    expect(report(new OutputClosedError())).toBe(141);
    expect(written).toBe('');
  });

  it('that is a bug gets one line without a stack, and says how to see it', () => {
    expect(report(new TypeError('x is not a function'))).toBe(1);
    expect(written).toMatch(/^ds4: internal error: x is not a function.*DS4_DEBUG=1.*\n$/);
  });

  it('that is a bug shows its stack with DS4_DEBUG', () => {
    vi.stubEnv('DS4_DEBUG', '1');

    report(new TypeError('x is not a function'));

    expect(written).toMatch(/^ds4: internal error: TypeError: x is not a function\nds4: {5}at /);
  });

  it('never leaves main as an exception', async () => {
    expect(await main(['--frobnicate'])).toBe(2);
    expect(written).toMatch(/^ds4: unknown option: --frobnicate\nds4: /);
  });
});
