import { EventEmitter } from 'node:events';
import { describe, expect, it } from 'vitest';
import { Stop } from '../../../src/cli/stop.js';

function open(): { source: EventEmitter; stop: Stop; stopped: number[] } {
  const source = new EventEmitter();
  const stop = new Stop(source);
  const stopped: number[] = [];
  stop.onStop(() => stopped.push(stop.status ?? 0));
  stop.listen();
  return { source, stop, stopped };
}

describe('a request to stop', () => {
  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ])('comes from %s with status %i', (signal, status) => {
    const { source, stop, stopped } = open();

    source.emit(signal);

    expect(stopped).toEqual([status]);
    expect(stop.status).toBe(status);
  });

  it('leaves the second signal to the system, which kills at once', () => {
    const { source } = open();

    source.emit('SIGINT');

    expect(source.listenerCount('SIGINT')).toBe(0);
  });

  it('reaches work that begins after it', () => {
    const { source, stop } = open();
    source.emit('SIGTERM');
    let stopped = false;

    stop.onStop(() => {
      stopped = true;
    });

    expect(stopped).toBe(true);
  });

  it('keeps its first status', () => {
    const { source, stop } = open();

    source.emit('SIGINT');
    source.emit('SIGTERM');

    expect(stop.status).toBe(130);
  });

  it('is no longer heard after close', () => {
    const { source, stop } = open();

    stop.close();

    expect(source.eventNames()).toEqual([]);
  });
});

describe('Ctrl+C during interruptible work', () => {
  it('ends the work and not the program, and is heard again for the next work', async () => {
    const { source, stop } = open();
    const turns: string[] = [];

    for (const name of ['first', 'second']) {
      await stop.whileInterruptible(
        () => turns.push(name),
        () => {
          source.emit('SIGINT');
          return Promise.resolve();
        },
      );
    }

    expect(turns).toEqual(['first', 'second']);
    expect(stop.status).toBeUndefined();
    expect(source.listenerCount('SIGINT')).toBe(1);
  });

  it('kills when it comes twice in the same work', async () => {
    const { source, stop } = open();
    let listeners = -1;

    await stop.whileInterruptible(
      () => undefined,
      () => {
        source.emit('SIGINT');
        listeners = source.listenerCount('SIGINT');
        return Promise.resolve();
      },
    );

    expect(listeners).toBe(0);
  });

  it('still ends the program when it is SIGTERM', async () => {
    const { source, stop, stopped } = open();

    await stop.whileInterruptible(
      () => undefined,
      () => {
        source.emit('SIGTERM');
        return Promise.resolve();
      },
    );

    expect(stopped).toEqual([143]);
  });
});
