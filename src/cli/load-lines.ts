import type { DeviceInfo, EngineInfo, SessionSizes } from '../engine/index.js';
import { automaticBudget } from '../plan/index.js';
import type { GpuPlan, LoadPlan } from '../plan/index.js';
import { formatBytes } from './bytes.js';
import type { Settings } from './settings.js';

// What is said about loading. Scripts look for the words and the order of the fields, not for the rest.

const labels = { cuda: 'CUDA', rocm: 'ROCm', sim: 'SIM' } as const;

/** `GPU config: 2 devices [0,1] requested, budgets 40,12 GB; auto=false`, when placement was asked for. */
export function placementLine(
  { gpuVram, gpuDevices }: Readonly<Settings>,
  devices: readonly DeviceInfo[],
): string | undefined {
  if ((gpuVram === undefined && gpuDevices === undefined) || devices.length === 0) {
    return undefined;
  }
  const isAuto = gpuVram === undefined || gpuVram === 'auto';
  const budgets = isAuto
    ? devices.map(({ freeBytes }) => Math.floor(automaticBudget(freeBytes) / 2 ** 30))
    : gpuVram;
  const indices = devices.map(({ index }) => index);
  return (
    `GPU config: ${devices.length} ${devices.length === 1 ? 'device' : 'devices'} [${indices.join()}] requested, ` +
    `budgets ${budgets.join()} GB; auto=${isAuto}`
  );
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
  const { place, experts, pinCopies, pinnedBytes } = plan.weights;
  const size = formatBytes(info.deviceBytes);
  const rate = `${formatBytes(info.deviceBytes / Math.max(seconds, 1e-3))}/s`;
  if (place === 'device') {
    return [
      `${label} model chunk copy complete in ${seconds.toFixed(3)}s (${size} tensors), ${rate}`,
    ];
  }
  return [
    `${label} loading model tensors ${size} cached in ${seconds.toFixed(3)}s, ${rate}`,
    ...(info.mappedBytes > 0
      ? [`${label} registered ${formatBytes(info.mappedBytes)} model mapping for device access`]
      : []),
    ...(pinCopies
      ? [`${label} pinned ${formatBytes(pinnedBytes)} of main memory for device access`]
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

/** One item for each name, in the order in which they first appear. */
function added(items: readonly Item[]): Item[] {
  const sums = new Map<string, number>();
  for (const { name, bytes } of items) {
    sums.set(name, (sums.get(name) ?? 0) + bytes);
  }
  return [...sums].map(([name, bytes]) => ({ name, bytes }));
}

/** The sums over all parts of a model, when everything is there. */
export function memoryLine(
  plans: readonly LoadPlan[],
  sizes: SessionSizes,
  hiddenStateBytes = 0,
): string {
  const items = [
    { name: 'KV', bytes: sizes.kvBytes },
    { name: 'buffers', bytes: sizes.workspaceBytes + sizes.scratchBytes },
    ...(hiddenStateBytes > 0 ? [{ name: 'hidden states', bytes: hiddenStateBytes }] : []),
    ...added(plans.flatMap((plan) => [...weightItems(plan), ...cacheItems(plan)])),
  ];
  const sum = items.reduce((bytes, item) => bytes + item.bytes, 0);
  const text = items.map(({ name, bytes }) => `${name} ${formatBytes(bytes)}`).join(' + ');
  return `memory: ${text} = ${formatBytes(sum)} planned`;
}
