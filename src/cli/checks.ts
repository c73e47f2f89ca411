import { RunError, UsageError } from './errors.js';
import type { Diagnostic, Settings, SimulatedMachine } from './settings.js';

function checkImatrix(settings: Settings): void {
  if (settings.imatrixDataset !== undefined && settings.imatrixOut === undefined) {
    throw new UsageError('--imatrix-dataset requires --imatrix-out');
  }
  if (settings.imatrixOut !== undefined && settings.imatrixDataset === undefined) {
    throw new UsageError('--imatrix-out requires --imatrix-dataset');
  }
}

function needsPrompt(diagnostic: Diagnostic): boolean {
  return ['dumpTokens', 'dumpLogits', 'dumpLogprobs', 'decodeConsistency'].includes(
    diagnostic.kind,
  );
}

function checkModes(settings: Settings): void {
  const [mode, other] = settings.diagnostics;
  if (mode === undefined) {
    if (settings.json) {
      throw new UsageError('--json goes with --inspect');
    }
    return;
  }
  if (other !== undefined) {
    throw new UsageError(
      `${mode.option} and ${other.option} exclude each other: one mode at a time`,
    );
  }
  if (mode.kind === 'perplexity' && settings.prompt !== undefined) {
    throw new UsageError(`${mode.option} scores its own text; leave out -p and --prompt-file`);
  }
  if (needsPrompt(mode) && settings.prompt === undefined) {
    throw new UsageError(`${mode.option} needs a prompt: -p or --prompt-file`);
  }
  if (settings.json && mode.kind !== 'inspect') {
    throw new UsageError(`--json goes with --inspect, not with ${mode.option}`);
  }
  if (settings.interactive) {
    throw new UsageError(`--interactive and ${mode.option} exclude each other`);
  }
}

function checkPrompt(settings: Settings): void {
  if (settings.interactive && settings.prompt !== undefined) {
    throw new UsageError(
      '--interactive takes its turns from stdin; leave out -p and --prompt-file',
    );
  }
  if (settings.interactive && settings.raw) {
    throw new UsageError('--interactive is a chat; --raw-prompt goes with -p or --prompt-file');
  }
  if (settings.prefixFile === undefined) {
    return;
  }
  if (settings.raw) {
    throw new UsageError('--prefix-file and --raw-prompt exclude each other');
  }
  if (settings.diagnostics.some(({ kind }) => kind === 'dumpTokens')) {
    throw new UsageError('--prefix-file and --dump-tokens exclude each other');
  }
}

function checkDistributed(settings: Settings): void {
  const { role, layers, listen, coordinator, coordinatorOnly } = settings;
  const alone =
    layers !== undefined
      ? '--layers'
      : listen !== undefined
        ? '--listen'
        : coordinator !== undefined
          ? '--coordinator'
          : coordinatorOnly[0];
  if (role === undefined || role === 'none') {
    if (alone !== undefined) {
      throw new UsageError(`${alone} needs a role: --role coordinator or --role worker`);
    }
  } else if (layers === undefined) {
    throw new UsageError(`--role ${role} requires --layers`);
  } else if (role === 'coordinator') {
    if (listen === undefined) {
      throw new UsageError('--role coordinator requires --listen HOST PORT');
    }
    if (coordinator !== undefined) {
      throw new UsageError('--role coordinator and --coordinator exclude each other');
    }
    if (layers.first !== 0) {
      throw new UsageError(
        `invalid --layers ${layers.text}: the coordinator's range must start at layer 0`,
      );
    }
  } else {
    if (coordinator === undefined) {
      throw new UsageError('--role worker requires --coordinator HOST PORT');
    }
    if (coordinatorOnly[0] !== undefined) {
      throw new UsageError(`${coordinatorOnly[0]} is for the coordinator, not for a worker`);
    }
  }
  if (settings.replayCheck && role !== 'coordinator') {
    throw new UsageError('--dist-replay-check requires --role coordinator');
  }
}

