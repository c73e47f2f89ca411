// The file that `ds4 --expert-trace FILE` writes; docs/cli.md describes it.

/** One call of the engine: a prompt's chunk, or one token of an answer. */
export interface Evaluation {
  readonly tokens: number;
  /** In the order in which they were computed; of each layer the experts that any token chose, none twice. */
  readonly layers: readonly { readonly layer: number; readonly experts: readonly number[] }[];
}

export interface Trace {
  readonly layerCount: number;
  readonly expertCount: number;
  /** Experts that a token uses in a layer. */
  readonly usedCount: number;
  /** The first layers, whose experts are decided by the token alone. */
  readonly hashLayers: number;
  readonly evaluations: readonly Evaluation[];
}

const header = /^ds4-expert-trace 2 layers=([0-9]+) experts=([0-9]+) used=([0-9]+) hash=([0-9]+)$/;
const oldHeader = /^ds4-expert-trace 1 /;
const evaluation = /^eval ([0-9]+)$/;
const choice = /^[0-9]+ ([0-9]+) ([0-9]+(?:,[0-9]+)*)$/;

/**
 * Reads a trace. One that a crash has cut keeps what is whole: the last line counts only if it is ended.
 *
 * @throws Error with the number of the line that is not understood
 */
export function parseTrace(text: string): Trace {
  const [first = '', ...lines] = text.slice(0, text.lastIndexOf('\n') + 1).split('\n');
  if (oldHeader.test(first)) {
    throw new Error(
      'line 1: an expert trace of version 1 does not say how many layers choose by the token alone; record it again',
    );
  }
  const [, layers, experts, used, hash] = header.exec(first) ?? [];
  if (layers === undefined || experts === undefined || used === undefined || hash === undefined) {
    throw new Error('line 1: this is no expert trace of version 2');
  }
  const trace = {
    layerCount: Number(layers),
    expertCount: Number(experts),
    usedCount: Number(used),
    hashLayers: Number(hash),
  };
  const evaluations: { tokens: number; layers: Map<number, Set<number>> }[] = [];
  lines.slice(0, -1).forEach((line, index) => {
    const [, tokens] = evaluation.exec(line) ?? [];
    const [, layerText, ids] = choice.exec(line) ?? [];
    const current = evaluations.at(-1);
    if (tokens !== undefined) {
      evaluations.push({ tokens: Number(tokens), layers: new Map() });
    } else if (layerText !== undefined && ids !== undefined && current !== undefined) {
      const layer = Number(layerText);
      const chosen = ids.split(',').map(Number);
      if (layer >= trace.layerCount || chosen.some((id) => id >= trace.expertCount)) {
        throw new Error(`line ${index + 2}: a layer or an expert that the model does not have`);
      }
      const known = current.layers.get(layer) ?? new Set();
      chosen.forEach((id) => known.add(id));
      current.layers.set(layer, known);
    } else {
      throw new Error(`line ${index + 2}: neither an evaluation nor a token's choice: ${line}`);
    }
  });
  return {
    ...trace,
    evaluations: evaluations.map(({ tokens, layers: chosen }) => ({
      tokens,
      layers: [...chosen].map(([layer, ids]) => ({ layer, experts: [...ids] })),
    })),
  };
}
