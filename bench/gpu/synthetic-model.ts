// Writes a model with Flash's dimensions and random weights, for measurements: the bytes and the control flow are those
// of the published IQ2_XXS file, what it says means nothing.
//
//   npx tsx bench/gpu/synthetic-model.ts --out /dev/shm/flash.gguf [--layers 43] [--threads N] [--prompt FILE --words 90000]
import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads';
import {
  deepseekMetadata,
  deepseekTensors,
  ds4Types,
  flashDims,
} from '../../test/support/gguf-deepseek.js';
import type { ModelDims } from '../../test/support/gguf-deepseek.js';
import { byteVocabulary, vocabularyMetadata } from '../../test/support/gguf-vocabulary.js';
import { blockTypes, tensorBytes, writeGguf } from '../../test/support/gguf-writer.js';
import type { BlockType } from '../../test/support/gguf-writer.js';
import { Noise } from './noise.js';

/** This file once more, as a thread. A thread knows nothing of the loader that lets Node read TypeScript. */
function openWorker(data: unknown): Worker {
  const file = import.meta.url;
  if (!file.endsWith('.ts')) {
    return new Worker(new URL(file), { workerData: data });
  }
  const start = `import('tsx/esm/api').then(({ register }) => { register(); return import('${file}'); })`;
  return new Worker(start, { eval: true, workerData: data });
}

/** One tensor, or a slab of one. */
interface Slab {
  readonly type: BlockType;
  readonly fill: Fill;
  readonly offset: number;
  readonly bytes: number;
  /** Where in the pool of random blocks it begins, so that neighbours differ. */
  readonly phase: number;
}
type Fill =
  | { kind: 'random'; sigma: number }
  | { kind: 'ones' }
  | { kind: 'experts'; experts: number; used: number };

const poolBytes = 8 << 20;
const slabBytes = 64 << 20;

const oneFloat = new Float32Array(1);
const itsBits = new Uint32Array(oneFloat.buffer);

/** Cut, not rounded, and zero instead of subnormal: good enough for noise. */
function halfBits(value: number): number {
  oneFloat[0] = value;
  const bits = itsBits[0] ?? 0;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  const sign = (bits >>> 16) & 0x8000;
  return exponent <= 0 ? sign : sign | Math.min((exponent << 10) | ((bits >>> 13) & 0x3ff), 0x7bff);
}

/** Root mean square of a block's values when its bytes are random and its scale is 1, and where its F16 scales lie. */
const blockScales: Partial<Record<BlockType, { rms: number; at: readonly [number, number][] }>> = {
  Q8_0: { rms: 73.9, at: [[0, 1]] },
  IQ2_XXS: { rms: 46, at: [[0, 1]] },
  // The minimum is 1.5 times the scale, so that the values' mean is zero.
  Q2_K: {
    rms: 14,
    at: [
      [80, 1],
      [82, 1.5],
    ],
  },
};

/** Blocks of one type, again and again: what a kernel reads does not repeat within any cache. */
function makePool(type: BlockType, fill: Fill): Buffer {
  const [, , blockBytes] = blockTypes[type];
  const pool = Buffer.alloc(Math.floor(poolBytes / blockBytes / 12) * 12 * blockBytes);
  const noise = new Noise(
    blockBytes * 7919 + (fill.kind === 'random' ? Math.round(fill.sigma * 1e6) : 3),
  );
  if (fill.kind === 'ones') {
    for (let at = 0; at < pool.length; at += 4) pool.writeFloatLE(1, at);
  } else if (fill.kind === 'experts') {
    for (let at = 0; at + 4 * fill.used <= pool.length; at += 4 * fill.used) {
      const first = noise.bits() % fill.experts;
      const step = 1 + (noise.bits() % 31);
      for (let slot = 0; slot < fill.used; slot += 1) {
        pool.writeInt32LE((first + slot * step) % fill.experts, at + 4 * slot);
      }
    }
  } else if (type === 'F32') {
    for (let at = 0; at < pool.length; at += 4) pool.writeFloatLE(noise.normal() * fill.sigma, at);
  } else if (type === 'F16') {
    for (let at = 0; at < pool.length; at += 2)
      pool.writeUInt16LE(halfBits(noise.normal() * fill.sigma), at);
  } else {
    const scales = blockScales[type];
    if (scales === undefined) throw new Error(`no synthetic blocks of type ${type}`);
    for (let at = 0; at + 4 <= pool.length; at += 4) pool.writeUInt32LE(noise.bits(), at);
    for (let block = 0; block < pool.length; block += blockBytes) {
      const scale = (fill.sigma / scales.rms) * (0.75 + (noise.bits() % 256) / 512);
      for (const [place, factor] of scales.at)
        pool.writeUInt16LE(halfBits(scale * factor), block + place);
    }
  }
  return pool;
}

function writeSlabs(path: string, next: Int32Array, slabs: readonly Slab[]): void {
  const pools = new Map<string, Buffer>();
  const descriptor = openSync(path, 'r+');
  for (let index = Atomics.add(next, 0, 1); index < slabs.length; index = Atomics.add(next, 0, 1)) {
    const slab = slabs[index];
    if (slab === undefined) break;
    const key = `${slab.type} ${JSON.stringify(slab.fill)}`;
    const pool = pools.get(key) ?? makePool(slab.type, slab.fill);
    pools.set(key, pool);
    let from = slab.phase % pool.length;
    for (let done = 0; done < slab.bytes;) {
      const bytes = Math.min(pool.length - from, slab.bytes - done);
      done += writeSync(descriptor, pool, from, bytes, slab.offset + done);
      from = (from + bytes) % pool.length;
    }
  }
  closeSync(descriptor);
}