function exclude(one: string, other: string, why: string): never {
  throw new UsageError(`${one} and ${other} contradict each other: ${why}`);
}

function cacheText(cache: Settings['expertCache']): string {
  return cache === undefined
    ? 'a part of it'
    : cache.kind === 'gib'
      ? `${cache.gib} GiB of its experts (--ssd-streaming-cache-experts)`
      : `${cache.count} of its experts (--ssd-streaming-cache-experts)`;
}

function checkMemoryModes(settings: Readonly<Settings>): void {
  const { gpuResident, ssdStreaming, weightPaging, weightPagingSlots } = settings;
  const whole = 'the whole model in GPU memory, or';
  if (gpuResident === true && ssdStreaming) {
    exclude('--gpu-resident', '--ssd-streaming', `${whole} ${cacheText(settings.expertCache)}`);
  }
  if (gpuResident === true && weightPaging) {
    const part =
      weightPagingSlots === undefined
        ? 'a part of it'
        : `${weightPagingSlots} of its layers at a time (--weight-paging-slots)`;
    exclude('--gpu-resident', '--weight-paging', `${whole} ${part}`);
  }
}

function devicesOf({ devices = 1 }: SimulatedMachine): number {
  return devices;
}

function list(values: readonly number[]): string {
  return values.join(',');
}

/** A machine that is only described has the devices that its description says, and nothing else says where to compute. */
function checkDescribedMachine(settings: Readonly<Settings>): void {
  const { simulation, planFor, backend, gpuVram, gpuDevices } = settings;
  if (simulation !== undefined) {
    if (backend !== undefined && backend !== 'sim') {
      exclude('--sim', `--backend ${backend}`, '--sim computes on the simulated GPU');
    }
    if (planFor !== undefined) {
      exclude('--sim', '--plan-for', 'each describes the machine');
    }
  }
  const describedBy =
    planFor !== undefined
      ? '--plan-for'
      : simulation !== undefined || backend === 'sim'
        ? '--sim'
        : undefined;
  if (describedBy === undefined) {
    return;
  }
  if (gpuVram !== undefined && gpuVram !== 'auto' && gpuVram.length === 1 && gpuVram[0] === 0) {
    exclude(describedBy, '--gpu-vram 0', '0 means no GPU at all');
  }
  if (gpuDevices !== undefined && planFor !== undefined) {
    exclude(
      describedBy,
      `--gpu-devices ${list(gpuDevices)}`,
      'the machine that is planned for is described, not looked at',
    );
  }
  // Of DS4_SIM nothing is known yet; the devices themselves are asked later.
  const count =
    planFor !== undefined
      ? planFor.vramBytes.length
      : simulation === undefined
        ? Infinity
        : devicesOf(simulation);
  if (gpuDevices?.some((index) => index >= count) === true) {
    exclude(
      describedBy,
      `--gpu-devices ${list(gpuDevices)}`,
      count === 1
        ? 'the simulated machine has device 0 only'
        : `the simulated machine has the devices 0..${count - 1}`,
    );
  }
  if (gpuVram !== undefined && gpuVram !== 'auto' && gpuVram.length > count) {
    exclude(
      describedBy,
      `--gpu-vram ${list(gpuVram)}`,
      count === 1 ? 'the machine has one GPU' : `the machine has ${count} GPUs`,
    );
  }
}

/** @throws UsageError for placement options that contradict each other. */
export function checkPlacement(settings: Readonly<Settings>): void {
  const { gpuVram, gpuDevices } = settings;
  checkMemoryModes(settings);
  const twice = gpuDevices?.find((device, index) => gpuDevices.indexOf(device) !== index);
  if (twice !== undefined) {
    throw new UsageError(`--gpu-devices: device ${twice} is named twice`);
  }
  checkDescribedMachine(settings);
  if (gpuVram === undefined || gpuVram === 'auto' || gpuDevices === undefined) {
    return;
  }
  if (gpuVram.length === 1 && gpuVram[0] === 0) {
    throw new UsageError('--gpu-vram 0 and --gpu-devices conflict: 0 means no GPU at all');
  }
  if (gpuVram.length !== gpuDevices.length) {
    throw new UsageError(
      `--gpu-devices count (${gpuDevices.length}) does not match --gpu-vram count (${gpuVram.length})`,
    );
  }
}

