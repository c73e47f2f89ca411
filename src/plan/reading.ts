import { gib } from './plan.js';
import type { PlanReason, PlanRequest, WeightSource } from './plan.js';

/** What of a placement decides how the file is read while the model runs. */
export interface Reading {
  readonly streams: boolean;
  /** Of experts that are streamed. */
  readonly source: WeightSource;
  /** Whether what was read is dropped from the page cache. */
  readonly dropReadPages: boolean;
  readonly fileBytes: number;
  /** Main memory that the page cache may have. */
  readonly cacheBytes: number;
}

/** Through the page cache or past it, and who says so. */
function pathText(
  { source: named, experts = {} }: PlanRequest,
  { source, fileBytes, cacheBytes }: Reading,
): string {
  const { bufferedBy } = experts;
  if (source === 'direct') {
    return named === 'direct'
      ? `experts are read past the page cache, because --direct-io was given` +
          (bufferedBy === undefined ? '' : `; ${bufferedBy} has no effect`)
      : `experts are read past the page cache, because that has ${gib(cacheBytes)} for a file of ${gib(fileBytes)}`;
  }
  const because =
    bufferedBy !== undefined
      ? `${bufferedBy} is set`
      : named === 'read'
        ? '--no-mmap was given'
        : named === 'mmap'
          ? '--mmap was given'
          : `that can hold the file: ${gib(cacheBytes)} for ${gib(fileBytes)}`;
  return `experts are read through the page cache, because ${because}`;
}

/** How the file is read while the model runs: each setting that has an effect, and where it comes from. */
export function readingReasons(request: PlanRequest, reading: Reading): PlanReason[] {
  const { streams, dropReadPages, fileBytes } = reading;
  const texts = [
    streams ? pathText(request, reading) : undefined,
    dropReadPages
      ? `what was read is dropped from the page cache: main memory has no room for the file (${gib(fileBytes)}) besides`
      : undefined,
    request.keepPages === true
      ? 'what was read stays in the page cache, because DS4_CUDA_KEEP_MODEL_PAGES is set'
      : undefined,
  ];
  return texts.flatMap((text) => (text === undefined ? [] : [{ kind: 'note', text }]));
}
