export { abiVersion, crossingCount } from './abi.js';
export { listDevices } from './devices.js';
export type { DeviceInfo } from './devices.js';
export { Engine } from './engine.js';
export type { EngineInfo, EngineOptions } from './engine.js';
export type {
  Candidates,
  EngineSession,
  EvalRequest,
  EvalResult,
  SessionOptions,
  SessionSizes,
} from './engine-session.js';
export {
  CancelledError,
  LibraryError,
  LockFileError,
  LockHeldError,
  NativeError,
  NonFiniteError,
} from './errors.js';
export { backends, findLibrary, programRoot } from './library.js';
export type { BackendName } from './library.js';
export { acquireLock } from './lock.js';
export type { Lock } from './lock.js';
export type { InstructionSet, LayerSlice } from './model-arguments.js';
export type { TapKind, TapRecord } from './taps.js';
export type { TelemetrySnapshot } from './telemetry.js';
