import type { ModelShape } from './shape.js';

export type ModelFamily = 'flash' | 'pro' | 'other';

type Mark = 'layerCount' | 'embedding' | 'headCount' | 'qRank' | 'expertCount' | 'expertWidth';

/** What tells the released models apart from each other and from everything else. */
const marks: readonly (readonly [ModelFamily, Readonly<Record<Mark, number>>])[] = [
  [
    'flash',
    {
      layerCount: 43,
      embedding: 4096,
      headCount: 64,
      qRank: 1024,
      expertCount: 256,
      expertWidth: 2048,
    },
  ],
  [
    'pro',
    {
      layerCount: 61,
      embedding: 7168,
      headCount: 128,
      qRank: 1536,
      expertCount: 384,
      expertWidth: 3072,
    },
  ],
];

/** Recognises the released models by their dimensions: names in files are anybody's choice. */
export function familyOf(shape: ModelShape): ModelFamily {
  const found = marks.find(
    ([, mark]) =>
      mark.layerCount === shape.layerCount &&
      mark.embedding === shape.embedding &&
      mark.headCount === shape.headCount &&
      mark.qRank === shape.qRank &&
      mark.expertCount === shape.expertCount &&
      mark.expertWidth === shape.expertWidth,
  );
  return found === undefined ? 'other' : found[0];
}
