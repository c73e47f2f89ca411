import { elementType, ggmlTypeName } from './element-type.js';
import { GgufError } from './errors.js';
import type { GgufTensor } from './gguf-file.js';
import type { Header, TensorInfo } from './header.js';
import { printable } from './printable.js';

/** Where a directory's tensors must lie. */
export interface DataRange {
  /** How messages call the file: `model 'x.gguf'`. */
  readonly named: string;
  readonly bytes: number;
  /** Index of the file in a split set. */
  readonly file: number;
}

interface Placed {
  readonly tensor: TensorInfo;
  readonly shown: string;
  /** Absolute. */
  readonly start: bigint;
  readonly bytes: bigint;
}

/**
 * Checks a tensor directory against the file and turns it into a table that can be used without further checks: sizes
 * fit their types, every tensor lies inside the file, none overlaps another, no name occurs twice. All arithmetic is
 * exact, so no offset can wrap back into the file.
 *
 * @throws GgufError naming the tensor and the numbers.
 */
export function tensorTable(header: Header, range: DataRange): GgufTensor[] {
  const names = new Set<string>();
  const placed = header.tensors.map((tensor) => {
    const shown = `tensor '${printable(tensor.name)}'`;
    if (names.has(tensor.name)) {
      throw refusal(range, `${shown} occurs twice`);
    }
    names.add(tensor.name);
    return place(tensor, shown, header, range);
  });
  requireInside(placed, range);
  requireApart(placed, range);
  return placed.map(({ tensor, start, bytes }) => ({
    name: tensor.name,
    type: tensor.type,
    dims: tensor.dims.map(Number),
    file: range.file,
    offset: Number(start),
    bytes: Number(bytes),
  }));
}

function refusal({ named }: DataRange, problem: string): GgufError {
  return new GgufError(`invalid tensor directory in ${named}: ${problem}`);
}

/** `Q8_0 [4096, 512]` */
function described({ type, dims }: TensorInfo): string {
  return `${ggmlTypeName(type)} [${dims.join(', ')}]`;
}

function place(tensor: TensorInfo, shown: string, header: Header, range: DataRange): Placed {
  const layout = elementType(tensor.type);
  if (layout === undefined) {
    throw refusal(range, `${shown} has the unknown element type ${tensor.type}`);
  }
  let values = 1n;
  for (const [index, dim] of tensor.dims.entries()) {
    if (dim === 0n) {
      throw refusal(range, `dimension ${index} of ${shown} [${tensor.dims.join(', ')}] is 0`);
    }
    values *= dim;
  }
  if (values > BigInt(Number.MAX_SAFE_INTEGER)) {
    throw refusal(range, `the dimensions of ${shown} [${tensor.dims.join(', ')}] overflow`);
  }
  const blockValues = BigInt(layout.blockValues);
  const row = tensor.dims[0] ?? 0n;
  if (row % blockValues !== 0n) {
    throw refusal(
      range,
      `${shown} has rows of ${row.toString()} values, ${layout.name} stores blocks of ${blockValues.toString()}`,
    );
  }
  if (tensor.offset % BigInt(header.alignment) !== 0n) {
    throw refusal(
      range,
      `${shown} has the offset ${tensor.offset.toString()}, which is no multiple of the alignment ${header.alignment}`,
    );
  }
  return {
    tensor,
    shown,
    start: BigInt(header.dataByte) + tensor.offset,
    bytes: (values / blockValues) * BigInt(layout.blockBytes),
  };
}

/** The usual reason is a download that stopped, so the message has the size the whole file should have. */
function requireInside(placed: readonly Placed[], range: DataRange): void {
  const fileBytes = BigInt(range.bytes);
  const outside = placed.filter(({ start, bytes }) => start + bytes > fileBytes);
  const [first] = outside;
  if (first === undefined) {
    return;
  }
  const wanted = placed.reduce(
    (end, { start, bytes }) => (start + bytes > end ? start + bytes : end),
    0n,
  );
  const others = outside.length > 1 ? ` (and ${outside.length - 1} more)` : '';
  throw new GgufError(
    `tensor points outside GGUF file: ${first.shown}, ${described(first.tensor)} at offset ` +
      `${first.tensor.offset.toString()}, takes ${first.bytes.toString()} bytes from byte ${first.start.toString()} on, ` +
      `but ${range.named} has ${range.bytes} bytes${others}; ` +
      `by its header it should have at least ${wanted.toString()}: download or convert it again`,
  );
}

function requireApart(placed: readonly Placed[], range: DataRange): void {
  const inOrder = [...placed].sort((a, b) => (a.start < b.start ? -1 : a.start > b.start ? 1 : 0));
  let previous: Placed | undefined;
  for (const next of inOrder) {
    if (previous !== undefined && previous.start + previous.bytes > next.start) {
      const missing = previous.start + previous.bytes - next.start;
      throw refusal(
        range,
        `${previous.shown}, ${described(previous.tensor)}, needs ${previous.bytes.toString()} bytes from byte ` +
          `${previous.start.toString()} on, but ${next.shown} begins at byte ${next.start.toString()}: ` +
          `they overlap by ${missing.toString()} bytes`,
      );
    }
    previous = next;
  }
}
