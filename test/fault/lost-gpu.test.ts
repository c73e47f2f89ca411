// A GPU that fails or stops answering beside a session, on the emulated card.
import { resolve } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { loadAsPlanned } from '../../src/cli/load-as-planned.js';
import { DeviceError, Engine, listDevices, NoMemoryError } from '../../src/engine/index.js';
import type { EngineSession } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { planLoad } from '../../src/plan/index.js';
import {
  card,
  hasEmulatedCard,
  launchFailure,
  libraryDirectory,
  notSupported,
  outOfMemory,
} from './emulated-card.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const description = describeModel(openGguf(model));
const prompt = Int32Array.of(5, 42, 79, 116);
const token = Int32Array.of(153);
/** An emulated card needs some of it for one of its works. */
const patienceMs = 1000;

/** What a session does, and what came before. A kind of token runs plainly first, is recorded next and replayed from then on. */
interface Stage {
  readonly name: string;
  readonly tokens: Int32Array;
  readonly before: readonly Int32Array[];
}
const aPrompt: Stage = { name: 'a prompt', tokens: prompt, before: [] };
const aFirstToken: Stage = { name: 'a first token', tokens: token, before: [] };
const aRecordedToken: Stage = { name: 'a recorded token', tokens: token, before: [token, token] };
const aReplayedToken: Stage = {
  name: 'a replayed token',
  tokens: token,
  before: [token, token, token],
};

/** Of an evaluation; those that a stage does not make are left out. */
const calls = [
  'gpuSetDevice',
  'launch',
  'gpuMemcpyAsync',
  'gpuEventRecord',
  'gpuEventQuery',
  'gpuStreamQuery',
  'gpuStreamBeginCapture',
  'gpuStreamEndCapture',
  'gpuGraphInstantiateWithFlags',
  'gpuGraphLaunch',
] as const;

async function loadedEngine(): Promise<Engine> {
  const engine = new Engine({
    description,
    backend: 'cuda',
    libraryDirectory,
    placement: 'resident',
  });
  await engine.load();
  return engine;
}

async function bestOf(session: EngineSession, tokens: Int32Array): Promise<readonly number[]> {
  const { candidates } = await session.eval(tokens, { candidates: 4 });
  return [...(candidates?.ids ?? []), ...(candidates?.logits ?? [])];
}

async function sessionBefore(engine: Engine, { before }: Stage): Promise<EngineSession> {
  const session = await engine.openSession({ context: 64, prefillChunk: 8 });
  for (const tokens of before) {
    await bestOf(session, tokens);
  }
  return session;
}

/** The first of `count`, one in the middle and the last. */
function places(count: number): number[] {
  return [...new Set([0, count >> 1, count - 1])].filter((place) => place >= 0 && place < count);
}

/** Its answer, which of its calls to let fail, and how many works it puts on streams. */
async function observed(engine: Engine, stage: Stage) {
  await using session = await sessionBefore(engine, stage);
  const usesBefore = calls.map((call) => card().uses(call));
  const worksBefore = card().works();
  const answer = await bestOf(session, stage.tokens);
  return {
    answer,
    works: card().works() - worksBefore,
    attempts: calls.flatMap((call, index) =>
      places(card().uses(call) - usesBefore[index]!).map((skip) => ({ call, skip })),
    ),
  };
}

async function observedAlone(stage: Stage) {
  await using engine = await loadedEngine();
  return await observed(engine, stage);
}

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
}

