import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ThinkFilter } from '../../../src/chat/index.js';
import type { OutputSegment, ThinkMode } from '../../../src/chat/index.js';

interface Shown {
  kind: OutputSegment['kind'];
  text: string;
}

/** Everything that is shown for these parts; neighbours of one kind are joined. Latin-1, so that any byte can be told. */
function shown(parts: readonly string[], think: ThinkMode = 'normal'): Shown[] {
  const filter = new ThinkFilter(think);
  const segments = [
    ...parts.flatMap((part) => filter.push(Buffer.from(part, 'latin1'))),
    ...filter.end(),
  ];
  const joined: Shown[] = [];
  for (const { kind, bytes } of segments) {
    const text = Buffer.from(bytes).toString('latin1');
    const last = joined.at(-1);
    if (last?.kind === kind) {
      last.text += text;
    } else {
      joined.push({ kind, text });
    }
  }
  return joined;
}

function thinking(text: string): Shown {
  return { kind: 'thinking', text };
}

function answer(text: string): Shown {
  return { kind: 'answer', text };
}

const cases: readonly (readonly [name: string, output: string, expected: Shown[]])[] = [
  ['thinking and answer', 'Hm.</think>Yes.', [thinking('Hm.\n'), answer('Yes.\n')]],
  ['thinking that ends its line', 'Hm.\n</think>Yes.\n', [thinking('Hm.\n'), answer('Yes.\n')]],
  ['no thinking', '</think>Yes.', [answer('Yes.\n')]],
  ['no answer', 'Hm.</think>', [thinking('Hm.\n')]],
  ['thinking without end', 'Hm', [thinking('Hm\n')]],
  ['nothing', '', []],
  ['tags alone', '<think></think>', []],
  ['an opening tag that comes again', '<think>Hm</think>Yes', [thinking('Hm\n'), answer('Yes\n')]],
  [
    'a second thought',
    'A</think>B<think>C</think>D',
    [thinking('A\n'), answer('B'), thinking('C\n'), answer('D\n')],
  ],
  ['a closing tag in the answer', 'A</think>B</think>C', [thinking('A\n'), answer('B\nC\n')]],
  ['almost a tag', 'a<thin</thinkb', [thinking('a<thin</thinkb\n')]],
  [
    'a tag inside a beginning of one',
    'a<th<think>b<</think>c',
    [thinking('a<thb<\n'), answer('c\n')],
  ],
  ['half a tag at the end', 'a</think>b</thi', [thinking('a\n'), answer('b</thi\n')]],
  ['blank lines around', '\n\n</think>\n\nx\n\n', [thinking('\n\n'), answer('\n\nx\n\n')]],
  [
    'bytes of other characters',
    'é\xe4\xbd</think>\xff',
    [thinking('é\xe4\xbd\n'), answer('\xff\n')],
  ],
];

describe('ThinkFilter', () => {
  it.each(cases)('shows %s', (_, output, expected) => {
    expect(shown([output])).toEqual(expected);
  });

  it.each(cases)('shows %s however it is cut in two or three', (_, output, expected) => {
    for (let first = 0; first <= output.length; first++) {
      for (let second = first; second <= output.length; second++) {
        const parts = [output.slice(0, first), output.slice(first, second), output.slice(second)];
        expect(shown(parts)).toEqual(expected);
      }
    }
  });

  it.each(cases)('shows %s byte by byte', (_, output, expected) => {
    expect(shown(output.split(''))).toEqual(expected);
  });

  it('shows any output alike, whole and cut', () => {
    const output = fc
      .array(fc.constantFrom('<think>', '</think>', '<', '</', 'think', '>', 'a', '\n', 'é'), {
        maxLength: 14,
      })
      .map((parts) => parts.join(''));
    fc.assert(
      fc.property(output, fc.nat(60), (text, place) => {
        const whole = shown([text]);

        expect(shown([text.slice(0, place), text.slice(place)])).toEqual(whole);
        expect(shown(text.split(''))).toEqual(whole);
        expect(whole.map((segment) => segment.text).join('')).toMatch(/^$|\n$/);
      }),
      { numRuns: 1000, seed: 1 },
    );
  });

  it('holds back only what may become a tag', () => {
    const filter = new ThinkFilter('max');

    const due = ['ab<', 'th', 'x', '</thin', 'g'].map((part) =>
      filter.push(Buffer.from(part)).map(({ bytes }) => Buffer.from(bytes).toString()),
    );

    expect(due).toEqual([['ab'], [], ['<thx'], [], ['</thing']]);
  });

  it.each([
    ['<think>a</think>b', [answer('<think>a</think>b\n')]],
    ['a<thi', [answer('a<thi\n')]],
    ['a\n', [answer('a\n')]],
    ['', []],
  ])('filters nothing of %j with thinking off', (output, expected) => {
    expect(shown(output.split(''), 'none')).toEqual(expected);
  });

  it('keeps no reference to bytes that the caller reuses', () => {
    const filter = new ThinkFilter('normal');
    const buffer = Buffer.from('</thi');
    filter.push(buffer);

    buffer.fill('x');

    expect(filter.push(Buffer.from('nk>'))).toEqual([]);
    expect(filter.end()).toEqual([]);
  });
});
