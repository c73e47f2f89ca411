// The same prompt through different ways of evaluating it gives the same bits.
import { describe, expect, test } from 'vitest';
import { evaluate, openEngine } from './evaluate.js';
import type { GoldenEngineOptions } from './evaluate.js';
import { GoldenSet } from './golden-set.js';

const tags = ['a-f16', 'a-q8_0', 'b-iq2-qat', 'b-q4k', 'b-mxfp4'].filter(
  (tag) => GoldenSet.find(tag) !== undefined,
);
const arithmetics = ['exact', 'fast'] as const;
const prompt = 's360';

function promptOf(golden: GoldenSet): Int32Array {
  return golden
    .integers(golden.has(`${prompt}/tokens`) ? `${prompt}/tokens` : 's750/tokens')
    .values.slice(0, 360);
}

async function logitsOf(
  golden: GoldenSet,
  options: GoldenEngineOptions,
  chunk: number,
): Promise<Float32Array> {
  await using engine = await openEngine(golden.modelPath, options);
  await using session = await engine.openSession({ context: 512, prefillChunk: chunk });
  const { logits } = await evaluate(session, promptOf(golden), chunk);
  return logits;
}

function sameBits(a: Float32Array, b: Float32Array): boolean {
  return Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(
    Buffer.from(b.buffer, b.byteOffset, b.byteLength),
  );
}

describe.each(tags.flatMap((tag) => arithmetics.map((arithmetic) => ({ tag, arithmetic }))))(
  '$tag, $arithmetic',
  ({ tag, arithmetic }) => {
    const golden = GoldenSet.find(tag)!;

    test('prefill chunks of 1, 3, 4, 7, 127, 128 and 129 give the bits of one chunk', async () => {
      const whole = await logitsOf(golden, { arithmetic }, 360);

      for (const chunk of [1, 3, 4, 7, 127, 128, 129]) {
        expect(
          sameBits(await logitsOf(golden, { arithmetic }, chunk), whole),
          `chunk ${chunk}`,
        ).toBe(true);
      }
    });

    test('one, two and three threads give the same bits', async () => {
      const one = await logitsOf(golden, { arithmetic, threads: 1 }, 64);

      for (const threads of [2, 3]) {
        expect(
          sameBits(await logitsOf(golden, { arithmetic, threads }, 64), one),
          `${threads} threads`,
        ).toBe(true);
      }
    });

    test('weights read into memory give the bits of mapped weights', async () => {
      const mapped = await logitsOf(golden, { arithmetic, source: 'mmap' }, 64);

      expect(sameBits(await logitsOf(golden, { arithmetic, source: 'read' }, 64), mapped)).toBe(
        true,
      );
    });

    test('two slices with hidden states between them give the bits of the whole', async () => {
      const tokens = promptOf(golden);
      const whole = await logitsOf(golden, { arithmetic }, 64);
      const cut = Math.floor(golden.info.layers / 2);
      const front = { first: 0, last: cut - 1, embedding: true, head: false };
      const back = { first: cut, last: golden.info.layers - 1, embedding: false, head: true };
      await using first = await openEngine(golden.modelPath, { arithmetic, slice: front });
      await using second = await openEngine(golden.modelPath, { arithmetic, slice: back });
      await using a = await first.openSession({ context: 512, prefillChunk: 64 });
      await using b = await second.openSession({ context: 512, prefillChunk: 64 });

      const parts: number[] = [];
      for (let start = 0; start < tokens.length; start += 64) {
        const part = tokens.slice(start, start + 64);
        const { hidden } = await a.eval(part, { wantHidden: true });
        const { logits } = await b.eval(part, { hidden: hidden!, logitsRows: part.length });
        parts.push(...logits!);
      }

      expect(sameBits(Float32Array.from(parts), whole)).toBe(true);
    });

    test('rewinding to a checkpoint and to a recent position gives the bits of going straight', async () => {
      const tokens = promptOf(golden);
      await using engine = await openEngine(golden.modelPath, { arithmetic });
      await using session = await engine.openSession({
        context: 512,
        prefillChunk: 64,
        checkpoints: 2,
      });
      await evaluate(session, tokens.slice(0, 130), 32);
      await session.checkpoint();
      const straight = await evaluate(session, tokens.slice(130), 30);

      const near = await session.rewind(340);
      const nearAgain = await evaluate(session, tokens.slice(near), 7);
      const far = await session.rewind(200);
      const farAgain = await evaluate(session, tokens.slice(far), 31);

      expect([near, far]).toEqual([340, 130]);
      expect(sameBits(farAgain.logits, straight.logits)).toBe(true);
      expect(sameBits(nearAgain.logits, straight.logits.slice(-nearAgain.logits.length))).toBe(
        true,
      );
    });
  },
);
