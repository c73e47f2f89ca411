// What a link allows. Bytes, seconds, bytes per second.

/** Tokens per second when the bytes that are missing come over a link while nothing else goes on. */
export function linkLimit(
  residentSeconds: number,
  missedBytes: number,
  bytesPerSecond: number,
): number {
  return 1 / (residentSeconds + missedBytes / bytesPerSecond);
}

/** The same as a share of the speed with everything in device memory, 0 to 1. */
export function limitRatio(
  residentSeconds: number,
  missedBytes: number,
  bytesPerSecond: number,
): number {
  return residentSeconds * linkLimit(residentSeconds, missedBytes, bytesPerSecond);
}

/** Bytes that a token misses when experts are chosen evenly: the hit rate is the share of them that is there. */
export function evenlyMissed(tokenBytes: number, share: number): number {
  return tokenBytes * (1 - Math.min(1, Math.max(0, share)));
}
