import type { ExpertPolicy, Simulation, Source } from '../engine/index.js';
import type { ExpertCacheSize, LayerRange } from './values.js';

export const backendNames = ['cpu', 'cuda', 'rocm', 'metal', 'sim'] as const;
export type BackendWord = (typeof backendNames)[number];

export type PromptSource =
  | { readonly kind: 'text'; readonly text: string }
  /** Read during the parse, because an unreadable prompt file is a usage error. */
  | { readonly kind: 'file'; readonly path: string; readonly text: Uint8Array }
  | { readonly kind: 'stdin' };

export type ThinkMode = 'none' | 'normal' | 'max';
export type ColorChoice = 'auto' | 'always' | 'never';

/** A mode that replaces answering a prompt. `option` is the name as it was typed. */
export type Diagnostic =
  | { readonly kind: 'inspect'; readonly option: string }
  | { readonly kind: 'dumpTokens'; readonly option: string }
  | { readonly kind: 'dumpLogits'; readonly option: string; readonly file: string }
  | { readonly kind: 'dumpLogprobs'; readonly option: string; readonly file: string }
  | { readonly kind: 'perplexity'; readonly option: string; readonly file: string }
  | { readonly kind: 'decodeConsistency'; readonly option: string; readonly tokens: number }
  | { readonly kind: 'imatrix'; readonly option: string };

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** A simulated device, and the main memory beside it. */
export interface SimulatedMachine extends Simulation {
  /** Undefined: what this machine has. */
  readonly ramBytes: number | undefined;
}

/** A machine described by hand, in bytes. */
export interface PlannedMachine {
  /** Of each GPU. */
  readonly vramBytes: readonly number[];
  readonly ramBytes: number;
  readonly kind: 'discrete' | 'integrated';
}

/** An option that is understood but asks for something that this build does not have. */
export interface Unserved {
  readonly option: string;
  readonly lacks: string;
}

/** What the command line says, after the defaults. */
export interface Settings {
  model: string | undefined;
  backend: BackendWord | undefined;
  /** Undefined: the planner's default. */
  context: number | undefined;
  threads: number | undefined;
  prefillChunk: number | undefined;
  exact: boolean;
  /** --simulate-used-memory */
  simulatedUsedGib: number | undefined;
  warm: boolean;
  /** Undefined: the planner's choice. */
  source: Source | undefined;
  /** --mlock */
  lockWeights: boolean;

  gpuVram: 'auto' | readonly number[] | undefined;
  gpuDevices: readonly number[] | undefined;
  gpuResident: boolean | undefined;
  ssdStreaming: boolean;
  ssdStreamingCold: boolean;
  /** --ssd-streaming-cache-experts */
  expertCache: ExpertCacheSize | undefined;
  /** --expert-profile */
  expertProfile: string | undefined;
  /** --ssd-streaming-preload-experts */
  preloadExperts: number | undefined;
  /** --host-expert-cache: pinned main memory for experts that have no place in GPU memory. */
  hostExpertCacheGib: number | undefined;
  /** --expert-policy */
  expertPolicy: ExpertPolicy | undefined;
  uploadBufferMib: number | undefined;
  weightPaging: boolean;
  weightPagingSlots: number | undefined;
  checkTensors: boolean;
  /** --sim, or DS4_SIM as soon as a run is opened: the machine that the sim backend pretends to be. */
  simulation: SimulatedMachine | undefined;
  /** --plan-for: the machine that --inspect plans for. */
  planFor: PlannedMachine | undefined;
  /** --stats, --stats-json: counters at the end of the run. */
  stats: 'text' | 'json' | undefined;
  /** --expert-trace */
  expertTrace: string | undefined;

  prompt: PromptSource | undefined;
  system: string;
  raw: boolean;
  prefixFile: string | undefined;
  /** What --effort-file holds. */
  effortText: string | undefined;
  interactive: boolean;

  maxTokens: number;
  temperature: number;
  topP: number;
  minP: number;
  topK: number;
  seed: bigint | undefined;
  think: ThinkMode;

  role: 'coordinator' | 'worker' | 'none' | undefined;
  layers: LayerRange | undefined;
  listen: Address | undefined;
  coordinator: Address | undefined;
  /** Options, as typed, that only a coordinator may have. */
  coordinatorOnly: string[];
  replayCheck: boolean;
  debug: boolean;

  diagnostics: Diagnostic[];
  json: boolean;
  logprobsTopK: number;
  imatrixDataset: string | undefined;
  imatrixOut: string | undefined;

  steeringFile: string | undefined;
  steeringScale: string | undefined;

  color: ColorChoice;
  quiet: boolean;

  /** In the order in which they were typed. */
  unserved: Unserved[];
}

export function defaultSettings(): Settings {
  return {
    model: undefined,
    backend: undefined,
    context: undefined,
    threads: undefined,
    prefillChunk: undefined,
    exact: false,
    simulatedUsedGib: undefined,
    warm: false,
    source: undefined,
    lockWeights: false,
    gpuVram: undefined,
    gpuDevices: undefined,
    gpuResident: undefined,
    ssdStreaming: false,
    ssdStreamingCold: false,
    expertCache: undefined,
    expertProfile: undefined,
    preloadExperts: undefined,
    hostExpertCacheGib: undefined,
    expertPolicy: undefined,
    uploadBufferMib: undefined,
    weightPaging: false,
    weightPagingSlots: undefined,
    checkTensors: false,
    simulation: undefined,
    planFor: undefined,
    stats: undefined,
    expertTrace: undefined,
    prompt: undefined,
    system: 'You are a helpful assistant',
    raw: false,
    prefixFile: undefined,
    effortText: undefined,
    interactive: false,
    maxTokens: 50_000,
    temperature: 1,
    topP: 1,
    minP: 0.05,
    topK: 0,
    seed: undefined,
    think: 'normal',
    role: undefined,
    layers: undefined,
    listen: undefined,
    coordinator: undefined,
    coordinatorOnly: [],
    replayCheck: false,
    debug: false,
    diagnostics: [],
    json: false,
    logprobsTopK: 20,
    imatrixDataset: undefined,
    imatrixOut: undefined,
    steeringFile: undefined,
    steeringScale: undefined,
    color: 'auto',
    quiet: false,
    unserved: [],
  };
}