/** Branch outputs are damped, so that the residual keeps what the token was. */
function fillOf(name: string, type: BlockType, dims: readonly number[], model: ModelDims): Fill {
  const inputs = dims[0] ?? 1;
  if (type === 'I32') return { kind: 'experts', experts: model.experts, used: model.used };
  if (name.endsWith('norm.weight')) return { kind: 'ones' };
  if (name === 'token_embd.weight') return { kind: 'random', sigma: 1 };
  if (name.endsWith('exp_probs_b.bias')) return { kind: 'random', sigma: 0.01 };
  if (name.endsWith('_scale.weight')) return { kind: 'random', sigma: 0.2 };
  if (name.endsWith('_ape.weight')) return { kind: 'random', sigma: 0.1 };
  if (dims.length === 1) return { kind: 'random', sigma: 0.5 };
  const damped =
    name.endsWith('attn_output_b.weight') ||
    name.endsWith('ffn_down_exps.weight') ||
    name.endsWith('ffn_down_shexp.weight');
  return { kind: 'random', sigma: (damped ? 0.5 : 1) / Math.sqrt(inputs) };
}

function slabsOf(spec: ReturnType<typeof writeGguf>, model: ModelDims): Slab[] {
  const slabs: Slab[] = [];
  spec.spec.tensors.forEach((tensor, index) => {
    const bytes = tensorBytes(tensor);
    const [, , blockBytes] = blockTypes[tensor.type];
    const unit = tensor.type === 'I32' ? 4 * model.used : blockBytes;
    const step = Math.floor(slabBytes / unit) * unit;
    for (let done = 0; done < bytes; done += step) {
      slabs.push({
        type: tensor.type,
        fill: fillOf(tensor.name, tensor.type, tensor.dims, model),
        offset: spec.header.length + (spec.offsets[index] ?? 0) + done,
        bytes: Math.min(step, bytes - done),
        phase: (index * 7919 + done / step) * unit,
      });
    }
  });
  return slabs;
}

/** Text of made-up words, of which each comes out as a few tokens. */
function prompt(words: number): string {
  const noise = new Noise(99);
  const consonants = 'tnsrhldcmfpgwbvk';
  const vowels = 'eaoiu';
  const letter = (from: string): string => from[noise.bits() % from.length] ?? '';
  const dictionary = Array.from({ length: 6000 }, () =>
    Array.from(
      { length: 1 + (noise.bits() % 3) },
      () =>
        letter(consonants) + letter(vowels) + (noise.bits() % 3 === 0 ? letter(consonants) : ''),
    ).join(''),
  );
  const rank = (): number => Math.floor((noise.bits() / 2 ** 32) ** 2 * dictionary.length);
  return Array.from(
    { length: words },
    (_, i) => `${dictionary[rank()] ?? ''}${i % 97 === 96 ? '.\n' : i % 13 === 12 ? ', ' : ' '}`,
  ).join('');
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      out: { type: 'string' },
      layers: { type: 'string', default: String(flashDims.layers) },
      threads: { type: 'string', default: String(availableParallelism()) },
      prompt: { type: 'string' },
      words: { type: 'string', default: '90000' },
    },
  });
  if (values.prompt !== undefined) {
    writeFileSync(values.prompt, prompt(Number(values.words)));
  }
  if (values.out === undefined) {
    return;
  }
  const path = values.out;
  const layers = Number(values.layers);
  const model = {
    ...flashDims,
    layers,
    hashLayers: Math.min(flashDims.hashLayers, layers),
    ratios: [...flashDims.ratios.slice(0, layers), 0],
  };
  const spec = writeGguf({
    metadata: [
      ...deepseekMetadata(model, 'synthetic'),
      ...vocabularyMetadata(byteVocabulary(model.vocab)),
    ],
    tensors: deepseekTensors(
      model,
      ds4Types(
        () => 'IQ2_XXS',
        () => 'Q2_K',
      ),
    ),
  });
  const start = performance.now();
  spec.save(path);
  const slabs = slabsOf(spec, model);
  const next = new SharedArrayBuffer(4);
  await Promise.all(
    Array.from(
      { length: Number(values.threads) },
      () =>
        new Promise<void>((resolve, reject) => {
          const worker = openWorker({ path, next, slabs });
          worker.once('message', () => {
            resolve();
          });
          worker.once('error', reject);
        }),
    ),
  );
  const seconds = (performance.now() - start) / 1000;
  const bytes = spec.header.length + spec.dataBytes;
  process.stderr.write(`${path}: ${(bytes / 2 ** 30).toFixed(2)} GiB in ${seconds.toFixed(1)} s\n`);
}

if (isMainThread) {
  await main();
} else {
  const { path, next, slabs } = workerData as {
    path: string;
    next: SharedArrayBuffer;
    slabs: Slab[];
  };
  writeSlabs(path, new Int32Array(next), slabs);
  parentPort?.postMessage('done');
}
