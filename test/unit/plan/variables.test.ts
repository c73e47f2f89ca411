import { describe, expect, test } from 'vitest';
import { planLoad, planSplit } from '../../../src/plan/index.js';
import type { LoadPlan, NamedVariable, PlanRequest } from '../../../src/plan/index.js';
import { card, gib, hostPlan, model, plan, texts } from './machines.js';

function said(planned: Pick<LoadPlan, 'reasons'>, kind = 'note'): string {
  return texts(planned as LoadPlan, kind);
}

function variable(about: NamedVariable['about'], overriddenBy?: string): NamedVariable {
  return { name: 'DS4_X', about, overriddenBy };
}

const streaming: PlanRequest = { experts: { streaming: true } };

describe('a variable that changes nothing is said to', () => {
  test.each<[string, NamedVariable, LoadPlan]>([
    ['with the cpu backend', variable('gpu'), hostPlan({ variables: [variable('gpu')] })],
    [
      'with the cpu backend',
      variable('gpuStreaming'),
      hostPlan({ ...streaming, variables: [variable('gpuStreaming')] }),
    ],
    [
      'where no experts are read from the file',
      variable('gpuStreaming'),
      plan(card(140), {}, { variables: [variable('gpuStreaming')] }),
    ],
    [
      'where no experts are read from the file',
      variable('streaming'),
      hostPlan({ variables: [variable('streaming')] }),
    ],
    [
      'where no weights are read from the file',
      variable('fetching'),
      plan(card(48), {}, { variables: [variable('fetching')] }),
    ],
    [
      'beside --prefill-chunk, which wins',
      variable('session', '--prefill-chunk'),
      plan(card(140), {}, { variables: [variable('session', '--prefill-chunk')] }),
    ],
  ])('%s: %j', (why, _variable, planned) => {
    expect(said(planned)).toContain(`DS4_X has no effect ${why}`);
  });

  test.each<[NamedVariable['about'], LoadPlan]>([
    ['gpu', plan(card(140), {}, { variables: [variable('gpu')] })],
    ['session', hostPlan({ variables: [variable('session')] })],
    ['gpuStreaming', plan(card(48), {}, { ...streaming, variables: [variable('gpuStreaming')] })],
    ['streaming', hostPlan({ ...streaming, variables: [variable('streaming')] })],
    ['fetching', hostPlan({ ...streaming, variables: [variable('fetching')] })],
    ['fetching', plan(card(48), {}, { paging: {}, variables: [variable('fetching')] })],
  ])('and nothing of one that is for what the plan has: %s', (_about, planned) => {
    expect(planned.reasons.map(({ text }) => text).join('\n')).not.toContain('DS4_X');
  });

  test('once for all parts of a model on several GPUs', () => {
    const gpus = [0, 1].map((index) => ({ ...card(40), index }));
    const variables = [variable('q8Copies'), variable('streaming')];
    const split = planSplit(model, { memoryAvailable: 256 * gib, gpus }, { variables });

    expect(said(split, 'headline').split('DS4_X has no effect')).toHaveLength(2);
    expect(said(split).split('DS4_X has no effect')).toHaveLength(2);
  });
});

test.each([
  ['the processor', { memoryAvailable: 256 * gib }],
  ['a GPU', { memoryAvailable: 256 * gib, gpu: card(140) }],
])('the limit of copies that nobody keeps is answered at the start, on %s', (_name, facts) => {
  const planned = planLoad(model, facts, { variables: [variable('q8Copies')] });

  expect(said(planned, 'headline')).toMatch(/DS4_X has no effect: Q8_0 weights are multiplied as/);
});

describe('an option that changes nothing gets a warning', () => {
  test.each<[string, LoadPlan, RegExp]>([
    [
      '--expert-policy with the whole model in GPU memory',
      plan(card(140), {}, { experts: { policy: 'lru' } }),
      /--expert-policy has no effect: every expert has its place for good/,
    ],
    [
      '--expert-policy with experts in main memory that are never copied',
      plan(card(48), { resident: false }, { experts: { policy: 'lfru' } }),
      /--expert-policy has no effect/,
    ],
    [
      '--mmap on a card that takes the whole model',
      plan(card(140), {}, { source: 'mmap' }),
      /--mmap has no effect: a card takes its weights through pinned buffers/,
    ],
  ])('%s', (_name, planned, sentence) => {
    expect(said(planned, 'warning')).toMatch(sentence);
  });

  test('and none where it does', () => {
    const hot = plan(card(48), {}, { source: 'mmap', experts: { policy: 'lfru' } });
    const shared = plan(card(128, 'integrated'), {}, { ramGib: 128, source: 'mmap' });

    expect(hot.weights.experts?.policy).toBe('lfru');
    expect(said(hot, 'warning') + said(shared, 'warning')).toBe('');
  });
});
