import type { SimulatedCall, SimulatedFailure } from '../engine/index.js';
import { InvalidValue, UsageError } from './errors.js';
import type { PlannedMachine, SimulatedMachine } from './settings.js';
import { plainDecimal, plainInteger, word } from './values.js';

// Machines described in one argument: `vram=24,ram=64,kind=discrete`.

const gibibyte = 2 ** 30;
const mostGib = 2 ** 20;
const mostNumber = 2 ** 32 - 1;

/** A record and not a list, so that the compiler misses neither a call nor a name that is none. */
const calls: Readonly<Record<SimulatedCall, true>> = {
  allocate: true,
  copy: true,
  pin: true,
  map: true,
  send: true,
  wait: true,
  read: true,
  'memory-info': true,
  direct: true,
  short: true,
  lost: true,
  'read-at': true,
  'wrong-at': true,
};
export const simulatedCallNames: readonly string[] = Object.keys(calls);

function isCall(text: string): text is SimulatedCall {
  return Object.hasOwn(calls, text);
}

/** Counted are the reads of one place of a file, which N is. */
const atOffset: readonly SimulatedCall[] = ['read-at', 'wrong-at'];

/** `CALL:N` or `CALL:N:COUNT`. */
function failure(text: string): SimulatedFailure {
  const [call = '', at = '', ...more] = text.split(':');
  // What is lost does not come back.
  if (!isCall(call) || more.length > (call === 'lost' ? 0 : 1)) {
    throw new InvalidValue(text);
  }
  const [count = call === 'lost' ? '0' : '1'] = more;
  return {
    call,
    at: plainInteger(atOffset.includes(call) ? 0 : 1, Number.MAX_SAFE_INTEGER)(at),
    count: plainInteger(0, mostNumber)(count),
  };
}

/** What a key does with the text behind its equals sign. */
interface Key {
  readonly allowed: string;
  /** Throws InvalidValue. */
  readonly set: (text: string) => void;
}

/** Below this a transfer would never end. */
const slowestRate = 0.001;
/** `DS4_SIM_MOST_DEVICES` of native/include/ds4.h. */
const mostDevices = 16;
const count = {
  allowed: `a number from 1 to ${mostDevices}`,
  parse: plainInteger(1, mostDevices),
};
const gib = { allowed: 'GiB, such as 24 or 0.5', parse: scaled(0, mostGib, gibibyte) };
const rate = {
  allowed: `GB/s, ${slowestRate} or more, such as 25`,
  parse: scaled(slowestRate, 1e6, 1e9),
};
const latency = { allowed: 'microseconds, such as 80', parse: scaled(0, 4e6, 1000) };
const readWait = { allowed: 'milliseconds up to 60000, such as 20', parse: scaled(0, 6e4, 1000) };
const kind = {
  allowed: 'discrete or integrated',
  parse: word(['discrete', 'integrated']),
};
const fail = {
  allowed: `CALL:N or CALL:N:COUNT, where CALL is one of ${simulatedCallNames.join(', ')}`,
  parse: failure,
};

function key<Value>(
  grammar: { readonly allowed: string; readonly parse: (text: string) => Value },
  keep: (value: Value) => void,
): Key {
  return {
    allowed: grammar.allowed,
    set: (text) => {
      keep(grammar.parse(text));
    },
  };
}

function scaled(lowest: number, highest: number, unit: number): (text: string) => number {
  const parse = plainDecimal(lowest, highest);
  return (text) => Math.round(parse(text) * unit);
}

/**
 * Reads a comma list `key=value` in which nothing stands twice.
 *
 * @throws UsageError with what is allowed; `source` is the option or variable that has the text.
 */
