import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { Engine } from '../../src/engine/index.js';
import type {
  BackendName,
  EngineOptions,
  EngineSession,
  EvalRequest,
  TapRecord,
} from '../../src/engine/index.js';

export type GoldenEngineOptions = Omit<EngineOptions, 'description' | 'backend'>;

/** The backend under test: the CPU, or what DS4_TEST_BACKEND names on a machine that has one. */
export function testBackend(): BackendName {
  const name = process.env['DS4_TEST_BACKEND'] ?? 'cpu';
  const known: readonly BackendName[] = ['cpu', 'cuda', 'rocm', 'sim'];
  const backend = known.find((one) => one === name);
  if (backend === undefined) {
    throw new Error(`DS4_TEST_BACKEND=${name}: none of ${known.join(', ')}`);
  }
  return backend;
}

export async function openEngine(
  modelPath: string,
  options: GoldenEngineOptions = {},
  backend: BackendName = testBackend(),
): Promise<Engine> {
  const libraryDirectory = process.env['DS4_LIBRARY_DIR'];
  const engine = new Engine({
    description: describeModel(openGguf(modelPath)),
    backend,
    ...(backend === 'cpu' ? {} : { placement: 'resident' as const }),
    ...(libraryDirectory === undefined ? {} : { libraryDirectory }),
    ...options,
  });
  await engine.load();
  return engine;
}

export interface Evaluation {
  readonly logits: Float32Array;
  readonly hidden: Float32Array;
  readonly taps: TapRecord[];
}

function concatenate(parts: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let end = 0;
  for (const part of parts) {
    all.set(part, end);
    end += part.length;
  }
  return all;
}

/** Feeds all tokens in chunks of at most `chunk` and gathers logits of every row, hidden states and taps. */
export async function evaluate(
  session: EngineSession,
  tokens: Int32Array,
  chunk: number,
  request: Pick<EvalRequest, 'taps' | 'wantHidden'> = {},
): Promise<Evaluation> {
  const logits: Float32Array[] = [];
  const hidden: Float32Array[] = [];
  const taps: TapRecord[] = [];
  for (let start = 0; start < tokens.length; start += chunk) {
    const part = tokens.subarray(start, start + chunk);
    const result = await session.eval(part, { logitsRows: part.length, ...request });
    logits.push(result.logits ?? new Float32Array());
    hidden.push(result.hidden ?? new Float32Array());
    taps.push(...result.taps);
  }
  return { logits: concatenate(logits), hidden: concatenate(hidden), taps };
}
