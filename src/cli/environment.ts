import type { NamedVariable } from '../plan/index.js';
import { InvalidValue, UsageError } from './errors.js';
import { simulatedMachine } from './machine-description.js';
import type { SimulatedMachine } from './settings.js';
import { integerBetween, plainDecimal, plainInteger } from './values.js';

/** What the environment says, typed. The only reader of `process.env` in the program is this file. */
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
  /** Counters at the end of the run, as --stats. */
  readonly stats: boolean;
  /** DS4_SIM; --sim wins over it. */
  readonly simulation: SimulatedMachine | undefined;
  readonly gpu: GpuEnvironment;
  /** Sentences about values that could not be read, or that have no effect. */
  readonly warnings: readonly string[];
}

/** Settings of GPU backends and of streaming. */
export interface GpuEnvironment {
  /** GPU memory that the expert cache leaves free. */
  readonly streamFreeReserveGib: number | undefined;
  readonly hostMappedExpertFallback: boolean;
  readonly registeredWeights: 'discrete' | 'integrated' | 'auto';
  /** The variable that asks for the copy of the model, if one does. */
  readonly copyAskedBy: string | undefined;
  readonly copyChunkMib: number | undefined;
  /** The variable that forbids the copy of the model, if one does. */
  readonly copyForbiddenBy: string | undefined;
  readonly keepModelPages: boolean;
  /** Share of the memory that model and expert cache take together when nobody says how much. */
  readonly autoCachePercent: number | undefined;
  /** Limit of the weights outside the experts in GPU memory, while streaming. */
  readonly streamModelCacheGib: number | undefined;
  /** Threads that read missing weights. */
  readonly readWorkers: number | undefined;
  /** The variable that wants reads through the page cache, if one does; --direct-io wins over it. */
  readonly bufferedReadsBy: string | undefined;
  /** The variable that forbids pinned main memory for weights that GPU memory has no room for, if one does. */
  readonly pinnedFallbackForbiddenBy: string | undefined;
  /** Those of these settings that are set, and what for. */
  readonly named: readonly NamedVariable[];
}

type Variables = Readonly<Record<string, string | undefined>>;

const forbidCopy = [
  'DS4_CUDA_NO_MODEL_COPY',
  'DS4_CUDA_DIRECT_MODEL',
  'DS4_CUDA_WEIGHT_CACHE',
  'DS4_CUDA_WEIGHT_PRELOAD',
];
const bufferedReads = ['DS4_ROCM_STREAM_NO_DIRECT', 'DS4_CUDA_NO_DIRECT_IO'];
const statistics = ['DS4_ROCM_STREAM_CACHE_STATS', 'DS4_ROCM_STREAM_LAYER_STATS'];

/** What each variable is for, and whether it is set as soon as it exists or only with a value. */
const purposes: readonly (readonly [string, NamedVariable['about'], 'presence' | 'value'])[] = [
  ['DS4_METAL_PREFILL_CHUNK', 'session', 'value'],
  ['DS4_CUDA_COPY_MODEL_CHUNKED', 'gpu', 'presence'],
  ['DS4_CUDA_COPY_MODEL', 'gpu', 'value'],
  ...forbidCopy.map((name) => [name, 'gpu', 'presence'] as const),
  ['DS4_CUDA_MODEL_COPY_CHUNK_MB', 'gpu', 'value'],
  ['DS4_CUDA_NO_PINNED_ARENA_FALLBACK', 'gpu', 'presence'],
  ['DS4_CUDA_KEEP_MODEL_PAGES', 'gpu', 'presence'],
  ['DS4_ROCM_REGISTERED_WEIGHTS', 'gpu', 'value'],
  ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', 'gpuStreaming', 'value'],
  ['DS4_ROCM_STREAM_FREE_RESERVE_GB', 'gpuStreaming', 'value'],
  ['DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK', 'gpuStreaming', 'value'],
  ['DS4_ROCM_STREAM_MODEL_CACHE_GB', 'gpuStreaming', 'value'],
  ...bufferedReads.map((name) => [name, 'gpuStreaming', 'value'] as const),
  ['DS4_SSD_AUTO_CACHE_PCT', 'streaming', 'value'],
  ['DS4_ROCM_STREAM_READ_WORKERS', 'fetching', 'value'],
  ['DS4_CUDA_Q8_F16_CACHE_MB', 'q8Copies', 'value'],
  ['DS4_CUDA_Q8_F16_CACHE_RESERVE_MB', 'q8Copies', 'value'],
  ['DS4_CUDA_NO_Q8_F16_CACHE', 'q8Copies', 'presence'],
];

