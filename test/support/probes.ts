// Questions whose right answers are known, for the model that comes with ds4. Asked through any memory mode, tier or
// split they must be answered alike: a lost KV row or a wrong expert shows as a wrong word.

export interface Probe {
  readonly name: string;
  readonly prompt: string;
  readonly answer: string;
}

const places = ['north tower', 'old mill', 'lighthouse', 'stone bridge', 'red barn', 'castle yard'];
const codes = [
  'amber-falcon',
  'cobalt-raven',
  'ivory-cedar',
  'golden-heron',
  'olive-marten',
  'jade-walrus',
];
const adjectives = ['old', 'small', 'quiet', 'bright', 'narrow', 'cold', 'round', 'wooden'];
const nouns = [
  'lamp',
  'stone',
  'river',
  'garden',
  'window',
  'bridge',
  'forest',
  'letter',
  'candle',
];
const verbs = ['stands', 'lies', 'waits', 'shines', 'rests', 'hangs', 'leans', 'stays'];

/** A sentence of filler; the same number gives the same one. About ten tokens. */
function filler(index: number): string {
  const pick = (words: readonly string[], step: number): string =>
    words[(index * step + Math.floor(index / words.length)) % words.length] ?? '';
  return ` The ${pick(adjectives, 3)} ${pick(nouns, 5)} ${pick(verbs, 7)} near the ${pick(nouns, 2)}.`;
}

function fillerText(from: number, sentences: number): string {
  return Array.from({ length: sentences }, (_, index) => filler(from + index)).join('');
}

/**
 * A text with a code word for every place, the asked one first, followed by `sentences` sentences of filler.
 * The window of attention ends after 128 tokens: farther back only compressed rows know the answer.
 */
export function needle(asked: number, sentences: number): Probe {
  const facts = places.map(
    (place, index) => ` The code word for the ${place} is ${codes[index] ?? ''}.`,
  );
  const order = [asked, ...places.keys()].filter((index, at) => at === 0 || index !== asked);
  const told = order.map((index, at) => `${facts[index] ?? ''}${fillerText(17 * at, 2)}`).join('');
  const place = places[asked] ?? '';
  return {
    name: `needle behind ${sentences} sentences`,
    prompt: `Read this text:${fillerText(0, 3)}${told}${fillerText(100, sentences)} What is the code word for the ${place}?`,
    answer: `The code word is ${codes[asked] ?? ''}.`,
  };
}

export function sum(a: number, b: number): Probe {
  return { name: `${a} + ${b}`, prompt: `What is ${a} + ${b}?`, answer: `${a} + ${b} = ${a + b}.` };
}
