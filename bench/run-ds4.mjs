// node bench/run-ds4.mjs MODEL THREADS PREFILL DECODE: one warm-up, then the best of three passes, as a JSON line.
import { performance } from 'node:perf_hooks';
import { Engine } from '../dist/engine/index.js';
import { openGguf } from '../dist/gguf/index.js';
import { describeModel } from '../dist/model/index.js';

const [model, threads, prefill, decode] = process.argv.slice(2);
const description = describeModel(openGguf(model));
const engine = new Engine({ description, backend: 'cpu', threads: Number(threads) });
await engine.load();
const { vocab } = description.shape;
const prompt = Int32Array.from({ length: Number(prefill) }, (_, i) => (i * 7919 + 13) % vocab);

let best = { prefill: 0, decode: 0 };
for (let pass = 0; pass < 4; pass += 1) {
  const session = await engine.openSession({ context: 1024, prefillChunk: 512 });
  const start = performance.now();
  let result = await session.eval(prompt, { candidates: 1 });
  const middle = performance.now();
  for (let i = 0; i < Number(decode); i += 1) {
    result = await session.eval(Int32Array.of(result.candidates.ids[0]), { candidates: 1 });
  }
  const end = performance.now();
  await session.close();
  if (pass > 0) {
    best = {
      prefill: Math.max(best.prefill, (1000 * prompt.length) / (middle - start)),
      decode: Math.max(best.decode, (1000 * Number(decode)) / (end - middle)),
    };
  }
}
await engine.close();
console.log(JSON.stringify(best));
