import type { Metadata } from './metadata.js';

/** One tensor of the directory, checked against its file. */
export interface GgufTensor {
  readonly name: string;
  /** Number of the element type in the file format; `ggmlTypeName` names it. */
  readonly type: number;
  /** One to four, fastest first, none zero. */
  readonly dims: readonly number[];
  /** Index into `GgufFile.files`. */
  readonly file: number;
  /** Bytes from the start of that file. */
  readonly offset: number;
  /** Exactly what type and dims need, without padding. */
  readonly bytes: number;
}

/** What a GGUF file, or a set of split files, says about itself. Holds no open file. */
export interface GgufFile {
  readonly version: number;
  /** Of the tensor data, in bytes. */
  readonly alignment: number;
  /** Parts in order; one for a file that is not split. Paths are as given, symbolic links not followed. */
  readonly files: readonly { readonly path: string; readonly bytes: number }[];
  /** Of the first part: the others repeat only what describes the split. */
  readonly metadata: Metadata;
  /** All parts, in file order. */
  readonly tensors: readonly GgufTensor[];
}
