// node bench/run-llama.mjs MODEL THREADS PREFILL DECODE: the same work as run-ds4.mjs through node-llama-cpp.
import { performance } from 'node:perf_hooks';
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

const [model, threads, prefill, decode] = process.argv.slice(2);
const llama = await getLlama({
  build: 'never',
  gpu: false,
  logLevel: LlamaLogLevel.error,
  maxThreads: Number(threads),
});
const loaded = await llama.loadModel({ modelPath: model });
const vocab = 512;
const prompt = Array.from({ length: Number(prefill) }, (_, i) => (i * 7919 + 13) % vocab);

let best = { prefill: 0, decode: 0 };
for (let pass = 0; pass < 4; pass += 1) {
  const context = await loaded.createContext({
    contextSize: 1024,
    batchSize: 512,
    threads: Number(threads),
    flashAttention: false,
  });
  const sequence = context.getSequence();
  const start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1));
  const middle = performance.now();
  let count = 0;
  for await (const token of sequence.evaluate([prompt.at(-1)], {
    temperature: 0,
    yieldEogToken: true,
  })) {
    void token;
    count += 1;
    if (count === Number(decode)) break;
  }
  const end = performance.now();
  await context.dispose();
  if (pass > 0) {
    best = {
      prefill: Math.max(best.prefill, (1000 * (prompt.length - 1)) / (middle - start)),
      decode: Math.max(best.decode, (1000 * count) / (end - middle)),
    };
  }
}
console.log(JSON.stringify(best));
process.exit(0);
