import { expect, it } from 'vitest';
import { parseArguments } from '../../../src/cli/arguments.js';
import { copyBegins, copyEnded, memoryLine, placementLine } from '../../../src/cli/load-lines.js';
import type { DeviceInfo, EngineInfo } from '../../../src/engine/index.js';
import type { GpuPlan, LoadPlan } from '../../../src/plan/index.js';

const gib = 2 ** 30;
const device: DeviceInfo = {
  kind: 'discrete',
  index: 1,
  cores: 132,
  totalBytes: 140 * gib,
  freeBytes: 100 * gib,
  name: 'NVIDIA H200',
  arch: 'sm_90',
};

const resident = {
  backend: 'cuda',
  weights: { place: 'device', bytes: 80 * gib, deviceBytes: 80 * gib, pinnedBytes: 0 },
} as unknown as GpuPlan;
const mapped = {
  backend: 'rocm',
  weights: {
    place: 'mappedExperts',
    bytes: 80 * gib,
    deviceBytes: 8 * gib,
    pinnedBytes: 72 * gib,
  },
} as unknown as GpuPlan;
const info = { deviceBytes: 80 * gib, mappedBytes: 0 } as EngineInfo;

function line(words: string, devices = [device]): string | undefined {
  const request = parseArguments(words.split(' '));
  return request.kind === 'run' ? placementLine(request.settings, devices) : undefined;
}

it('the layout line has the devices and budgets that were asked for', () => {
  expect(line('--gpu-vram 40 --gpu-devices 1')).toBe(
    'GPU config: 1 device [1] requested, budgets 40 GB; auto=false',
  );
  expect(line('--gpu-devices 1')).toBe(
    'GPU config: 1 device [1] requested, budgets 95 GB; auto=true',
  );
  expect(line('--gpu-vram 20,20', [{ ...device, index: 0 }, device])).toBe(
    'GPU config: 2 devices [0,1] requested, budgets 20,20 GB; auto=false',
  );
  expect(line('--gpu-vram auto', [{ ...device, index: 0 }, device])).toBe(
    'GPU config: 2 devices [0,1] requested, budgets 95,95 GB; auto=true',
  );
  expect(line('--gpu-resident')).toBeUndefined();
});

it('the copy of a whole model has a line before and one after it', () => {
  expect(copyBegins(resident, device)).toEqual([
    'CUDA backend initialized on NVIDIA H200 (sm_90) dev=1',
    'CUDA chunk-copying 80.00 GiB model image',
  ]);
  expect(copyEnded(resident, info, 8)).toEqual([
    'CUDA model chunk copy complete in 8.000s (80.00 GiB tensors), 10.00 GiB/s',
  ]);
});

it('mapped experts are never called a complete copy', () => {
  const parts = { deviceBytes: 8 * gib, mappedBytes: 72 * gib } as EngineInfo;

  const lines = [...copyBegins(mapped, device), ...copyEnded(mapped, parts, 1)];

  expect(lines.join('\n')).toContain('ROCm registered 72.00 GiB model mapping');
  expect(lines.join('\n')).not.toContain('complete');
});

const sizes = {
  kvBytes: 3 * gib,
  workspaceBytes: gib,
  scratchBytes: gib,
  checkpointBytes: 0,
};

it('the memory line adds up', () => {
  expect(memoryLine([mapped as LoadPlan], sizes)).toBe(
    'memory: KV 3.00 GiB + buffers 2.00 GiB + resident model 8.00 GiB + mapped experts 72.00 GiB = 85.00 GiB planned',
  );
});

const streamed = {
  backend: 'sim',
  weights: {
    place: 'streamExperts',
    bytes: 80 * gib,
    deviceBytes: 8 * gib,
    pinnedBytes: 0,
    experts: { slots: 100, slotBytes: 10 * gib, transitBytes: gib, hostBytes: 16 * gib },
  },
} as unknown as GpuPlan;

it('the memory line counts a cache and not the file behind it', () => {
  expect(memoryLine([streamed], sizes)).toBe(
    'memory: KV 3.00 GiB + buffers 2.00 GiB + resident model 8.00 GiB + expert cache 11.00 GiB + ' +
      'experts in main memory 16.00 GiB = 40.00 GiB planned',
  );
});

it('an expert cache is said with its size, and no mapping where there is none', () => {
  const lines = copyEnded(streamed, { deviceBytes: 8 * gib, mappedBytes: 0 } as EngineInfo, 1);

  expect(lines).toEqual([
    'SIM loading model tensors 8.00 GiB cached in 1.000s, 8.00 GiB/s',
    'SIM expert cache: 100 experts, 10.00 GiB',
  ]);
});
