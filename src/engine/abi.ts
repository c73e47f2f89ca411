// The one file that speaks to native code. Everything above it is plain TypeScript with no idea of C.
import koffi from 'koffi';
import type { LibraryHandle } from 'koffi';
import { LibraryError, MissingDriverError, nativeError, Status } from './errors.js';
import { layoutOf, structs } from './layout.js';
import type { FieldsOf, StructName } from './layout.js';
import { findLibrary, libraryCandidates, missingDriverFile } from './library.js';
import type { BackendName } from './library.js';

declare const brand: unique symbol;
type Handle<Kind extends string> = bigint & { readonly [brand]: Kind };
/** koffi hands out bare bigints; the brands keep the handles apart. */
export type ModelHandle = Handle<'model'>;
export type SessionHandle = Handle<'session'>;
export type TelemetryHandle = Handle<'telemetry'>;
export type LockHandle = Handle<'lock'>;
interface Handles {
  readonly model: ModelHandle;
  readonly session: SessionHandle;
  readonly telemetry: TelemetryHandle;
  readonly lock: LockHandle;
}

export const abiVersion = 1;
const errorTextBytes = 1024;

/**
 * Native memory with bump allocation: what a call reads or writes lives here and nowhere else, because the
 * garbage collector may move a typed array while an asynchronous call runs.
 */
export class Arena {
  readonly #block: unknown;
  readonly #address: bigint;
  readonly #buffer: ArrayBuffer;
  readonly #view: DataView;
  #used = 0;
  #open = true;

  constructor(readonly bytes: number) {
    this.#block = koffi.alloc('uint8_t', bytes);
    this.#address = koffi.address(this.#block);
    this.#buffer = koffi.view(this.#block, bytes);
    this.#view = new DataView(this.#buffer);
  }

