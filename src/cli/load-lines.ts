import type { DeviceInfo, EngineInfo, SessionSizes } from '../engine/index.js';
import { automaticBudget } from '../plan/index.js';
import type { GpuPlan, LoadPlan } from '../plan/index.js';
import { formatBytes } from './bytes.js';
import type { Settings } from './settings.js';

// What is said about loading. Scripts look for the words and the order of the fields, not for the rest.

const labels = { cuda: 'CUDA', rocm: 'ROCm', sim: 'SIM' } as const;

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
  const { place, experts } = plan.weights;
  const size = formatBytes(info.deviceBytes);
  const rate = `${formatBytes(info.deviceBytes / Math.max(seconds, 1e-3))}/s`;
  if (place === 'device') {
    return [
      `${label} model chunk copy complete in ${seconds.toFixed(3)}s (${size} tensors), ${rate}`,
    ];
  }
  return [
    `${label} loading model tensors ${size} cached in ${seconds.toFixed(3)}s, ${rate}`,
    ...(place === 'mappedExperts' || info.mappedBytes > 0
      ? [`${label} registered ${formatBytes(info.mappedBytes)} model mapping for device access`]
      : []),
    ...(experts === undefined
      ? []
      : [`${label} expert cache: ${experts.slots} experts, ${formatBytes(experts.slotBytes)}`]),
  ];
}

interface Item {
  readonly name: string;
  readonly bytes: number;
}

function cacheItems({ weights }: LoadPlan): Item[] {
  const { slotBytes = 0, transitBytes = 0, hostBytes = 0 } = weights.experts ?? {};
  return [
    { name: 'expert cache', bytes: slotBytes + transitBytes },
    { name: 'experts in main memory', bytes: hostBytes },
  ].filter(({ bytes }) => bytes > 0);
}

function weightItems(plan: LoadPlan): Item[] {
  const { bytes, routedBytes, source } = plan.weights;
  if (plan.backend === 'cpu') {
    const used = plan.weights.place === 'host' ? bytes : bytes - routedBytes;
    return [{ name: `${source === 'mmap' ? 'mapped' : 'resident'} model`, bytes: used }];
  }
  const { place, deviceBytes, pinnedBytes } = plan.weights;
  const resident = { name: 'resident model', bytes: deviceBytes };
  return pinnedBytes === 0
    ? [resident]
    : [
        resident,
        { name: place === 'mappedExperts' ? 'mapped experts' : 'mapped model', bytes: pinnedBytes },
      ];
}

/** The sums, when everything is there. */
export function memoryLine(plan: LoadPlan, sizes: SessionSizes): string {
  const items = [
    { name: 'KV', bytes: sizes.kvBytes },
    { name: 'buffers', bytes: sizes.workspaceBytes + sizes.scratchBytes },
    ...weightItems(plan),
    ...cacheItems(plan),
  ];
  const sum = items.reduce((bytes, item) => bytes + item.bytes, 0);
  const text = items.map(({ name, bytes }) => `${name} ${formatBytes(bytes)}`).join(' + ');
  return `memory: ${text} = ${formatBytes(sum)} planned`;
}
