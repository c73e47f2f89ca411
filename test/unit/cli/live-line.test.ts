import xterm from '@xterm/headless';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { LiveLine } from '../../../src/cli/live-line.js';

type Event =
  | { readonly kind: 'piece'; readonly text: string }
  /** Keys that the terminal shows by itself, where the cursor stands. */
  | { readonly kind: 'echo'; readonly text: string }
  /** Time for the line to be drawn again. */
  | { readonly kind: 'tick' }
  | { readonly kind: 'resize'; readonly columns: number; readonly rows: number };

/** What was sent to a terminal, and when its size changed. */
type Sent = string | { readonly columns: number; readonly rows: number };

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
});
afterEach(() => {
  vi.useRealTimers();
});

const size = { columns: 20, rows: 6 };
const encoder = new TextEncoder();
/** Longer than any row, as a long figure would be. */
const figure = 'experts: 93.1 % of 258 lookups hit, 40 of 64 slots used';

/** Writes the pieces of a text with a line below; `sent` has the line too, `bare` only the text. */
async function play(
  events: readonly Event[],
  end: 'closed' | 'open' = 'closed',
  says = figure,
): Promise<{ sent: Sent[]; bare: Sent[] }> {
  const sent: Sent[] = [];
  const bare: Sent[] = [];
  let { columns } = size;
  let drawn = 0;
  const line = new LiveLine({
    write: (text) => sent.push(text),
    columns: () => columns,
    color: (text) => `\u001b[36m${text}\u001b[39m`,
    text: () => `${(drawn += 1)} ${says}`,
  });
  for (const event of events) {
    if (event.kind === 'piece') {
      await line.around(encoder.encode(event.text), () => {
        sent.push(event.text);
        bare.push(event.text);
        return Promise.resolve();
      });
    } else if (event.kind === 'echo') {
      sent.push(event.text);
      bare.push(event.text);
    } else if (event.kind === 'tick') {
      vi.advanceTimersByTime(500);
    } else {
      ({ columns } = event);
      sent.push(event);
      bare.push(event);
      line.lose();
    }
  }
  if (end === 'closed') {
    line.close();
  }
  return { sent, bare };
}

/** The lines as somebody would copy them: rows that one line needs are joined. */
async function copied(sent: readonly Sent[]): Promise<string[]> {
  const screen = new xterm.Terminal({
    cols: size.columns,
    rows: size.rows,
    scrollback: 1000,
    allowProposedApi: true,
    convertEol: true,
  });
  let text = '';
  const write = async (): Promise<void> => {
    await new Promise<void>((done) => {
      screen.write(text, done);
    });
    text = '';
  };
  for (const one of sent) {
    if (typeof one === 'string') {
      text += one;
    } else {
      await write();
      screen.resize(one.columns, one.rows);
    }
  }
  await write();
  const buffer = screen.buffer.active;
  const lines: string[] = [];
  for (let row = 0; row < buffer.length; row += 1) {
    const found = buffer.getLine(row);
    const next = buffer.getLine(row + 1);
    const content = found?.translateToString(next?.isWrapped !== true) ?? '';
    lines.push(found?.isWrapped === true ? `${lines.pop() ?? ''}${content}` : content);
  }
  while (lines.at(-1)?.trim() === '') {
    lines.pop();
  }
  screen.dispose();
  return lines;
}

const piece = (text: string): Event => ({ kind: 'piece', text });
const tick: Event = { kind: 'tick' };

describe('a live line', () => {
  it('stands below the text, cut to the width, and follows it', async () => {
    const { sent } = await play([piece('The old'), tick, piece(' lamp\nstands')], 'open');

    expect(await copied(sent)).toEqual(['The old lamp', 'stands', '2 experts: 93.1 % o']);
  });

  it('is not drawn before there is time for it, nor when there is nothing to say', async () => {
    const { sent } = await play([piece('The old lamp\nstands')]);
    const silent: string[] = [];
    const line = new LiveLine({
      write: (text) => silent.push(text),
      columns: () => 20,
      color: (text) => text,
      text: () => undefined,
    });
    vi.advanceTimersByTime(5000);
    line.close();

    expect(sent).toEqual(['The old lamp\nstands']);
    expect(silent).toEqual([]);
  });

  it('leaves nothing behind, and goes on from the very column', async () => {
    const { sent, bare } = await play([piece('The old'), tick, tick, piece(' lamp'), tick]);
    sent.push(' stands');
    bare.push(' stands');

    expect(await copied(sent)).toEqual(['The old lamp stands']);
    expect(await copied(bare)).toEqual(['The old lamp stands']);
  });

  it('is away while a row is full to its end', async () => {
    const { sent } = await play(
      [tick, piece('a'.repeat(19)), piece('b'), tick, piece('c')],
      'open',
    );

    expect(await copied(sent)).toEqual([`${'a'.repeat(19)}bc`, '2 experts: 93.1 % o']);
  });

  it('is away behind an emoji until the next line of the text', async () => {
    const { sent } = await play([tick, piece('🙂'), tick, tick], 'open');
    const { sent: later } = await play([tick, piece('🙂'), tick, piece('\na')], 'open');

    expect(await copied(sent)).toEqual(['🙂']);
    expect(await copied(later)).toEqual(['🙂', 'a', '2 experts: 93.1 % o']);
  });

  it('keeps the colour of the text', async () => {
    const { sent } = await play([piece('\n'), tick], 'open');

    const last = sent.at(-1);
    const drawn = typeof last === 'string' ? last : '';
    const order = ['\u001b7', '\u001b[0m', 'experts', '\u001b8'].map((part) => drawn.indexOf(part));
    expect(order).toEqual([...order].sort((a, b) => a - b));
    expect(order[0]).toBeGreaterThan(-1);
  });

  it('is drawn by nobody once it is closed', async () => {
    const { sent } = await play([piece('The old'), tick]);
    const count = sent.length;
    vi.advanceTimersByTime(5000);

    expect(sent).toHaveLength(count);
    expect(vi.getTimerCount()).toBe(0);
  });
});

