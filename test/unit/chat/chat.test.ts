import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Chat, ChatError } from '../../../src/chat/index.js';
import type { Message, RenderOptions } from '../../../src/chat/index.js';
import { Tokenizer } from '../../../src/tokenizer/index.js';
import { deepseekV3Vocabulary, deepseekV4Vocabulary } from '../../support/deepseek-vocabulary.js';

const tokenizer = new Tokenizer(deepseekV4Vocabulary());
const chat = new Chat(tokenizer);

const BOS = '<｜begin▁of▁sentence｜>';
const EOS = '<｜end▁of▁sentence｜>';
const USER = '<｜User｜>';
const ASSISTANT = '<｜Assistant｜>';
const OPEN = '<think>';
const CLOSE = '</think>';
const markers = [BOS, EOS, USER, ASSISTANT, OPEN, CLOSE] as const;

const normal: RenderOptions = { think: 'normal' };
const none: RenderOptions = { think: 'none' };

/** The prompt as text. Together with the property below (text spans are encoded as units) this tells the ids. */
function rendered(messages: readonly Message[], options: RenderOptions): string {
  return Buffer.from(tokenizer.decode(chat.render(messages, options))).toString();
}

function system(content: string): Message {
  return { role: 'system', content };
}

function user(content: string): Message {
  return { role: 'user', content };
}

function assistant(content: string, reasoning?: string): Message {
  return { role: 'assistant', content, ...(reasoning === undefined ? {} : { reasoning }) };
}

