import { describe, expect, it } from 'vitest';
import { CallQueue } from '../../../src/engine/call-queue.js';
import type { EngineSession, EvalRequest } from '../../../src/engine/engine-session.js';
import { SplitSession } from '../../../src/engine/split-session.js';

/** A session that only knows where it stands, and fails as told. */
class Standing implements EngineSession {
  readonly context = 100;
  readonly prefillChunk = 10;
  position = 0;
  closed = 0;
  readonly requests: EvalRequest[] = [];
  /** Positions that can be had exactly, besides the last ten. */
  readonly kept: number[] = [0];
  fails: Error | undefined;
  cannotGoBack: Error | undefined;

  measure() {
    return { kvBytes: 1, workspaceBytes: 2, scratchBytes: 3, checkpointBytes: 4 };
  }

  eval(tokens: Int32Array, request: EvalRequest = {}) {
    if (this.fails !== undefined) {
      return Promise.reject(this.fails);
    }
    this.requests.push(request);
    this.position += tokens.length;
    const hidden = request.wantHidden === true ? Float32Array.of(this.position) : undefined;
    return Promise.resolve({ candidates: undefined, logits: undefined, hidden, taps: [] });
  }

  checkpoint() {
    this.kept.push(this.position);
    return Promise.resolve();
  }

  rewind(position: number) {
    if (this.cannotGoBack !== undefined) {
      return Promise.reject(this.cannotGoBack);
    }
    if (position < this.position - 10) {
      const [best = 0] = this.kept.filter((kept) => kept <= position).sort((a, b) => b - a);
      this.position = best;
    } else {
      this.position = Math.min(this.position, position);
    }
    return Promise.resolve(this.position);
  }

  close() {
    this.closed += 1;
    return Promise.resolve();
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }
}

function split(): { session: SplitSession; parts: [Standing, Standing]; active: number[] } {
  const parts: [Standing, Standing] = [new Standing(), new Standing()];
  const active: number[] = [];
  const owner = {
    calls: new CallQueue(),
    onPart: (index: number) => active.push(index),
    onClose: () => undefined,
  };
  return { session: new SplitSession(owner, parts), parts, active };
}

const ten = new Int32Array(10);

describe('the parts of a session', () => {
  it('are evaluated in order, and only the last is asked for logits', async () => {
    const { session, parts, active } = split();

    await session.eval(ten, { candidates: 3, logitsRows: 1, taps: ['experts'] });

    expect(active).toEqual([0, 1]);
    expect(parts[0].requests).toEqual([{ wantHidden: true, taps: ['experts'] }]);
    expect(parts[1].requests).toEqual([
      {
        wantHidden: false,
        hidden: Float32Array.of(10),
        candidates: 3,
        logitsRows: 1,
        taps: ['experts'],
      },
    ]);
    expect(session.measure()).toEqual({
      kvBytes: 2,
      workspaceBytes: 4,
      scratchBytes: 6,
      checkpointBytes: 8,
    });
  });

  it('go back together when a later one fails', async () => {
    const { session, parts } = split();
    await session.eval(ten);
    parts[1].fails = new Error('lost');

    await expect(session.eval(ten)).rejects.toThrow('lost');

    expect(parts.map(({ position }) => position)).toEqual([10, 10]);
    parts[1].fails = undefined;
    await session.eval(ten);
    expect(session.position).toBe(20);
  });

  it('that cannot go back end the session with the reason', async () => {
    const { session, parts } = split();
    parts[1].fails = new Error('lost');
    parts[0].cannotGoBack = new Error('gone');

    await expect(session.eval(ten)).rejects.toThrow('lost');

    await expect(session.eval(ten)).rejects.toThrow('gone');
    await expect(session.rewind(0)).rejects.toThrow('gone');
    await session.close();
    expect(parts.map(({ closed }) => closed)).toEqual([1, 1]);
  });

  it('end at the position that all of them can reach', async () => {
    const { session, parts } = split();
    for (let turn = 0; turn < 5; turn += 1) {
      await session.eval(ten);
    }
    parts[0].kept.push(30, 10);
    parts[1].kept.push(15);

    expect(await session.rewind(35)).toBe(10);
    expect(parts.map(({ position }) => position)).toEqual([10, 10]);
  });
});