const text = fc
  .array(
    fc.oneof(
      {
        weight: 6,
        arbitrary: fc.string({ unit: fc.constantFrom('a', 'b', 'c', ' '), maxLength: 9 }),
      },
      { weight: 1, arbitrary: fc.constantFrom('\n', '\n\n', '\t', '日本', '“è”', '🙂', 'e\u0301') },
    ),
    { minLength: 1, maxLength: 4 },
  )
  .map((parts) => parts.join(''));

const course = fc.array(
  fc.oneof({ weight: 4, arbitrary: text.map(piece) }, { weight: 2, arbitrary: fc.constant(tick) }),
  { minLength: 1, maxLength: 60 },
);

it('never changes what can be copied of a text, wherever it wraps, scrolls and ends', async () => {
  let drawn = 0;
  await fc.assert(
    fc.asyncProperty(course, async (events) => {
      const { sent, bare } = await play(events);
      drawn += sent.length - bare.length;

      expect(await copied(sent)).toEqual(await copied(bare));
    }),
    { numRuns: 200 },
  );
  expect(drawn).toBeGreaterThan(600);
});

it('does not change it either where keys are echoed, as many in a line as keep it from the end of a row', async () => {
  let echoed = 0;
  const key = fc.constantFrom('^C', 'k').map((shown): Event => ({ kind: 'echo', text: shown }));
  const words = fc.constantFrom('ab ', 'c', 'de', '日').map(piece);
  const line = fc
    .tuple(
      fc.array(
        fc.oneof({ weight: 6, arbitrary: words }, { weight: 3, arbitrary: fc.constant(tick) }),
        { minLength: 4, maxLength: 40 },
      ),
      // Rows have 20 columns, so four of them may be typed over.
      fc.array(fc.tuple(key, fc.nat()), { maxLength: 2 }),
    )
    .map(([events, keys]) => {
      const mixed = [...events];
      for (const [one, at] of keys) {
        mixed.splice(at % mixed.length, 0, one);
      }
      echoed += keys.length;
      return [...mixed, piece('\n')];
    });
  await fc.assert(
    fc.asyncProperty(fc.array(line, { minLength: 1, maxLength: 4 }), async (lines) => {
      const { sent, bare } = await play(lines.flat());

      expect(await copied(sent)).toEqual(await copied(bare));
    }),
    { numRuns: 100 },
  );
  expect(echoed).toBeGreaterThan(100);
});

it('does not change it either in a terminal whose size changes, as long as the line keeps to one row', async () => {
  // How rows move then is the terminal's own affair, and may make one that is empty.
  const words = async (sent: readonly Sent[]): Promise<string[]> =>
    (await copied(sent)).filter((line) => line !== '');
  const resize = fc.record({
    kind: fc.constant('resize' as const),
    columns: fc.integer({ min: size.columns, max: 40 }),
    rows: fc.integer({ min: 3, max: 12 }),
  });
  const changing = fc.array(
    fc.oneof(
      { weight: 6, arbitrary: fc.constantFrom('ab ', 'cde ', 'f\n', '日 ').map(piece) },
      { weight: 3, arbitrary: fc.constant(tick) },
      { weight: 1, arbitrary: resize },
    ),
    { minLength: 1, maxLength: 60 },
  );
  await fc.assert(
    fc.asyncProperty(changing, async (events) => {
      const { sent, bare } = await play(events, 'closed', 'experts: 93.1 %');

      expect(await words(sent)).toEqual(await words(bare));
    }),
    { numRuns: 200 },
  );
});
