/** What people pass by mistake, recognised by its first bytes, with what to do. */
const foreign: readonly { readonly is: (beginning: string) => boolean; readonly hint: string }[] = [
  {
    is: (beginning) => beginning.startsWith('version https://git-lfs'),
    hint: "is a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'",
  },
  {
    is: (beginning) => /^\s*<(!doctype|html|\?xml)/i.test(beginning),
    hint: 'is a web page; the download went wrong',
  },
  {
    is: (beginning) => beginning.startsWith('PK'),
    hint: 'is a ZIP archive or a PyTorch checkpoint; ds4 needs a GGUF file',
  },
  {
    // A 64-bit length, then JSON.
    is: (beginning) => beginning.startsWith('{"', 8),
    hint: 'looks like a safetensors file; ds4 needs a GGUF file',
  },
  {
    is: (beginning) => /^(lmgg|fmgg|tjgg|algg)/.test(beginning),
    hint: 'is a GGML file from before GGUF; convert it again',
  },
  {
    is: (beginning) => beginning.startsWith('FUGG'),
    hint: 'is a big-endian GGUF file, ds4 reads little-endian ones',
  },
  {
    is: (beginning) =>
      ['\x1f\x8b', '\x28\xb5\x2f\xfd', '\xfd7zXZ'].some((start) => beginning.startsWith(start)),
    hint: 'is compressed; unpack it first',
  },
  {
    is: (beginning) => beginning === '\0'.repeat(beginning.length),
    hint: 'begins with zeros; is the download complete?',
  },
];

/** Completes "model is not a GGUF file: 'x' ...". */
export function foreignFormat(beginning: Buffer): string {
  const text = beginning.toString('latin1');
  return (
    foreign.find(({ is }) => is(text))?.hint ??
    `begins with the bytes ${beginning.toString('hex', 0, 4)}, not with 'GGUF'`
  );
}