/** Modes whose run has an end at which there is something to count, and whose evaluations are worth a trace. */
function checkObservation(settings: Readonly<Settings>): void {
  const { stats, expertTrace, expertProfile, planFor, diagnostics } = settings;
  const [mode] = diagnostics;
  if (planFor !== undefined && mode?.kind !== 'inspect') {
    throw new UsageError('--plan-for goes with --inspect');
  }
  if (mode === undefined || mode.kind === 'perplexity') {
    return;
  }
  const option =
    stats !== undefined
      ? { text: '--stats', json: '--stats-json' }[stats]
      : expertTrace !== undefined
        ? '--expert-trace'
        : expertProfile !== undefined
          ? '--expert-profile'
          : undefined;
  if (option !== undefined) {
    throw new UsageError(
      `${option} goes with an answer, a chat or --perplexity-file, not with ${mode.option}`,
    );
  }
}

/** @throws UsageError when there is a limit for experts that nobody names. */
export function checkPreload({ preloadExperts, expertProfile }: Readonly<Settings>): void {
  if (preloadExperts !== undefined && expertProfile === undefined) {
    throw new UsageError(
      '--ssd-streaming-preload-experts needs --expert-profile FILE, which names the experts to read',
    );
  }
}

/** Memory options that another option, or the backend, leaves without effect: a sentence about each. */
export function withoutEffect(settings: Readonly<Settings>, backend: string): string[] {
  const isCpu = backend === 'cpu';
  const { ssdStreaming, weightPaging } = settings;
  const because = (isPointless: boolean, option: string, why: string): string[] =>
    isPointless ? [`${option} has no effect ${why}`] : [];
  const cpu = 'with the cpu backend';
  const hostCache = settings.hostExpertCacheGib !== undefined;
  return [
    ...because(
      settings.expertCache !== undefined && !ssdStreaming,
      '--ssd-streaming-cache-experts',
      'without --ssd-streaming',
    ),
    ...because(
      settings.preloadExperts !== undefined && settings.ssdStreamingCold,
      '--ssd-streaming-preload-experts',
      'with --ssd-streaming-cold',
    ),
    ...because(hostCache && isCpu, '--host-expert-cache', `${cpu}: all its memory is main memory`),
    ...because(
      hostCache && !isCpu && !ssdStreaming,
      '--host-expert-cache',
      'without --ssd-streaming',
    ),
    ...because(
      settings.expertPolicy !== undefined && isCpu && !ssdStreaming,
      '--expert-policy',
      `${cpu} and without --ssd-streaming: all experts are in memory`,
    ),
    ...because(settings.uploadBufferMib !== undefined && isCpu, '--upload-buffer-mib', cpu),
    ...because(
      settings.weightPagingSlots !== undefined && !weightPaging,
      '--weight-paging-slots',
      'without --weight-paging',
    ),
  ];
}

/** Checks that need more than one option. The order decides which of two faults the user sees. */
export function checkTogether(settings: Settings): void {
  checkImatrix(settings);
  checkModes(settings);
  checkPrompt(settings);
  checkDistributed(settings);
  checkPlacement(settings);
  checkPreload(settings);
  checkObservation(settings);
}

/** Refuses what is well said but not in this build. Nothing is ever accepted and then ignored. */
export function refuseUnserved(settings: Settings): void {
  if (settings.steeringScale !== undefined && settings.steeringFile === undefined) {
    throw new RunError(`${settings.steeringScale} needs --dir-steering-file`);
  }
  const [first] = settings.unserved;
  if (first !== undefined) {
    throw new RunError(
      `${first.option} asks for ${first.lacks}, which this build does not have; leave the option out`,
    );
  }
}
