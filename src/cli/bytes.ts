/** A size in binary units, as a person reads it. */
export function formatBytes(bytes: number): string {
  if (bytes >= 2 ** 30) {
    return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  }
  if (bytes >= 2 ** 20) {
    return `${(bytes / 2 ** 20).toFixed(2)} MiB`;
  }
  return `${(bytes / 2 ** 10).toFixed(2)} KiB`;
}
