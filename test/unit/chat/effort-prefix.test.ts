import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { findEffortPrefix, identifyEffortPrefix } from '../../../src/chat/effort-prefix.js';

/** Stand-ins with the properties of the real texts, which belong to the models and are not kept here. */
const texts = {
  A: 'Effort: very high.\nThink "hard", and don\'t stop.\n\n',
  B: 'Effort: utmost — no limit.\nThink\\plan.\n\n',
};
const known = (['B', 'A'] as const).map((tier) => ({
  tier,
  start: texts[tier].slice(0, 12),
  bytes: Buffer.byteLength(texts[tier]),
  sha256: createHash('sha256').update(texts[tier]).digest('hex'),
}));

/** As a string literal of a template or of JSON writes it. */
function literal(text: string, quote: string): string {
  const escaped = text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n');
  return `${quote}${escaped.replaceAll(quote, `\\${quote}`)}${quote}`;
}

describe('findEffortPrefix', () => {
  it.each([
    ['plain', `{% if max %}${texts.A}{% endif %}`, texts.A],
    ['in double quotes', `{{ ${literal(texts.A, '"')} }}`, texts.A],
    ['in single quotes', `{{ ${literal(texts.A, "'")} }}`, texts.A],
    ['with a character outside ASCII', `x${texts.B}y`, texts.B],
    [
      'with escaped characters outside ASCII',
      literal(texts.B, '"').replace('—', '\\u2014'),
      texts.B,
    ],
    ['the stronger one of two', texts.A + texts.B, texts.B],
    [
      'behind a text that only starts alike',
      `${texts.A.slice(0, 20)} never mind. ${texts.A}`,
      texts.A,
    ],
    ['at the very end', texts.A, texts.A],
  ])('finds the text %s', (_, template, expected) => {
    expect(findEffortPrefix(template, known)).toBe(expected);
  });

  it.each([
    ['an empty template', ''],
    ['a template without one', '{{ bos_token }}{{ messages }}'],
    ['a text that differs in one letter', texts.A.replace('hard', 'hart')],
    ['a text that is cut short', texts.A.slice(0, -1)],
  ])('finds none in %s', (_, template) => {
    expect(findEffortPrefix(template, known)).toBeUndefined();
  });

  it('knows the real texts by digest alone', () => {
    expect(findEffortPrefix('Reasoning Effort: Absolute maximum, or so')).toBeUndefined();
    expect(findEffortPrefix('Reasoning Effort: Beyond maximum '.repeat(40))).toBeUndefined();
  });
});

describe('identifyEffortPrefix', () => {
  it.each([
    [texts.A, 'A'],
    [texts.B, 'B'],
    [`${texts.A} `, undefined],
    ['', undefined],
  ])('tells which text %j is', (text, tier) => {
    expect(identifyEffortPrefix(text, known)).toBe(tier);
  });
});