  /** Offset of `bytes` fresh bytes; contents are undefined. */
  take(bytes: number, alignment = 8): number {
    // koffi.alloc promises the alignment of malloc, 16.
    const offset = Math.ceil(this.#used / alignment) * alignment;
    if (!this.#open || offset + bytes > this.bytes) {
      throw new RangeError(
        `native arena of ${this.bytes} bytes cannot hold ${bytes} more after ${offset}`,
      );
    }
    this.#used = offset + bytes;
    return offset;
  }

  address(offset: number): bigint {
    return this.#address + BigInt(offset);
  }

  get view(): DataView {
    return this.#view;
  }

  int32(offset: number, count: number): Int32Array {
    return new Int32Array(this.#buffer, offset, count);
  }

  float32(offset: number, count: number): Float32Array {
    return new Float32Array(this.#buffer, offset, count);
  }

  uint32(offset: number, count: number): Uint32Array {
    return new Uint32Array(this.#buffer, offset, count);
  }

  bytesAt(offset: number, count: number): Uint8Array {
    return new Uint8Array(this.#buffer, offset, count);
  }

  /** A handle that a call left at `offset`. */
  handle<Kind extends keyof Handles>(_kind: Kind, offset: number): Handles[Kind] {
    return this.#view.getBigUint64(offset, true) as Handles[Kind];
  }

  /** Address of a NUL-terminated copy of `text`. */
  string(text: string): bigint {
    const encoded = new TextEncoder().encode(text);
    const offset = this.take(encoded.length + 1, 1);
    this.bytesAt(offset, encoded.length).set(encoded);
    this.view.setUint8(offset + encoded.length, 0);
    return this.address(offset);
  }

  /** After this no view of the arena may be touched. */
  free(): void {
    if (this.#open) {
      this.#open = false;
      koffi.free(this.#block);
    }
  }
}

/** One struct of ds4.h inside an arena, zeroed, with its `size` field set. */
export class Struct<Name extends StructName> {
  readonly #layout;
  readonly offset: number;

  constructor(
    readonly arena: Arena,
    readonly name: Name,
    offset?: number,
  ) {
    this.#layout = layoutOf(name);
    this.offset = offset ?? arena.take(this.#layout.bytes);
    arena.bytesAt(this.offset, this.#layout.bytes).fill(0);
    if (this.#layout.offsets.has('size')) {
      this.arena.view.setUint32(this.offset, this.#layout.bytes, true);
    }
  }

  get address(): bigint {
    return this.arena.address(this.offset);
  }

  #at(field: FieldsOf<Name>): number {
    const offset = this.#layout.offsets.get(field);
    if (offset === undefined) {
      throw new RangeError(`${this.name} has no field ${field}`);
    }
    return this.offset + offset;
  }

  setU32(field: FieldsOf<Name>, value: number): void {
    this.arena.view.setUint32(this.#at(field), value, true);
  }

  setI32(field: FieldsOf<Name>, value: number): void {
    this.arena.view.setInt32(this.#at(field), value, true);
  }

  setF32(field: FieldsOf<Name>, value: number): void {
    this.arena.view.setFloat32(this.#at(field), value, true);
  }

  setU64(field: FieldsOf<Name>, value: number | bigint, index = 0): void {
    this.arena.view.setBigUint64(this.#at(field) + 8 * index, BigInt(value), true);
  }

  u32(field: FieldsOf<Name>): number {
    return this.arena.view.getUint32(this.#at(field), true);
  }

  /** As a number; throws above 2^53, which no count or size of this program reaches. */
  u64(field: FieldsOf<Name>): number {
    const value = this.arena.view.getBigUint64(this.#at(field), true);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) {
      throw new RangeError(`${this.name}.${field} is ${value.toString()}`);
    }
    return Number(value);
  }

  text(field: FieldsOf<Name>, capacity: number): string {
    return textAt(this.arena, this.#at(field), capacity);
  }
}

function textAt(arena: Arena, offset: number, capacity: number): string {
  const bytes = arena.bytesAt(offset, capacity);
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(bytes.slice(0, end < 0 ? capacity : end));
}

/** A `ds4_error` with its text, to be passed to one call at a time. */
export class ErrorSlot {
  static readonly bytes = 64 + errorTextBytes;
  readonly #struct: Struct<'ds4_error'>;
  readonly #text: number;

  constructor(readonly arena: Arena) {
    this.#struct = new Struct(arena, 'ds4_error');
    this.#text = arena.take(errorTextBytes, 1);
    this.#struct.setU32('capacity', errorTextBytes);
    this.#struct.setU64('text', arena.address(this.#text));
    this.arena.view.setUint8(this.#text, 0);
  }

  get address(): bigint {
    return this.#struct.address;
  }

  /** Throws the sentence of a failed call. */
  check(call: string, status: number): void {
    if (status !== Status.ok) {
      throw nativeError(call, status, textAt(this.arena, this.#text, errorTextBytes));
    }
  }
}

type Pointer = bigint;
type Call<Arguments extends readonly (Pointer | number | string)[], Result> = (
  ...args: Arguments
) => Result;
type AsyncCall<Arguments extends readonly (Pointer | number | string)[]> = (
  ...args: Arguments
) => Promise<number>;

/** The functions of ds4.h with typed arguments. Long ones run off the event loop. */
export interface Library {
  readonly backend: BackendName;
  readonly path: string;
  readonly devices: Call<[Pointer, number, Pointer, Pointer], number>;
  readonly simulate: Call<[Pointer, Pointer], number>;
  readonly telemetryOpen: Call<[Pointer, Pointer], number>;
  readonly telemetryWords: Call<[TelemetryHandle], Pointer>;
  readonly telemetryClose: Call<[TelemetryHandle], void>;
  readonly modelOpen: AsyncCall<[Pointer, Pointer, Pointer]>;
  readonly modelClose: Call<[ModelHandle], void>;
  readonly modelDescribe: Call<[ModelHandle, Pointer, Pointer], number>;
  readonly seedExperts: AsyncCall<[ModelHandle, Pointer, number, Pointer, Pointer]>;
  readonly listExperts: Call<[ModelHandle, Pointer, number, Pointer, Pointer], number>;
  readonly sessionOpen: AsyncCall<[ModelHandle, Pointer, Pointer, Pointer]>;
  readonly sessionClose: Call<[SessionHandle], void>;
  readonly sessionMeasure: Call<[SessionHandle, Pointer, Pointer], number>;
  readonly eval: AsyncCall<[SessionHandle, Pointer, Pointer, Pointer]>;
  readonly checkpoint: AsyncCall<[SessionHandle, Pointer]>;
  readonly rewind: AsyncCall<[SessionHandle, number, Pointer, Pointer]>;
  readonly lockAcquire: Call<[string, Pointer, Pointer, Pointer], number>;
  readonly lockRelease: Call<[LockHandle], void>;
}

/** Crossings into native code since the process began, for the test of the crossing budget. */
let crossings = 0;
export function crossingCount(): number {
  return crossings;
}

/** A view of words that native code owns and writes; valid until its owner is closed. */
export function viewWords(address: Pointer, count: number): BigUint64Array {
  return new BigUint64Array(koffi.view(address, 8 * count));
}

const loaded = new Map<string, Library>();

/**
 * Loads a backend's library once per process and checks that both sides mean the same header.
 *
 * @throws LibraryError naming the backend, the file and what to do; MissingDriverError when the driver is not installed.
 */
export function loadLibrary(backend: BackendName, directory?: string): Library {
  const path = findLibrary(backend, directory);
  if (path === undefined) {
    const places = libraryCandidates(backend, directory).join(' and ');
    throw new LibraryError(
      backend,
      `the ${backend} backend is not built: no library at ${places}; build it with: make ${backend}`,
    );
  }
  const known = loaded.get(path);
  if (known !== undefined) {
    return known;
  }
  const library = bind(backend, path);
  loaded.set(path, library);
  return library;
}

function bind(backend: BackendName, path: string): Library {
  let native: LibraryHandle;
  try {
    native = koffi.load(path);
  } catch (reason) {
    const text = reason instanceof Error ? reason.message : String(reason);
    const missing = missingDriverFile(backend, text);
    if (missing !== undefined) {
      throw new MissingDriverError(
        backend,
        `the driver's library ${missing.file} is not on this machine, and ${path} needs it; ` +
          `install ${missing.from} (for one of another version rebuild with: make ${backend}), or use the CPU: --cpu`,
      );
    }
    throw new LibraryError(backend, `cannot load the ${backend} backend from ${path}: ${text}`);
  }
  const sync = (prototype: string): ((...args: unknown[]) => unknown) => {
    const call = native.func(prototype);
    return (...args) => {
      crossings += 1;
      return call(...args) as unknown;
    };
  };
  const asynchronous = (prototype: string) => {
    const call = native.func(prototype);
    return (...args: unknown[]): Promise<number> => {
      crossings += 1;
      return new Promise((resolve, reject) => {
        call.async(...args, (error: unknown, status: number) => {
          if (error === null || error === undefined) {
            resolve(status);
          } else {
            reject(
              error instanceof Error ? error : new Error('the native call could not be started'),
            );
          }
        });
      });
    };
  };
  checkAbi(backend, path, native);
  return {
    backend,
    path,
    devices: sync('int32_t ds4_devices(void *, uint32_t, void *, void *)') as Library['devices'],
    simulate: sync('int32_t ds4_simulate(void *, void *)') as Library['simulate'],
    telemetryOpen: sync('int32_t ds4_telemetry_open(void *, void *)') as Library['telemetryOpen'],
    telemetryWords: sync('void *ds4_telemetry_words(void *)') as Library['telemetryWords'],
    telemetryClose: sync('void ds4_telemetry_close(void *)'),
    modelOpen: asynchronous('int32_t ds4_model_open(void *, void *, void *)'),
    modelClose: sync('void ds4_model_close(void *)'),
    modelDescribe: sync(
      'int32_t ds4_model_describe(void *, void *, void *)',
    ) as Library['modelDescribe'],
    seedExperts: asynchronous('int32_t ds4_seed_experts(void *, void *, uint32_t, void *, void *)'),
    listExperts: sync(
      'int32_t ds4_list_experts(void *, void *, uint32_t, void *, void *)',
    ) as Library['listExperts'],
    sessionOpen: asynchronous('int32_t ds4_session_open(void *, void *, void *, void *)'),
    sessionClose: sync('void ds4_session_close(void *)'),
    sessionMeasure: sync(
      'int32_t ds4_session_measure(void *, void *, void *)',
    ) as Library['sessionMeasure'],
    eval: asynchronous('int32_t ds4_eval(void *, void *, void *, void *)'),
    checkpoint: asynchronous('int32_t ds4_checkpoint(void *, void *)'),
    rewind: asynchronous('int32_t ds4_rewind(void *, uint64_t, void *, void *)'),
    lockAcquire: sync(
      'int32_t ds4_lock_acquire(const char *, void *, void *, void *)',
    ) as Library['lockAcquire'],
    lockRelease: sync('void ds4_lock_release(void *)'),
  };
}

function checkAbi(backend: BackendName, path: string, native: LibraryHandle): void {
  const rebuild = `rebuild it with: make ${backend}`;
  let version: number;
  try {
    version = native.func('uint32_t ds4_abi_version()')() as number;
  } catch {
    throw new LibraryError(backend, `${path} is not a ds4 library; ${rebuild}`);
  }
  if (version !== abiVersion) {
    throw new LibraryError(
      backend,
      `${path} has interface version ${version}, this program needs ${abiVersion}; ${rebuild}`,
    );
  }
  const describe = native.func('uint32_t ds4_abi_layout(const char *, _Out_ uint32_t *, uint32_t)');
  for (const name of Object.keys(structs) as StructName[]) {
    const layout = layoutOf(name);
    const expected = [layout.bytes, ...layout.offsets.values()];
    const found = new Uint32Array(64);
    const count = describe(name, found, found.length) as number;
    if (count !== expected.length || expected.some((value, index) => found[index] !== value)) {
      throw new LibraryError(
        backend,
        `${path} lays out ${name} differently from this program; ${rebuild}`,
      );
    }
  }
}
