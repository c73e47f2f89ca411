import type { LayerRange } from './values.js';

export const backendNames = ['cpu', 'cuda', 'rocm', 'metal'] as const;
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
  warm: boolean;
  source: 'mmap' | 'read';

  gpuVram: 'auto' | readonly number[] | undefined;
  gpuDevices: readonly number[] | undefined;
  gpuResident: boolean | undefined;
  ssdStreaming: boolean;
  checkTensors: boolean;

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
    warm: false,
    source: 'mmap',
    gpuVram: undefined,
    gpuDevices: undefined,
    gpuResident: undefined,
    ssdStreaming: false,
    checkTensors: false,
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
