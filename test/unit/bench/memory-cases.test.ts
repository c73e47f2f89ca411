import { expect, test } from 'vitest';
import { copiesCase, overflowCase, streamingCase, wholeCase } from '../../../bench/memory/cases.js';
import { budgetFor, byOption, bySimulation } from '../../../bench/memory/imposed.js';
import { factsOf, layersWithin } from '../../../bench/memory/model-facts.js';
import { parseShares } from '../../../bench/memory/shares.js';
import type { Wanted } from '../../../bench/memory/shares.js';
import { gib, model as description } from '../plan/machines.js';

const model = factsOf('flash.gguf', description);
const context = 4096;
const real = byOption(context);

function wanted(text: string): Wanted {
  const [one] = parseShares(text);
  if (one === undefined) {
    throw new Error('nothing wanted');
  }
  return one;
}

/** The value behind an option. */
function valueOf(options: readonly string[], name: string): string | undefined {
  const at = options.indexOf(name);
  return at < 0 ? undefined : options[at + 1];
}

test('the facts of a model are its experts and what one token needs of them', () => {
  expect(model).toMatchObject({ layers: 43, experts: 11_008, used: 6, vocab: 129_280 });
  expect(model.tokenBytes).toBe(43 * 6 * 7_077_888);
});

test('as many layers fit as bytes say', () => {
  const layer = 166_946_504 + 256 * 7_077_888;
  const outside = 1_059_061_760 + 562_626_560;
  expect(layersWithin(model, outside + 3 * layer)).toBe(3);
  expect(layersWithin(model, outside + 3 * layer - 1)).toBe(2);
  expect(layersWithin(model, outside)).toBe(0);
  expect(layersWithin(model, 1000 * gib)).toBe(43);
});

test.each(['75%', '50%', '20%'])(
  'whole GiB of a card come as near to %s of the experts as they can',
  (text) => {
    const one = overflowCase(model, real, wanted(text));
    const share = Number.parseInt(text, 10) / 100;
    // Half a GiB of 72.6 GiB of experts, and the prefill chunk that goes with it.
    expect(Math.abs((one?.share ?? 0) - share)).toBeLessThan(0.01);
    expect(one?.options).toEqual(['--gpu-vram', String(one?.budgetGib)]);
    const less = (one?.budgetGib ?? 0) - 1;
    expect(real.slots(model, less)).toBeLessThan((one?.share ?? 0) * model.experts);
  },
);

test('a number is the card itself', () => {
  const one = overflowCase(model, real, wanted('38'));
  expect(valueOf(one?.options ?? [], '--gpu-vram')).toBe('38');
  expect((one?.share ?? 0) * model.experts).toBe(real.slots(model, 38));
  // Without the weights outside the experts and what the session takes.
  expect(one?.share).toBeLessThan((38 - 8.2) / 72.56);
  expect(one?.share).toBeGreaterThan(0.3);
});

test('a card on which everything fits, or nothing, leaves no experts in main memory', () => {
  expect(() => budgetFor(real, model, wanted('100'))).toThrow(
    'with 100 GiB of flash.gguf the experts would not stay in main memory',
  );
  expect(() => budgetFor(bySimulation('', context), model, wanted('2'))).toThrow('name a smaller');
});

test('all and none of the experts are asked for by name, not by the size of the card', () => {
  expect(overflowCase(model, real, wanted('100%'))).toBeUndefined();
  expect(overflowCase(model, real, wanted('0%'))?.options).toEqual(['--no-gpu-resident']);
  expect(wholeCase(model, real).options).toEqual(['--gpu-resident']);
  const cache = (text: string): string | undefined =>
    valueOf(streamingCase(model, real, wanted(text)).options, '--ssd-streaming-cache-experts');
  expect([cache('0%'), cache('100%')]).toEqual(['6', '11008']);
});

test('streaming has the slots of overflow on the same card, less those of one token in transit', () => {
  const overflow = overflowCase(model, real, wanted('50%'));
  const streaming = streamingCase(model, real, wanted('50%'));
  expect(valueOf(streaming.options, '--gpu-vram')).toBe(String(overflow?.budgetGib));
  expect(Number(valueOf(streaming.options, '--ssd-streaming-cache-experts'))).toBe(
    Math.round((overflow?.share ?? 0) * model.experts) - 6,
  );
  expect(streaming.options).toEqual(expect.arrayContaining(['--ssd-streaming', '--direct-io']));
});

test('a copy at each use keeps no expert and reads through the page cache', () => {
  const { options } = copiesCase(model, real);
  expect(valueOf(options, '--ssd-streaming-cache-experts')).toBe('6');
  expect(valueOf(options, '--host-expert-cache')).toBe('0');
  expect(options).toContain('--no-mmap');
  expect(options).not.toContain('--direct-io');
});

test('a simulated card is made small by its size, with the rest of its description', () => {
  const simulated = bySimulation('ram=200,link=25', context);
  const one = overflowCase(model, simulated, wanted('50%'));
  const machine = valueOf(one?.options ?? [], '--sim');
  expect(machine).toMatch(/^vram=[0-9.]+,ram=200,link=25$/);
  expect(Math.abs((one?.share ?? 0) - 0.5)).toBeLessThan(0.01);
  expect(wholeCase(model, simulated).options).toContain('--gpu-resident');
});