const usualAutoCachePercent = 80;
const largestInteger = 2_147_483_647;

class Reader {
  readonly warnings: string[] = [];

  constructor(readonly variables: Variables) {}

  /** Many switches are on as soon as the variable exists, whatever it holds. */
  present(name: string): boolean {
    return this.variables[name] !== undefined;
  }

  /** An empty value counts as none. */
  text(name: string): string | undefined {
    const text = this.variables[name];
    return text === '' ? undefined : text;
  }

  #number(
    name: string,
    parse: (text: string) => number,
    invalid: (text: string) => void,
  ): number | undefined {
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
      invalid(text);
      return undefined;
    }
  }

  /** A number; undefined with a warning when it is none. */
  lenientNumber(
    name: string,
    parse: (text: string) => number,
    allowed: string,
  ): number | undefined {
    return this.#number(name, parse, (text) => {
      this.warnings.push(`${name}=${text} is left out of account: it should be ${allowed}`);
    });
  }

  /** A number that decides where memory goes: a wrong one must not be taken for none. Throws UsageError. */
  number(name: string, parse: (text: string) => number, allowed: string): number | undefined {
    return this.#number(name, parse, (text) => {
      throw new UsageError(`invalid value of ${name}: ${text} (it should be ${allowed})`);
    });
  }
}

function prefillChunk(reader: Reader): number | 'whole' | undefined {
  const name = 'DS4_METAL_PREFILL_CHUNK';
  const text = reader.text(name);
  if (text !== undefined && /^-[0-9]+$|^\+?0+$/.test(text)) {
    return 'whole';
  }
  return reader.lenientNumber(name, integerBetween(1, largestInteger), 'a whole number');
}

/** Two names of one setting. */
function streamFreeReserve(reader: Reader): number | undefined {
  const [name, alias] = ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', 'DS4_ROCM_STREAM_FREE_RESERVE_GB'];
  const gib = reader.number(name, plainDecimal(0, 1024), 'a number of GiB, 0 to 1024');
  const gb = reader.number(alias, plainInteger(2, 64), 'a whole number of GiB, 2 to 64');
  if (gib !== undefined && gb !== undefined && gib !== gb) {
    throw new UsageError(
      `${name}=${gib} and ${alias}=${gb} are two names of one setting and differ; unset one of them`,
    );
  }
  return gib ?? gb;
}

function registeredWeights(reader: Reader): GpuEnvironment['registeredWeights'] {
  const name = 'DS4_ROCM_REGISTERED_WEIGHTS';
  const text = reader.text(name);
  if (text !== undefined && text !== '0' && text !== '1') {
    reader.warnings.push(`${name}=${text} is left out of account: it should be 0 or 1`);
  }
  return text === '1' ? 'discrete' : text === '0' ? 'integrated' : 'auto';
}

/** The variable that asks for the copy of the model. */
function copyAskedBy(reader: Reader): string | undefined {
  const [name, olderName] = ['DS4_CUDA_COPY_MODEL_CHUNKED', 'DS4_CUDA_COPY_MODEL'];
  if (reader.text(name) === '0') {
    // Other programs take the mere presence for a yes, so this deserves a word.
    reader.warnings.push(`${name}=0 counts as off; unset it, or use --no-gpu-resident`);
  } else if (reader.present(name)) {
    return name;
  }
  return reader.text(olderName) === undefined ? undefined : olderName;
}

function autoCachePercent(reader: Reader): number | undefined {
  const name = 'DS4_SSD_AUTO_CACHE_PCT';
  const text = reader.text(name);
  if (text === undefined) {
    return undefined;
  }
  const percent = /^[0-9]+$/.test(text) ? Number(text) : NaN;
  if (percent >= 50 && percent <= 95) {
    return percent;
  }
  reader.warnings.push(
    `${name}=${text} is left out of account, and ${usualAutoCachePercent} is used: it should be a whole number, 50 to 95`,
  );
  return usualAutoCachePercent;
}

