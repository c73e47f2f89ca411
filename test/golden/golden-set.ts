import { existsSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

/** The golden sets in the tree, and where to look for those that are too large for it. */
const treeFolder = resolve(import.meta.dirname, '..', 'fixtures');
const extraFolder = process.env['DS4_FIXTURES'];

interface TensorEntry {
  readonly dtype: 'f32' | 'i32';
  readonly shape: readonly number[];
  readonly offset: number;
}

export interface GoldenSequence {
  readonly name: string;
  readonly length: number;
  /** First position that has logits. */
  readonly logits_from: number;
}

interface GoldenInfo {
  readonly model: string;
  readonly file: string;
  readonly vocab_size: number;
  readonly layers: number;
  readonly compress_ratios: readonly number[];
  readonly sequences: readonly GoldenSequence[];
  readonly tensors: Readonly<Record<string, TensorEntry>>;
}

export interface GoldenTensor<Values> {
  readonly shape: readonly number[];
  readonly values: Values;
}

/** One set of reference values; `test/golden/README.md` says where they come from. */
export class GoldenSet {
  readonly #raw: Buffer;
  readonly info: GoldenInfo;
  readonly modelPath: string;

  private constructor(
    readonly tag: string,
    folder: string,
  ) {
    this.info = JSON.parse(readFileSync(join(folder, `golden-${tag}.json`), 'utf8')) as GoldenInfo;
    this.#raw = readFileSync(join(folder, this.info.file));
    this.modelPath = join(folder, this.info.model);
  }

  /** Undefined when neither the tree nor DS4_FIXTURES has the set. */
  static find(tag: string): GoldenSet | undefined {
    const folder = [treeFolder, extraFolder].find(
      (candidate) => candidate !== undefined && existsSync(join(candidate, `golden-${tag}.json`)),
    );
    return folder === undefined ? undefined : new GoldenSet(tag, folder);
  }

  has(name: string): boolean {
    return name in this.info.tensors;
  }

  #slice(name: string, dtype: 'f32' | 'i32'): { shape: readonly number[]; bytes: ArrayBuffer } {
    const entry = this.info.tensors[name];
    if (entry?.dtype !== dtype) {
      throw new Error(`no ${dtype} tensor ${name} in golden set ${this.tag}`);
    }
    const count = entry.shape.reduce((product, dim) => product * dim, 1);
    const bytes = new Uint8Array(
      this.#raw.subarray(entry.offset, entry.offset + 4 * count),
    ).slice();
    return { shape: entry.shape, bytes: bytes.buffer };
  }

  floats(name: string): GoldenTensor<Float32Array> {
    const { shape, bytes } = this.#slice(name, 'f32');
    return { shape, values: new Float32Array(bytes) };
  }

  integers(name: string): GoldenTensor<Int32Array> {
    const { shape, bytes } = this.#slice(name, 'i32');
    return { shape, values: new Int32Array(bytes) };
  }
}

export interface RowErrors {
  /** |got - want| / |want| of the median and of the worst row. */
  readonly median: number;
  readonly worst: number;
  readonly worstRow: number;
  /** Share of rows whose largest value is at the same place. */
  readonly argmaxShare: number;
}

function argmax(values: Float32Array): number {
  return values.reduce(
    (best, value, index) => (value > (values[best] ?? Number.NaN) ? index : best),
    0,
  );
}

/** Relative L2 error of each row of `want`'s last dimension. A NaN makes a row's error NaN, which no bound accepts. */
export function rowErrors(got: Float32Array, want: Float32Array, columns: number): RowErrors {
  if (got.length !== want.length) {
    throw new Error(`${got.length} values against ${want.length}`);
  }
  const rows = want.length / columns;
  const errors: number[] = [];
  let same = 0;
  for (let row = 0; row < rows; row += 1) {
    const g = got.subarray(row * columns, (row + 1) * columns);
    const w = want.subarray(row * columns, (row + 1) * columns);
    let difference = 0;
    let norm = 0;
    w.forEach((value, index) => {
      difference += ((g[index] ?? Number.NaN) - value) ** 2;
      norm += value ** 2;
    });
    errors.push(Math.sqrt(difference / norm));
    same += argmax(g) === argmax(w) ? 1 : 0;
  }
  const sorted = [...errors].sort((a, b) => a - b);
  const worst = errors.some(Number.isNaN) ? Number.NaN : Math.max(...errors);
  return {
    median: sorted[rows >> 1] ?? Number.NaN,
    worst,
    worstRow: errors.indexOf(worst),
    argmaxShare: same / rows,
  };
}

/** Says how close a comparison was, also when it passes. */
export function report(what: string, errors: RowErrors): void {
  process.stdout.write(
    `${what}: median ${errors.median.toExponential(2)}, worst ${errors.worst.toExponential(2)} ` +
      `(row ${errors.worstRow}), argmax equal ${(100 * errors.argmaxShare).toFixed(1)} %\n`,
  );
}
