/** Pieces of one generation; two generations are kept. */
const generationPieces = 32_768;

/** Longer pieces seldom come again. */
const longestPiece = 64;

/**
 * Remembers the ids of pieces. Bounded: when the young generation is full it becomes the old one, whose pieces survive
 * only if they are asked for again.
 */
export class PieceCache {
  private young = new Map<string, Int32Array>();
  private old = new Map<string, Int32Array>();

  get(piece: string): Int32Array | undefined {
    const ids = this.young.get(piece);
    if (ids !== undefined) {
      return ids;
    }
    const rescued = this.old.get(piece);
    if (rescued !== undefined) {
      this.old.delete(piece);
      this.set(piece, rescued);
    }
    return rescued;
  }

  /** @param piece a string of its own: a slice would keep the whole text that it was cut from in memory */
  set(piece: string, ids: Int32Array): void {
    if (piece.length > longestPiece) {
      return;
    }
    if (this.young.size >= generationPieces) {
      this.old = this.young;
      this.young = new Map();
    }
    this.young.set(piece, ids);
  }
}
