import type { ByteSource } from './byte-source.js';
import { GgufError } from './errors.js';
import { foreignFormat } from './foreign-format.js';
import type { GgufTensor } from './gguf-file.js';
import { HeaderReader } from './header-reader.js';
import { parseHeader, smallestFileBytes } from './header.js';
import type { Header } from './header.js';
import { RegularFile } from './regular-file.js';
import { tensorTable } from './tensor-table.js';

/** One file with its header checked against its size. */
export interface Part {
  readonly path: string;
  readonly bytes: number;
  readonly header: Header;
  readonly tensors: readonly GgufTensor[];
}

const magic = 'GGUF';

/**
 * Reads and checks the header of one file.
 *
 * @param named how messages call the file.
 * @param index of the file in a split set, noted in its tensors.
 * @throws GgufError
 */
export function readPart(path: string, named: string, index: number): Part {
  const file = RegularFile.open(path, named);
  try {
    return parsePart(file, index);
  } finally {
    file.close();
  }
}

/** What `readPart` does, for bytes from anywhere. */
export function parsePart(file: ByteSource, index: number): Part {
  if (file.bytes < smallestFileBytes) {
    throw new GgufError(
      `model file is too small to be GGUF: ${file.named} has ${file.bytes} bytes, ` +
        `the smallest header has ${smallestFileBytes}`,
    );
  }
  const reader = new HeaderReader(file);
  if (reader.bytes(magic.length, 'the magic').toString('latin1') !== magic) {
    throw new GgufError(
      `model is not a GGUF file: ${file.named} ${foreignFormat(beginning(file))}`,
    );
  }
  const header = parseHeader(reader);
  const tensors = tensorTable(header, { named: file.named, bytes: file.bytes, file: index });
  refuseConcatenation(file, header, tensors);
  return { path: file.path, bytes: file.bytes, header, tensors };
}

function beginning(file: ByteSource): Buffer {
  const bytes = Buffer.alloc(Math.min(64, file.bytes));
  file.read(bytes, 0);
  return bytes;
}

/**
 * Parts of a split model joined by `cat` look like the first part with something behind it. Reading on would lose
 * all tensors of the others without a word.
 */
function refuseConcatenation(
  file: ByteSource,
  header: Header,
  tensors: readonly GgufTensor[],
): void {
  const end = tensors.reduce(
    (last, { offset, bytes }) => Math.max(last, offset + bytes),
    header.endByte,
  );
  const aligned = Math.ceil(end / header.alignment) * header.alignment;
  const next = [end, aligned].find((position) => beginsGguf(file, position));
  if (next !== undefined) {
    throw new GgufError(
      `cannot open ${file.named}: another GGUF file begins at its byte ${next}, as when parts are joined ` +
        "with 'cat'; keep the parts apart and give ds4 the first one",
    );
  }
}

function beginsGguf(file: ByteSource, position: number): boolean {
  const bytes = Buffer.alloc(8);
  if (position + bytes.length > file.bytes) {
    return false;
  }
  file.read(bytes, position);
  const version = bytes.readUInt32LE(4);
  return bytes.toString('latin1', 0, 4) === magic && version >= 1 && version <= 3;
}
