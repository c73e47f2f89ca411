/** Hyper-parameters, named after the metadata keys; the C side has the same names in `ds4_shape`. */
export interface ModelShape {
  /** Without the blocks of an embedded draft model. */
  readonly layerCount: number;
  readonly embedding: number;
  readonly vocab: number;
  readonly headCount: number;
  /** Of keys and of values: they are the same row. */
  readonly headDim: number;
  /** The last `ropeDims` values of a head are rotated. */
  readonly ropeDims: number;
  readonly qRank: number;
  readonly outputGroups: number;
  /** Per group. */
  readonly outputRank: number;
  /** Rows a query sees without compression, its own included. */
  readonly window: number;
  readonly indexerHeads: number;
  readonly indexerDim: number;
  readonly indexerTopK: number;
  readonly expertCount: number;
  readonly expertUsed: number;
  readonly expertShared: number;
  readonly expertWidth: number;
  /** The first `hashLayers` layers choose experts by token id. */
  readonly hashLayers: number;
  /** Residual streams. */
  readonly hcCount: number;
  readonly sinkhornIterations: number;
  /** Weights of the chosen experts are brought to the sum 1 before `expertScale`. */
  readonly normaliseWeights: boolean;
  /** KV rows pass through FP8 and indexer values through FP4, as in training. */
  readonly roundTrips: boolean;
  readonly rmsEpsilon: number;
  readonly hcEpsilon: number;
  /** Layers without compression. */
  readonly ropeBase: number;
  /** Layers with compression, together with the YaRN values. */
  readonly compressRopeBase: number;
  readonly yarnFactor: number;
  readonly yarnBetaFast: number;
  readonly yarnBetaSlow: number;
  readonly yarnOriginalContext: number;
  readonly expertScale: number;
  /** 0 when the file does not tell. */
  readonly trainedContext: number;
  /** Per layer: 0 for none, 4 for overlapping windows with an indexer, else the length of a window. */
  readonly compressRatio: readonly number[];
  /** Per layer: SwiGLU limit of the routed experts. */
  readonly clampRouted: readonly number[];
  /** Per layer: SwiGLU limit of the shared expert. */
  readonly clampShared: readonly number[];
}
