import { RunError, UsageError } from './errors.js';
import type { Diagnostic, Settings } from './settings.js';

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

function checkPlacement(settings: Settings): void {
  const { gpuVram, gpuDevices } = settings;
  if (settings.gpuResident === true && settings.ssdStreaming) {
    throw new UsageError(
      '--gpu-resident and --ssd-streaming contradict each other: the whole model in GPU memory, or a part of it',
    );
  }
  const twice = gpuDevices?.find((device, index) => gpuDevices.indexOf(device) !== index);
  if (twice !== undefined) {
    throw new UsageError(`--gpu-devices: device ${twice} is named twice`);
  }
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

/** Checks that need more than one option. The order decides which of two faults the user sees. */
export function checkTogether(settings: Settings): void {
  checkImatrix(settings);
  checkModes(settings);
  checkPrompt(settings);
  checkDistributed(settings);
  checkPlacement(settings);
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
