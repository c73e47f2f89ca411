import type { ModelShape } from '../model/index.js';
import { sessionBytes } from './kv-cache.js';

/** What one session takes of a GPU's memory. */
export interface DeviceSessionBytes {
  readonly kv: number;
  /** Activations of one chunk, checkpoints, and what the kernels keep between two launches. */
  readonly buffers: number;
  readonly total: number;
}

export interface SessionRequest {
  readonly layers: { readonly first: number; readonly last: number };
  readonly context: number;
  readonly prefillChunk: number;
  readonly checkpoints: number;
}

const floatBytes = 4;
const alignment = 64;
const mostHeadRows = 16;
/** What the indexer keeps at a time, unless one token has more: 2^26 scores. */
const mostScoreBytes = 2 ** 28;

function aligned(bytes: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}

function layersOf({ layers }: SessionRequest): number[] {
  return Array.from({ length: layers.last - layers.first + 1 }, (_, index) => layers.first + index);
}

/** As native/model/workspace.cpp places it. */
export function workspaceBytes(shape: ModelShape, request: SessionRequest): number {
  const ratios = layersOf(request).map((layer) => shape.compressRatio[layer] ?? 0);
  const indexed = ratios.includes(4);
  const halves = indexed ? 2 : ratios.some((ratio) => ratio > 0) ? 1 : 0;
  const { embedding, hcCount, headCount, headDim, indexerHeads, indexerDim } = shape;
  const ofToken = [
    hcCount * embedding,
    embedding,
    embedding,
    hcCount,
    hcCount * hcCount,
    shape.qRank,
    headCount * headDim,
    headDim,
    halves * headDim,
    halves * headDim,
    ...(indexed
      ? [
          halves * indexerDim,
          halves * indexerDim,
          indexerHeads * indexerDim,
          indexerHeads,
          shape.indexerTopK,
          1,
        ]
      : []),
    headCount * headDim,
    shape.outputGroups * shape.outputRank,
    shape.expertCount,
    layersOf(request).length * shape.expertUsed,
    shape.expertUsed,
  ];
  const headRows = Math.min(request.prefillChunk, mostHeadRows);
  return [
    ...ofToken.map((width) => request.prefillChunk * width),
    headRows * embedding,
    headRows * shape.vocab,
    // Results that the host fetches.
    request.prefillChunk + 2 * shape.vocab + 4 * alignment,
  ].reduce((sum, values) => sum + aligned(values * floatBytes), 0);
}

/** As native/runtime/checkpoints.cpp counts it: the tails of all rings. */
export function checkpointBytes(shape: ModelShape, request: SessionRequest): number {
  let values = 0;
  for (const layer of layersOf(request)) {
    values += (shape.window - 1) * shape.headDim;
    const ratio = shape.compressRatio[layer] ?? 0;
    if (ratio > 0) {
      const halves = ratio === 4 ? 2 : 1;
      const dims = shape.headDim + (ratio === 4 ? shape.indexerDim : 0);
      values += 2 * (halves * ratio - 1) * halves * dims;
    }
  }
  return aligned(values * floatBytes);
}

/**
 * No less than what the files of native/backend/gpu reserve for intermediates: one operation's at a time, and beside it
 * activations in 8 bits.
 */
function scratchBytes(shape: ModelShape, request: SessionRequest): number {
  const { prefillChunk: tokens, context } = request;
  const { embedding, expertUsed, expertWidth, headCount, headDim, hcCount } = shape;
  const compressedRows = Math.ceil(context / 4);
  const rows = shape.window + Math.max(compressedRows, shape.indexerTopK);
  const mixes = 2 * hcCount + hcCount * hcCount;
  const ofOperations = [
    // Experts: one product of every chosen one and of the shared one, and the lists that sort tokens by expert.
    tokens * (expertUsed + 1) * (Math.max(embedding, expertWidth) + 16) * floatBytes,
    // Indexer: scores, and the candidates of a few tokens.
    Math.max(Math.min(tokens * compressedRows * floatBytes, mostScoreBytes), rows * floatBytes) +
      16 * compressedRows * floatBytes,
    // Attention of few tokens: a score for each row and a partial result for each segment of rows.
    2 ** 26 + headCount * (rows + (rows / 32 + 1) * (headDim + 2)) * floatBytes,
    // Attention of many: the rows in half precision.
    (tokens + shape.window + rows) * headDim * 2,
    // Partial sums of the streams' mixing weights, and their matrix in float32.
    tokens * Math.ceil((hcCount * embedding) / 512) * (mixes + 16) * floatBytes +
      mixes * hcCount * embedding * floatBytes,
    // Sorting the logits.
    2 ** 20 + 8 * shape.vocab,
  ];
  // Each input in both block sizes, with scales and sums.
  const widest = Math.max(
    2 * hcCount * embedding,
    2 * headCount * headDim,
    2 * shape.outputGroups * shape.outputRank,
    2 * embedding + (expertUsed + 1) * expertWidth,
  );
  return Math.ceil(Math.max(...ofOperations) + 1.25 * tokens * widest) + 2 ** 20;
}

/** Sizes a session as the runtime allocates it on a GPU; what kernels need is a bound from above. */
export function deviceSessionBytes(shape: ModelShape, request: SessionRequest): DeviceSessionBytes {
  const { kv } = sessionBytes(shape, request.layers, request.context, request.prefillChunk);
  const buffers =
    workspaceBytes(shape, request) +
    request.checkpoints * checkpointBytes(shape, request) +
    scratchBytes(shape, request);
  return { kv, buffers, total: kv + buffers };
}