describe.skipIf(!hasEmulatedCard)('an emulated card', { timeout: 600_000 }, () => {
  afterEach(() => {
    card().mend();
  });

  test.each([aPrompt, aRecordedToken, aReplayedToken])(
    'that refuses any call of $name says so, and the next attempt gives the same answer',
    async (stage) => {
      await using engine = await loadedEngine();
      const { answer, attempts } = await observed(engine, stage);
      await using session = await sessionBefore(engine, stage);
      const { position } = session;

      for (const { call, skip } of attempts) {
        card().failCall(call, notSupported, skip);
        const failure = await failureOf(bestOf(session, stage.tokens));
        card().mend();
        expect(failure, `${call} after ${skip}`).toBeInstanceOf(DeviceError);
        expect(session.position).toBe(position);
      }

      expect(attempts.length).toBeGreaterThan(5);
      expect(await bestOf(session, stage.tokens)).toEqual(answer);
    },
  );

  test.each([aPrompt, aReplayedToken])(
    'that is lost at any call of $name fails that and all that follows, and keeps no memory',
    async (stage) => {
      const heldBefore = card().heldBytes();
      const engine = await loadedEngine();
      const { attempts } = await observed(engine, stage);
      const session = await sessionBefore(engine, stage);

      for (const { call, skip } of attempts) {
        card().failCall(call, launchFailure, skip);
        expect(await failureOf(bestOf(session, stage.tokens))).toBeInstanceOf(DeviceError);
        expect(await failureOf(bestOf(session, stage.tokens))).toBeInstanceOf(DeviceError);
        expect(await failureOf(sessionBefore(engine, aPrompt))).toBeInstanceOf(DeviceError);
        card().mend();
      }

      await session.close();
      await engine.close();
      expect(card().heldBytes()).toBe(heldBefore);
    },
  );

  test.each([aPrompt, aFirstToken, aReplayedToken])(
    'that stops in $name is given up, and nothing waits for it again',
    async (stage) => {
      const heldBefore = card().heldBytes();
      const { works } = await observedAlone(stage);

      // The last work is a copy that the host does itself.
      for (const place of places(works - 1)) {
        const engine = await loadedEngine();
        const session = await sessionBefore(engine, stage);
        card().hang(place, patienceMs);
        const failure = await failureOf(bestOf(session, stage.tokens));
        expect(failure).toBeInstanceOf(DeviceError);
        expect(String(failure)).toMatch(/the GPU failed to .*: device 0 has not answered for 1 s/);
        // Each of these would wait for ever, and the emulated card would end the process.
        expect(await failureOf(bestOf(session, stage.tokens))).toBeInstanceOf(DeviceError);
        await session.close();
        await engine.close();
        expect(await failureOf(loadedEngine())).toBeInstanceOf(DeviceError);
        card().mend();
        expect(card().heldBytes()).toBe(heldBefore);
      }
    },
  );

  test('that stops while a model is copied is not asked again by other plans', async () => {
    const [device] = listDevices('cuda', libraryDirectory);
    const reasons: string[] = [];
    card().hang(20, patienceMs);

    const failure = await failureOf(
      loadAsPlanned({
        plan: (failures) =>
          planLoad(
            description,
            { memoryAvailable: 2 ** 36, gpu: { ...device!, backend: 'cuda', kind: 'discrete' } },
            { context: 64, failures },
          ),
        load: async ({ weights }) => {
          const engine = new Engine({
            description,
            backend: 'cuda',
            libraryDirectory,
            placement: weights.place === 'device' ? 'resident' : 'mappedExperts',
          });
          try {
            await engine.load();
            return engine;
          } catch (thrown) {
            reasons.push(String(thrown));
            await engine.close();
            throw thrown;
          }
        },
      }),
    );

    expect(reasons).toEqual([
      expect.stringMatching(/has not answered for 1 s/),
      expect.stringMatching(/is not used again/),
    ]);
    expect(String(failure)).toMatch(/is not used again/);
  });

  test.each(['gpuMalloc', 'gpuHostAlloc', 'gpuMemsetAsync', 'gpuEventCreateWithFlags'])(
    'whose %s fails at any use of a session keeps nothing, and the next session works',
    async (call) => {
      await using engine = await loadedEngine();
      const { answer } = await observed(engine, aPrompt);
      const heldBefore = card().heldBytes();
      const usesBefore = card().uses(call);
      await (await sessionBefore(engine, aPrompt)).close();
      const count = card().uses(call) - usesBefore;

      for (let skip = 0; skip < count; skip += 1) {
        card().failCall(call, outOfMemory, skip);
        const failure = await failureOf(sessionBefore(engine, aPrompt));
        card().mend();
        expect(failure).toBeInstanceOf(NoMemoryError);
        expect(card().heldBytes()).toBe(heldBefore);
      }

      await using session = await sessionBefore(engine, aPrompt);
      expect(await bestOf(session, aPrompt.tokens)).toEqual(answer);
    },
  );
});
