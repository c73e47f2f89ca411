import type { DeviceInfo, EngineInfo, SessionSizes } from '../engine/index.js';
import { automaticBudget } from '../plan/index.js';
import type { GpuPlan, LoadPlan } from '../plan/index.js';
import { formatBytes } from './bytes.js';
import type { Settings } from './settings.js';

// What is said about loading. Scripts look for the words and the order of the fields, not for the rest.

const labels = { cuda: 'CUDA', rocm: 'ROCm' } as const;

/** `GPU config: 1 device [0] requested, budgets 40 GB; auto=false`, when placement was asked for. */
export function placementLine(
  { gpuVram, gpuDevices }: Readonly<Settings>,
  device: DeviceInfo,
): string | undefined {
  if (gpuVram === undefined && gpuDevices === undefined) {
    return undefined;
  }
  const isAuto = gpuVram === undefined || gpuVram === 'auto';
  const budgets = isAuto ? [Math.floor(automaticBudget(device.freeBytes) / 2 ** 30)] : gpuVram;
  return `GPU config: 1 device [${device.index}] requested, budgets ${budgets.join()} GB; auto=${isAuto}`;
}

/** Before the weights go to a GPU. */
export function copyBegins(plan: GpuPlan, { name, arch, index }: DeviceInfo): string[] {
  const label = labels[plan.backend];
  const size = formatBytes(plan.weights.deviceBytes);
  return [
    `${label} backend initialized on ${name} (${arch}) dev=${index}`,
    plan.weights.place === 'device'
      ? `${label} chunk-copying ${size} model image`
      : `${label} loading model tensors into device cache: ${size}`,
  ];
}

/** After it, with what it took. */
export function copyEnded(plan: GpuPlan, info: EngineInfo, seconds: number): string[] {
  const label = labels[plan.backend];
  const size = formatBytes(info.deviceBytes);
  const rate = `${formatBytes(info.deviceBytes / Math.max(seconds, 1e-3))}/s`;
  return plan.weights.place === 'device'
    ? [`${label} model chunk copy complete in ${seconds.toFixed(3)}s (${size} tensors), ${rate}`]
    : [
        `${label} loading model tensors ${size} cached in ${seconds.toFixed(3)}s, ${rate}`,
        `${label} registered ${formatBytes(info.mappedBytes)} model mapping for device access`,
      ];
}

function weightsText({ weights }: LoadPlan): string {
  if (weights.place === 'host') {
    return `${weights.source === 'mmap' ? 'mapped' : 'resident'} model ${formatBytes(weights.bytes)}`;
  }
  const resident = `resident model ${formatBytes(weights.deviceBytes)}`;
  return weights.place === 'device'
    ? resident
    : `${resident} + mapped experts ${formatBytes(weights.bytes - weights.deviceBytes)}`;
}

/** The sums, when everything is there. */
export function memoryLine(plan: LoadPlan, sizes: SessionSizes): string {
  const { kvBytes } = sizes;
  const buffers = sizes.workspaceBytes + sizes.scratchBytes;
  return (
    `memory: KV ${formatBytes(kvBytes)} + buffers ${formatBytes(buffers)} + ` +
    `${weightsText(plan)} = ${formatBytes(kvBytes + buffers + plan.weights.bytes)} planned`
  );
}
