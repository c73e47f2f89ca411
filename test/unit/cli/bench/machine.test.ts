import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { driverVersion, runtimeVersion } from '../../../../src/cli/bench/machine.js';

const root = mkdtempSync(join(tmpdir(), 'ds4-machine-'));
afterAll(() => {
  rmSync(root, { recursive: true, force: true });
});

function place(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

describe('the version of a driver', () => {
  it.each([
    ['NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024', '535.183.01'],
    ['NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (a@b)', '580.95.05'],
  ])('is read from NVIDIA: %s', (line, expected) => {
    place(
      'proc/driver/nvidia/version',
      `NVRM version: ${line}\nGCC version:  gcc version 12.3.0\n`,
    );

    expect(driverVersion('cuda', root)).toBe(expected);
  });

  it('is read from AMD', () => {
    place('sys/module/amdgpu/version', '6.12.12\n');

    expect(driverVersion('rocm', root)).toBe('6.12.12');
  });

  it('is unknown where there is none, or where the file says something else', () => {
    place('other/proc/driver/nvidia/version', 'no driver here\n');

    expect(driverVersion('cuda', join(root, 'other'))).toBeUndefined();
    expect(driverVersion('cuda', join(root, 'nothing'))).toBeUndefined();
    expect(driverVersion('rocm', join(root, 'nothing'))).toBeUndefined();
    expect(driverVersion('cpu', root)).toBeUndefined();
  });
});

it('the version of the runtime is read from ROCm, and from nothing else', () => {
  place('rocm/.info/version', '6.4.1-83\n');

  expect(runtimeVersion('rocm', join(root, 'rocm'))).toBe('6.4.1-83');
  expect(runtimeVersion('rocm', join(root, 'nothing'))).toBeUndefined();
  expect(runtimeVersion('cuda', join(root, 'rocm'))).toBeUndefined();
});
