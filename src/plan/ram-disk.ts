// A file in a RAM disk is in main memory already. The system does not count it among what is available, and mapping or
// pinning it takes none of that; copies of it do.

/** Main memory that pinned weights take beside the file: none where they are pages of a file in a RAM disk. */
export function pinnedCost(
  { isFileInRamDisk = false }: { readonly isFileInRamDisk?: boolean | undefined },
  pinnedBytes: number,
  pinCopies: boolean,
): number {
  return isFileInRamDisk && !pinCopies ? 0 : pinnedBytes;
}
