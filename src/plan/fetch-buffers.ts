import { failuresOf } from './failures.js';
import { gib, PlanError } from './plan.js';
import type { PlanReason, PlanRequest } from './plan.js';

// As native/runtime/fetch_queue.cpp has them: buffers of each reader, and of whoever waits, who reads too.
const buffersPerReader = 2;
const bufferBytes = 4 * 2 ** 20 + 2 * 4096;
const usualReaders = 16;
/** Of the free memory, the share that buffers of unnamed readers may take. */
const usualShare = 1 / 8;

/** Who reads experts and pages while the model computes, and the main memory they read into. */
export interface FetchBuffers {
  readonly readers: number;
  readonly bytes: number;
}

function buffersOf(readers: number): FetchBuffers {
  return { readers, bytes: (readers + 1) * buffersPerReader * bufferBytes };
}

/**
 * As many readers as were named; else 16, or fewer where main memory is short. One, once the buffers of more could not be had.
 *
 * @throws PlanError when main memory cannot hold what the named ones read into.
 */
export function fetchBuffers(request: PlanRequest, memoryAvailable: number): FetchBuffers {
  const readThreads = failuresOf(request, 'readers') > 0 ? 1 : request.readThreads;
  let buffers = buffersOf(readThreads ?? usualReaders);
  while (
    readThreads === undefined &&
    buffers.readers > 1 &&
    buffers.bytes > memoryAvailable * usualShare
  ) {
    buffers = buffersOf(Math.floor(buffers.readers / 2));
  }
  if (buffers.bytes > memoryAvailable) {
    throw new PlanError(
      `the buffers of ${buffers.readers} ${buffers.readers === 1 ? 'reader' : 'readers'} of weights need ${gib(buffers.bytes)} of main memory, ` +
        `${gib(Math.max(0, memoryAvailable))} are free; ` +
        (readThreads === undefined
          ? 'free some memory'
          : 'let DS4_ROCM_STREAM_READ_WORKERS name fewer'),
    );
  }
  return buffers;
}

export function fetchReasons(
  { readers, bytes }: FetchBuffers,
  { readThreads }: PlanRequest,
): PlanReason[] {
  const because = readThreads === undefined ? '' : ', because DS4_ROCM_STREAM_READ_WORKERS is set';
  return [
    {
      kind: 'note',
      text: `readers of weights: ${readers}, with ${gib(bytes)} of main memory for what they read${because}`,
    },
  ];
}
