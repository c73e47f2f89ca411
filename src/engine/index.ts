export { abiVersion, crossingCount } from './abi.js';
export { listDevices, probeBackend } from './devices.js';
export type { BackendState, DeviceInfo } from './devices.js';
export { Engine } from './engine.js';
export type { EngineOptions } from './engine.js';
export type {
  Candidates,
  EngineSession,
  EvalRequest,
  EvalResult,
  SessionOptions,
  SessionSizes,
} from './engine-session.js';
export type { ExpertId, ExpertUse } from './expert-lists.js';
export {
  CancelledError,
  DeviceError,
  LibraryError,
  LockFileError,
  LockHeldError,
  NativeError,
  NoMemoryError,
  NonFiniteError,
} from './errors.js';
export type { LoadStep } from './errors.js';
export { backends, findLibrary, gpuBackends, libraryFile, programRoot } from './library.js';
export type { BackendName, GpuBackendName } from './library.js';
export { acquireLock } from './lock.js';
export type { Lock } from './lock.js';
export type {
  ExpertMemory,
  ExpertPolicy,
  InstructionSet,
  LayerSlice,
  Placement,
  Source,
  Upload,
  WeightOptions,
} from './model-arguments.js';
export type { EngineInfo, ModelEngine } from './model-engine.js';
export { SplitEngine } from './split-engine.js';
export { simulate, simulatedCalls } from './simulation.js';
export type { SimulatedCall, SimulatedFailure, Simulation } from './simulation.js';
export type { TapKind, TapRecord } from './taps.js';
export type { TelemetrySnapshot } from './telemetry.js';
