import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { ExpertTrace, traceLines } from '../../../src/cli/expert-trace.js';
import type { TracedSession } from '../../../src/cli/expert-trace.js';
import type { EvalRequest, EvalResult, TapRecord } from '../../../src/engine/index.js';
import { parseTrace } from '../../../tools/expert-trace/trace.js';

const shape = { layerCount: 2, expertCount: 8, expertUsed: 2, hashLayers: 1 };
const scratch = mkdtempSync(join(tmpdir(), 'ds4-trace-'));
afterAll(() => {
  rmSync(scratch, { recursive: true });
});

function choice(position: number, layer: number, ids: number[]): TapRecord {
  const weights = ids.map(() => 0.5);
  return { kind: 'experts', layer, position, values: Float32Array.of(...ids, ...weights) };
}

/** A session whose router sends token t in layer l to the experts t + l and t + l + 1. */
class RoutedSession implements TracedSession {
  position = 0;
  readonly context = 64;
  readonly prefillChunk = 4;
  readonly requests: EvalRequest[] = [];

  eval(tokens: Int32Array, request: EvalRequest = {}): Promise<EvalResult> {
    this.requests.push(request);
    const taps = [0, 1].flatMap((layer) =>
      Array.from(tokens, (_, index) => {
        const first = this.position + index + layer;
        return choice(this.position + index, layer, [first, first + 1]);
      }),
    );
    this.position += tokens.length;
    return Promise.resolve({ candidates: undefined, logits: undefined, hidden: undefined, taps });
  }
  checkpoint(): Promise<void> {
    return Promise.resolve();
  }
  rewind(position: number): Promise<number> {
    this.position = position;
    return Promise.resolve(position);
  }
  close(): Promise<void> {
    return Promise.resolve();
  }
}

describe('an expert trace', () => {
  it('has a line for each evaluation and for each choice in it', () => {
    expect(traceLines(1, [choice(7, 0, [5, 9]), choice(7, 1, [200, 3])], 2)).toBe(
      'eval 1\n7 0 5,9\n7 1 200,3\n',
    );
  });

  it('records every evaluation of a session, and is what the replay reads', async () => {
    const path = join(scratch, 'trace');
    const session = new RoutedSession();
    const trace = new ExpertTrace(path);

    const timeline = trace.watch(session, shape);
    await timeline.eval(Int32Array.of(1, 2, 3), { candidates: 4 });
    await timeline.eval(Int32Array.of(4));
    trace.finish();
    trace.close();

    expect(timeline.position).toBe(4);
    expect(session.requests[0]).toMatchObject({ candidates: 4, taps: ['experts'] });
    expect(session.requests[0]?.tapBytes).toBeGreaterThanOrEqual(3 * 2 * (24 + 16));
    expect(parseTrace(readFileSync(path, 'utf8'))).toEqual({
      layerCount: 2,
      expertCount: 8,
      usedCount: 2,
      hashLayers: 1,
      evaluations: [
        {
          tokens: 3,
          layers: [
            { layer: 0, experts: [0, 1, 2, 3] },
            { layer: 1, experts: [1, 2, 3, 4] },
          ],
        },
        {
          tokens: 1,
          layers: [
            { layer: 0, experts: [3, 4] },
            { layer: 1, experts: [4, 5] },
          ],
        },
      ],
    });
  });

  it('has one header however many sessions a chat opens', async () => {
    const path = join(scratch, 'two-sessions');
    const trace = new ExpertTrace(path);

    await trace.watch(new RoutedSession(), shape).eval(Int32Array.of(1));
    await trace.watch(new RoutedSession(), shape).eval(Int32Array.of(1));
    trace.close();

    expect(parseTrace(readFileSync(path, 'utf8')).evaluations).toHaveLength(2);
  });

  it('that cannot be opened is a failure with status 1', () => {
    expect(() => new ExpertTrace(join(scratch, 'missing', 'trace'))).toThrow(
      expect.objectContaining({ exitCode: 1 }) as Error,
    );
  });

  it('that cannot be written fails at the end, not the evaluation', async () => {
    const trace = new ExpertTrace('/dev/full');
    const timeline = trace.watch(new RoutedSession(), shape);

    await timeline.eval(Int32Array.of(1));

    expect(timeline.position).toBe(1);
    expect(() => {
      trace.finish();
    }).toThrow(/cannot write the expert trace \/dev\/full/);
    trace.close();
  });
});