function readPairs(source: string, text: string, keys: Readonly<Record<string, Key>>): void {
  const seen = new Set<string>();
  for (const part of text.split(',')) {
    const equals = part.indexOf('=');
    const name = equals < 0 ? part : part.slice(0, equals);
    const value = equals < 0 ? '' : part.slice(equals + 1);
    const known = Object.hasOwn(keys, name) ? keys[name] : undefined;
    if (known === undefined) {
      const names = Object.keys(keys).join(', ');
      throw new UsageError(`${source}: unknown key '${name}'; the keys are ${names}`);
    }
    if (value === '') {
      throw new UsageError(`${source}: ${name} has no value; it takes ${known.allowed}`);
    }
    if (seen.has(name)) {
      throw new UsageError(`${source}: ${name} is given twice`);
    }
    seen.add(name);
    try {
      known.set(value);
    } catch (thrown) {
      throw thrown instanceof InvalidValue
        ? new UsageError(`${source}: invalid value of ${name}: ${value}; it takes ${known.allowed}`)
        : thrown;
    }
  }
}

type Draft<Fields> = { -readonly [Name in keyof Fields]: Fields[Name] };

/**
 * The machine of `--sim`. What is left out is that of a card with a link of PCIe 4 x16, kernels that read main memory at
 * half its rate, and one fast NVMe drive.
 *
 * @throws UsageError
 */
export function simulatedMachine(source: string, text: string): SimulatedMachine {
  const machine: Draft<SimulatedMachine> = {
    kind: 'discrete',
    devices: 1,
    vramBytes: 0,
    usedBytes: 0,
    ramBytes: undefined,
    linkBytesPerSecond: 25e9,
    mappedBytesPerSecond: 12e9,
    diskBytesPerSecond: 5e9,
    linkNs: 10_000,
    diskNs: 80_000,
  };
  readPairs(source, text, {
    vram: key(gib, (bytes) => (machine.vramBytes = bytes)),
    used: key(gib, (bytes) => (machine.usedBytes = bytes)),
    ram: key(gib, (bytes) => (machine.ramBytes = bytes)),
    kind: key(kind, (name) => (machine.kind = name)),
    link: key(rate, (bytes) => (machine.linkBytesPerSecond = bytes)),
    mapped: key(rate, (bytes) => (machine.mappedBytesPerSecond = bytes)),
    disk: key(rate, (bytes) => (machine.diskBytesPerSecond = bytes)),
    'link-us': key(latency, (ns) => (machine.linkNs = ns)),
    'disk-us': key(latency, (ns) => (machine.diskNs = ns)),
    'slow-ms': key(readWait, (us) => (machine.readWaitUs = us)),
    devices: key(count, (devices) => (machine.devices = devices)),
    fail: key(fail, (value) => (machine.failure = value)),
  });
  if (machine.vramBytes === 0) {
    throw new UsageError(`${source} needs vram, more than 0: ${gib.allowed}`);
  }
  if (machine.usedBytes > machine.vramBytes) {
    throw new UsageError(
      `${source}: used (${machine.usedBytes / gibibyte} GiB) is more than vram (${machine.vramBytes / gibibyte} GiB)`,
    );
  }
  return machine;
}

/** Memory of one GPU, or of each of several: `20+20`. None when it is 0. */
const gibOfEach = {
  allowed: `GiB, such as 24 or, of two GPUs, 20+20; 0 for no GPU, and at most ${mostDevices} of them`,
  parse: (text: string): readonly number[] => {
    const each = text.split('+').map(gib.parse);
    const isNone = each.length === 1 && each[0] === 0;
    if ((each.includes(0) && !isNone) || each.length > mostDevices) {
      throw new InvalidValue(text);
    }
    return isNone ? [] : each;
  },
};

/**
 * The machine of `--plan-for`, with one GPU, several of one kind (`vram=20+20`), or none (`vram=0`): then the plan is for the
 * CPU.
 *
 * @throws UsageError
 */
export function plannedMachine(source: string, text: string): PlannedMachine {
  const machine: Draft<Partial<PlannedMachine>> & Pick<PlannedMachine, 'kind'> = {
    kind: 'discrete',
  };
  readPairs(source, text, {
    vram: key(gibOfEach, (bytes) => (machine.vramBytes = bytes)),
    ram: key(gib, (bytes) => (machine.ramBytes = bytes)),
    kind: key(kind, (name) => (machine.kind = name)),
  });
  const { vramBytes, ramBytes } = machine;
  if (vramBytes === undefined || ramBytes === undefined) {
    throw new UsageError(`${source} needs vram and ram, such as vram=24,ram=64`);
  }
  return { vramBytes, ramBytes, kind: machine.kind };
}