/** Outside of its range the nearest size is taken, as other programs that read this variable do. */
function copyChunkMib(reader: Reader): number | undefined {
  const name = 'DS4_CUDA_MODEL_COPY_CHUNK_MB';
  const [least, most] = [16, 4096];
  const allowed = `a whole number of MiB, ${least} to ${most}`;
  const mib = reader.lenientNumber(name, plainInteger(0, largestInteger), allowed);
  if (mib === undefined) {
    return undefined;
  }
  const taken = Math.min(Math.max(mib, least), most);
  if (taken !== mib) {
    reader.warnings.push(`${name}=${mib} is taken as ${taken}: it should be ${allowed}`);
  }
  return taken;
}

function gpuEnvironment(reader: Reader): GpuEnvironment {
  const mib = plainInteger(0, largestInteger);
  const mibText = 'a whole number of MiB';
  const victims = 'DS4_ROCM_STREAM_EVICT_PAST_LAYERS_FIRST';
  if (reader.text(victims) === '1') {
    reader.warnings.push(`${victims}=1 has no effect: --expert-policy says which expert leaves`);
  }
  const pinnedFallback = 'DS4_CUDA_NO_PINNED_ARENA_FALLBACK';
  // Nothing here keeps such copies, but a slip in a number should be seen where it is made.
  for (const name of ['DS4_CUDA_Q8_F16_CACHE_MB', 'DS4_CUDA_Q8_F16_CACHE_RESERVE_MB']) {
    reader.number(name, mib, mibText);
  }
  return {
    streamFreeReserveGib: streamFreeReserve(reader),
    hostMappedExpertFallback: reader.text('DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK') !== '0',
    registeredWeights: registeredWeights(reader),
    copyAskedBy: copyAskedBy(reader),
    copyChunkMib: copyChunkMib(reader),
    copyForbiddenBy: forbidCopy.find((name) => reader.present(name)),
    keepModelPages: reader.present('DS4_CUDA_KEEP_MODEL_PAGES'),
    autoCachePercent: autoCachePercent(reader),
    streamModelCacheGib: reader.number(
      'DS4_ROCM_STREAM_MODEL_CACHE_GB',
      plainInteger(1, 2 ** 24),
      'a whole number of GiB, 1 or more',
    ),
    readWorkers: reader.number(
      'DS4_ROCM_STREAM_READ_WORKERS',
      plainInteger(1, 1024),
      'a whole number, 1 to 1024',
    ),
    bufferedReadsBy: bufferedReads.find((name) => ![undefined, '0'].includes(reader.text(name))),
    pinnedFallbackForbiddenBy: reader.present(pinnedFallback) ? pinnedFallback : undefined,
    named: purposes
      .filter(([name, , how]) =>
        how === 'presence' ? reader.present(name) : reader.text(name) !== undefined,
      )
      .map(([name, about]) => ({ name, about })),
  };
}

function simulation(reader: Reader): SimulatedMachine | undefined {
  const text = reader.text('DS4_SIM');
  return text === undefined ? undefined : simulatedMachine('DS4_SIM', text);
}

/** DS4_DEBUG alone: whoever reports a bug must not fail over another variable. */
export function wantsDebug(variables: Variables = process.env): boolean {
  return new Reader(variables).present('DS4_DEBUG');
}

/**
 * Turns environment variables into typed options; docs/cli.md lists them.
 *
 * @throws UsageError for a value that decides about memory and cannot be read.
 */
export function readEnvironment(variables: Variables = process.env): Environment {
  const reader = new Reader(variables);
  return {
    lockFile: reader.text('DS4_LOCK_FILE') ?? '/tmp/ds4.lock',
    libraryDirectory: reader.text('DS4_LIBRARY_DIR'),
    home: reader.text('HOME'),
    terminal: reader.text('TERM'),
    noColor: reader.text('NO_COLOR') !== undefined,
    forceColor: !['0', undefined].includes(reader.text('FORCE_COLOR')),
    debug: wantsDebug(variables),
    prefillChunk: prefillChunk(reader),
    tokenTiming: reader.present('DS4_TOKEN_TIMING'),
    traceTop: reader.present('DS4_TRACE_TOP'),
    stats: statistics.some((name) => reader.present(name)),
    simulation: simulation(reader),
    gpu: gpuEnvironment(reader),
    warnings: reader.warnings,
  };
}
