import type { ModelShape } from '../model/index.js';
import { checkpointBytes, workspaceBytes } from './device-session.js';
import type { DeviceSessionBytes, SessionRequest } from './device-session.js';
import { sessionBytes } from './kv-cache.js';

const floatBytes = 4;
/** Scratch memory grows by a quarter more than is asked for, as native/backend/cpu/scratch.h has it. */
const growth = 1.25;
/** Inputs of products in whole numbers: 16 bits a value, with scales and sums of their blocks. */
const preparedBytes = 2.5;
/** Block sizes of such inputs; each has memory of its own. */
const preparedFormats = 2;
/** What the indexer keeps at a time, unless one token has more. */
const mostScores = 2 ** 22;
/** Sums of experts that one thread keeps at a time: these, or a panel of rows for each. */
const sums = { values: 65_536, panelRows: 16 };
/** Heads of one token that a thread attends with at a time. */
const headsAtOnce = 8;

/** No less than what the files of native/backend/cpu take for intermediates once every operation has run. */
function scratchBytes(
  shape: ModelShape,
  { prefillChunk: tokens, context }: SessionRequest,
  threads: number,
): number {
  const { embedding, expertUsed, expertWidth, headCount, headDim, hcCount } = shape;
  const pairs = tokens * (expertUsed + 1);
  const compressedRows = Math.ceil(context / 4);
  const rows = shape.window + Math.max(compressedRows, shape.indexerTopK);
  const widest = Math.max(
    hcCount * embedding,
    headCount * headDim,
    shape.outputGroups * shape.outputRank,
  );
  const mixes = Math.max(2 * hcCount + hcCount * hcCount, shape.indexerHeads);
  const shared =
    tokens * widest * preparedBytes * preparedFormats +
    pairs * expertWidth * (floatBytes + preparedBytes) +
    tokens * mixes * floatBytes +
    Math.max(Math.min(tokens * compressedRows, mostScores), compressedRows) * floatBytes +
    // Lists of inputs and choices.
    pairs * 64;
  const ofThread =
    2 * tokens * expertWidth * floatBytes +
    Math.max(pairs * sums.panelRows, sums.values) * floatBytes +
    // Weights of the rows a token attends to, where they are, and their order.
    rows * (headsAtOnce * floatBytes + 16) +
    2 ** 17;
  return Math.ceil(growth * (shared + threads * ofThread)) + 2 ** 20;
}

/**
 * Sizes a session as the runtime allocates it for the processor, with `threads` that compute; what operations need is a
 * bound from above.
 */
export function hostSessionBytes(
  shape: ModelShape,
  request: SessionRequest,
  threads: number,
): DeviceSessionBytes & { readonly perPosition: number } {
  const { layers, context, prefillChunk } = request;
  const { kv, perPosition } = sessionBytes(shape, layers, context, prefillChunk);
  const buffers =
    workspaceBytes(shape, request) +
    request.checkpoints * checkpointBytes(shape, request) +
    scratchBytes(shape, request, threads);
  return { kv, buffers, total: kv + buffers, perPosition };
}
