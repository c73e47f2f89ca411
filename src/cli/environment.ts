import { InvalidValue } from './errors.js';
import { floatBetween, integerBetween } from './values.js';

/** What the environment says, typed. The only reader of `process.env` in the program is `readEnvironment`. */
export interface Environment {
  readonly lockFile: string;
  /** Folder of the native libraries instead of the program's own. */
  readonly libraryDirectory: string | undefined;
  readonly home: string | undefined;
  readonly terminal: string | undefined;
  /** NO_COLOR is set and not empty. */
  readonly noColor: boolean;
  /** FORCE_COLOR is set, not empty and not 0. */
  readonly forceColor: boolean;
  /** DS4_DEBUG is set: unexpected failures show their stack. */
  readonly debug: boolean;
  readonly prefillChunk: number | 'whole' | undefined;
  readonly tokenTiming: boolean;
  readonly traceTop: boolean;
  readonly gpu: GpuEnvironment;
  /** Sentences about values that could not be read; they are left out of account. */
  readonly warnings: readonly string[];
}

/** Settings of GPU backends. The CPU has no use for them, so they are read and have no effect there. */
export interface GpuEnvironment {
  readonly streamFreeReserveGib: number | undefined;
  readonly hostMappedExpertFallback: boolean;
  readonly registeredWeights: 'discrete' | 'integrated' | 'auto';
  readonly q8F16CacheMib: number | undefined;
  readonly q8F16CacheReserveMib: number | undefined;
  readonly noQ8F16Cache: boolean;
  /** The variable that asks for the copy of the model, if one does. */
  readonly copyAskedBy: string | undefined;
  readonly copyChunkMib: number | undefined;
  /** The variable that forbids the copy of the model, if one does. */
  readonly copyForbiddenBy: string | undefined;
  readonly keepModelPages: boolean;
  readonly autoCachePercent: number | undefined;
}

type Variables = Readonly<Record<string, string | undefined>>;

const forbidCopy = [
  'DS4_CUDA_NO_MODEL_COPY',
  'DS4_CUDA_DIRECT_MODEL',
  'DS4_CUDA_WEIGHT_CACHE',
  'DS4_CUDA_WEIGHT_PRELOAD',
];

class Reader {
  readonly warnings: string[] = [];

  constructor(readonly variables: Variables) {}

  /** Many switches are on as soon as the variable exists, whatever it holds. */
  present(name: string): boolean {
    return this.variables[name] !== undefined;
  }

  text(name: string): string | undefined {
    const text = this.variables[name];
    return text === '' ? undefined : text;
  }

  /** A number, or undefined with a warning when it is none. */
  number(name: string, parse: (text: string) => number, allowed: string): number | undefined {
    const text = this.text(name);
    if (text === undefined) {
      return undefined;
    }
    try {
      return parse(text);
    } catch (thrown) {
      if (!(thrown instanceof InvalidValue)) {
        throw thrown;
      }
      this.warnings.push(`${name}=${text} is left out of account: it should be ${allowed}`);
      return undefined;
    }
  }
}

function prefillChunk(reader: Reader): number | 'whole' | undefined {
  const name = 'DS4_METAL_PREFILL_CHUNK';
  const text = reader.text(name);
  if (text !== undefined && /^-[0-9]+$|^\+?0+$/.test(text)) {
    return 'whole';
  }
  return reader.number(name, integerBetween(1, 2_147_483_647), 'a whole number');
}

function gpuEnvironment(reader: Reader): GpuEnvironment {
  const gib = reader.number(
    'DS4_ROCM_STREAM_FREE_RESERVE_GIB',
    floatBetween(0, 1024),
    'a number of GiB, 0 to 1024',
  );
  const gb = reader.number(
    'DS4_ROCM_STREAM_FREE_RESERVE_GB',
    integerBetween(2, 64),
    'a whole number of GiB, 2 to 64',
  );
  const registered = reader.text('DS4_ROCM_REGISTERED_WEIGHTS');
  if (registered !== undefined && registered !== '0' && registered !== '1') {
    reader.warnings.push(
      `DS4_ROCM_REGISTERED_WEIGHTS=${registered} is left out of account: it should be 0 or 1`,
    );
  }
  const mib = integerBetween(0, 2_147_483_647);
  const mibText = 'a whole number of MiB';
  return {
    streamFreeReserveGib: gib ?? gb,
    hostMappedExpertFallback: reader.text('DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK') !== '0',
    registeredWeights: registered === '1' ? 'discrete' : registered === '0' ? 'integrated' : 'auto',
    q8F16CacheMib: reader.number('DS4_CUDA_Q8_F16_CACHE_MB', mib, mibText),
    q8F16CacheReserveMib: reader.number('DS4_CUDA_Q8_F16_CACHE_RESERVE_MB', mib, mibText),
    noQ8F16Cache: reader.present('DS4_CUDA_NO_Q8_F16_CACHE'),
    copyAskedBy: reader.present('DS4_CUDA_COPY_MODEL_CHUNKED')
      ? 'DS4_CUDA_COPY_MODEL_CHUNKED'
      : reader.text('DS4_CUDA_COPY_MODEL') === undefined
        ? undefined
        : 'DS4_CUDA_COPY_MODEL',
    copyChunkMib: reader.number('DS4_CUDA_MODEL_COPY_CHUNK_MB', mib, mibText),
    copyForbiddenBy: forbidCopy.find((name) => reader.present(name)),
    keepModelPages: reader.present('DS4_CUDA_KEEP_MODEL_PAGES'),
    autoCachePercent: reader.number(
      'DS4_SSD_AUTO_CACHE_PCT',
      integerBetween(50, 95),
      'a whole number, 50 to 95',
    ),
  };
}

/** Turns environment variables into typed options; docs/cli.md lists them. */
export function readEnvironment(variables: Variables = process.env): Environment {
  const reader = new Reader(variables);
  return {
    lockFile: reader.text('DS4_LOCK_FILE') ?? '/tmp/ds4.lock',
    libraryDirectory: reader.text('DS4_LIBRARY_DIR'),
    home: reader.text('HOME'),
    terminal: reader.text('TERM'),
    noColor: reader.text('NO_COLOR') !== undefined,
    forceColor: !['0', undefined].includes(reader.text('FORCE_COLOR')),
    debug: reader.present('DS4_DEBUG'),
    prefillChunk: prefillChunk(reader),
    tokenTiming: reader.present('DS4_TOKEN_TIMING'),
    traceTop: reader.present('DS4_TRACE_TOP'),
    gpu: gpuEnvironment(reader),
    warnings: reader.warnings,
  };
}