describe('rendering', () => {
  it.each<[string, Message[], RenderOptions, string]>([
    [
      'a question with thinking',
      [system('S'), user('Q')],
      normal,
      `${BOS}S${USER}Q${ASSISTANT}${OPEN}`,
    ],
    [
      'a question without thinking',
      [system('S'), user('Q')],
      none,
      `${BOS}S${USER}Q${ASSISTANT}${CLOSE}`,
    ],
    ['a question without system text', [user('Q')], none, `${BOS}${USER}Q${ASSISTANT}${CLOSE}`],
    ['an empty system text', [system(''), user('Q')], none, `${BOS}${USER}Q${ASSISTANT}${CLOSE}`],
    ['an empty question', [user('')], normal, `${BOS}${USER}${ASSISTANT}${OPEN}`],
    [
      'white space as it is',
      [system(' s\n'), user('\n q ')],
      none,
      `${BOS} s\n${USER}\n q ${ASSISTANT}${CLOSE}`,
    ],
    ['system text alone', [system('S')], normal, `${BOS}S`],
    ['nothing', [], none, BOS],
    [
      'the effort prefix before the system text',
      [system('S'), user('Q')],
      { think: 'max', effortPrefix: 'P\n\n' },
      `${BOS}P\n\nS${USER}Q${ASSISTANT}${OPEN}`,
    ],
    [
      'maximum effort without a prefix as normal thinking',
      [user('Q')],
      { think: 'max' },
      `${BOS}${USER}Q${ASSISTANT}${OPEN}`,
    ],
    [
      'no effort prefix with normal thinking',
      [user('Q')],
      { think: 'normal', effortPrefix: 'P' },
      `${BOS}${USER}Q${ASSISTANT}${OPEN}`,
    ],
    [
      'no effort prefix without thinking',
      [user('Q')],
      { think: 'none', effortPrefix: 'P' },
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}`,
    ],
    [
      'an earlier turn without its reasoning',
      [user('Q'), assistant('A', 'R'), user('Q2')],
      normal,
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}A${EOS}${USER}Q2${ASSISTANT}${OPEN}`,
    ],
    [
      'an earlier turn alike without thinking',
      [user('Q'), assistant('A', 'R'), user('Q2')],
      none,
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}A${EOS}${USER}Q2${ASSISTANT}${CLOSE}`,
    ],
    [
      'the last answer with its reasoning',
      [user('Q'), assistant('A', 'R')],
      normal,
      `${BOS}${USER}Q${ASSISTANT}${OPEN}R${CLOSE}A${EOS}`,
    ],
    [
      'the last answer without thinking',
      [user('Q'), assistant('A', 'R')],
      none,
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}A${EOS}`,
    ],
    [
      'questions in a row as one turn',
      [user('Q1'), user('Q2'), user('Q3')],
      none,
      `${BOS}${USER}Q1\n\nQ2\n\nQ3${ASSISTANT}${CLOSE}`,
    ],
    [
      'system texts gathered at the front',
      [system('S1'), user('Q'), system('S2'), assistant('A'), system(''), user('Q2')],
      none,
      `${BOS}S1\n\nS2${USER}Q${ASSISTANT}${CLOSE}A${EOS}${USER}Q2${ASSISTANT}${CLOSE}`,
    ],
    [
      'a turn that was interrupted while thinking, closed',
      [user('Q'), assistant('', 'R'), user('Q2')],
      normal,
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}${EOS}${USER}Q2${ASSISTANT}${OPEN}`,
    ],
    [
      'a turn that was interrupted while answering, closed',
      [user('Q'), assistant('half an ans'), user('Q2')],
      none,
      `${BOS}${USER}Q${ASSISTANT}${CLOSE}half an ans${EOS}${USER}Q2${ASSISTANT}${CLOSE}`,
    ],
  ])('renders %s', (_, messages, options, expected) => {
    expect(rendered(messages, options)).toBe(expected);
    expect(chat.render(messages, options)).toEqual(tokenizer.encodeWithSpecials(expected));
  });

  it('encodes prefix and system text as one span', () => {
    const ids = chat.render([system('lo'), user('x')], { think: 'max', effortPrefix: 'Hel' });

    expect(ids.subarray(1, -4)).toEqual(tokenizer.encode('Hello'));
  });

  it('never lets the text of a message yield a marker', () => {
    const text = fc
      .array(fc.constantFrom(...markers, '｜DSML｜', 'a', ' ', '<', '\n', '你'), { maxLength: 6 })
      .map((parts) => parts.join(''));
    fc.assert(
      fc.property(text, text, text, text, (first, second, third, fourth) => {
        const ids = chat.render(
          [
            system(first),
            user(second),
            assistant(third, first),
            user(fourth),
            assistant(first, second),
          ],
          { think: 'max', effortPrefix: third },
        );

        expect(
          Array.from(ids)
            .filter((id) => tokenizer.isSpecial(id))
            .map((id) => tokenizer.storedPiece(id)),
        ).toEqual([BOS, USER, ASSISTANT, CLOSE, EOS, USER, ASSISTANT, OPEN, CLOSE, EOS]);
      }),
      { numRuns: 200, seed: 1 },
    );
  });

  it('costs tokens for a marker in the text as for any other text', () => {
    const empty = chat.render([user('')], none).length;

    expect(chat.render([user(USER)], none).length - empty).toBe(tokenizer.encode(USER).length);
    expect(chat.render([user(USER)], none).length - empty).toBe(5);
    expect(chat.render([user(OPEN)], none).length - empty).toBe(3);
  });

  it('takes bytes that are not UTF-8 as they are, also beside strings', () => {
    const content = Uint8Array.of(0x61, 0xff, 0xfe);

    const ids = chat.render([{ role: 'user', content }, user('b')], none);

    const expected = Buffer.concat([
      Buffer.from(`${BOS}${USER}`),
      content,
      Buffer.from(`\n\nb${ASSISTANT}${CLOSE}`),
    ]);
    expect(Buffer.from(tokenizer.decode(ids)).equals(expected)).toBe(true);
  });

  it('extends the prompt of a turn without thinking by that turn, so that its state can go on', () => {
    const first = chat.render([system('S'), user('Q')], none);
    // A model may cut a text otherwise than the encoder does.
    const sampled = Int32Array.from('Yes, indeed.', (letter) => tokenizer.encode(letter)[0]!);
    const reply = chat.parseReply(sampled, 'none');

    const second = chat.render([system('S'), user('Q'), reply, user('Q2')], none);

    expect(second.subarray(0, first.length + sampled.length)).toEqual(
      Int32Array.of(...first, ...sampled),
    );
  });
});

describe('a reply', () => {
  function parsed(text: string, think: 'none' | 'normal') {
    const { contentTokens, ...reply } = chat.parseReply(tokenizer.encodeWithSpecials(text), think);
    return {
      ...reply,
      tokens: contentTokens && Buffer.from(tokenizer.decode(contentTokens)).toString(),
    };
  }

  it.each([
    [`R${CLOSE}A`, { reasoning: 'R', content: 'A', tokens: 'A' }],
    [`R${CLOSE}A${EOS}`, { reasoning: 'R', content: 'A', tokens: 'A' }],
    [`R${CLOSE}A${CLOSE}B`, { reasoning: 'R', content: `A${CLOSE}B`, tokens: `A${CLOSE}B` }],
    [`${CLOSE}A`, { reasoning: '', content: 'A', tokens: 'A' }],
    [`R${CLOSE}`, { reasoning: 'R', content: '', tokens: '' }],
    ['R without end', { reasoning: 'R without end', content: '', tokens: undefined }],
    ['', { reasoning: '', content: '', tokens: undefined }],
    [` R\n${CLOSE}\n\nA \n`, { reasoning: ' R\n', content: '\n\nA \n', tokens: '\n\nA \n' }],
  ])('with thinking is split at the first closing tag: %s', (text, expected) => {
    expect(parsed(text, 'normal')).toEqual({ role: 'assistant', ...expected });
  });

  it.each([
    ['A', { content: 'A', tokens: 'A' }],
    [`A${EOS}`, { content: 'A', tokens: 'A' }],
    [`A${USER}`, { content: 'A', tokens: 'A' }],
    ['', { content: '', tokens: '' }],
  ])('without thinking is all content: %s', (text, expected) => {
    expect(parsed(text, 'none')).toEqual({ role: 'assistant', ...expected });
  });

  it('is split at a closing tag that ordinary tokens spell, as it is shown', () => {
    const ids = tokenizer.encode(`R${CLOSE}A`);

    expect(chat.parseReply(ids, 'normal')).toMatchObject({ reasoning: 'R', content: 'A' });
  });

  it('keeps no content tokens when one token holds the end of the tag and the start of the content', () => {
    const ids = tokenizer.encode(`R${CLOSE}\nA`);
    expect(tokenizer.storedPiece(ids.at(-2)!)).toBe('>Ċ');

    const reply = chat.parseReply(ids, 'normal');

    expect(reply).toEqual({ role: 'assistant', reasoning: 'R', content: '\nA' });
  });

  it('shows bytes that are no text as U+FFFD but keeps their tokens', () => {
    const ids = tokenizer.encode(Uint8Array.of(0x61, 0xff));

    const reply = chat.parseReply(ids, 'none');

    expect(reply.content).toBe('a\ufffd');
    expect(reply.contentTokens).toEqual(ids);
  });
});

describe('stop tokens', () => {
  const names = (think: 'none' | 'normal') =>
    Array.from(chat.stopTokens(think), (id) => tokenizer.storedPiece(id)).sort();

  it('are the end mark and the marks of a prompt', () => {
    expect(names('normal')).toEqual([BOS, EOS, USER, ASSISTANT].sort());
  });

  it('include the think tags when nothing would hide them', () => {
    expect(names('none')).toEqual([...markers].sort());
  });
});

describe('a prompt that is rendered already', () => {
  it.each([
    [`${BOS}x`, true],
    [`${USER}x`, true],
    [` ${USER}x`, false],
    [`${ASSISTANT}x`, false],
    [BOS.slice(0, -1), false],
    ['', false],
    ['hello', false],
  ])('is told from %j', (prompt, expected) => {
    expect(chat.isRendered(prompt)).toBe(expected);
    expect(chat.isRendered(Buffer.from(prompt))).toBe(expected);
  });
});

describe('a vocabulary without chat markers', () => {
  it('is refused with the names of all that it lacks', () => {
    const build = () => new Chat(new Tokenizer(deepseekV3Vocabulary()));

    expect(build).toThrow(ChatError);
    expect(build).toThrow(/no special token <think>, <\/think>;/);
  });
});
