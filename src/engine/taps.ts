import type { Arena } from './abi.js';
import { layoutOf } from './layout.js';

/** `DS4_TAP_*` of native/include/ds4.h: what a caller may watch while it is computed. */
export const tapBits = {
  hidden: 1,
  attentionOut: 2,
  ffnOut: 4,
  experts: 8,
  compressedRow: 16,
  indexerScores: 32,
  indexerRows: 64,
} as const;
export type TapKind = keyof typeof tapBits;

export interface TapRecord {
  readonly kind: TapKind;
  readonly layer: number;
  /** Token position, or the row's index for compressed rows. */
  readonly position: number;
  readonly values: Float32Array;
}

export function tapMask(kinds: readonly TapKind[]): number {
  return kinds.reduce((mask, kind) => mask | tapBits[kind], 0);
}

/** Copies the records that a call left in `arena` at `start`, `bytes` long. */
export function readTaps(arena: Arena, start: number, bytes: number): TapRecord[] {
  const header = layoutOf('ds4_tap_record').bytes;
  const kinds = new Map<number, TapKind>(
    (
      [
        'hidden',
        'attentionOut',
        'ffnOut',
        'experts',
        'compressedRow',
        'indexerScores',
        'indexerRows',
      ] as const
    ).map((kind) => [tapBits[kind], kind]),
  );
  const records: TapRecord[] = [];
  let offset = start;
  while (offset + header <= start + bytes) {
    const { view } = arena;
    const kind = kinds.get(view.getUint32(offset, true));
    const valueCount = view.getUint32(offset + 16, true);
    if (kind === undefined || offset + header + 4 * valueCount > start + bytes) {
      break;
    }
    records.push({
      kind,
      layer: view.getUint32(offset + 4, true),
      position: Number(view.getBigUint64(offset + 8, true)),
      values: arena.float32(offset + header, valueCount).slice(),
    });
    offset += Math.ceil((header + 4 * valueCount) / 8) * 8;
  }
  return records;
}
