import { describe, expect, it } from 'vitest';
import { planReport, reportLines } from '../../../src/cli/plan-report.js';
import type { LoadPlan } from '../../../src/plan/index.js';
import { card, gib, hostPlan, model, plan } from '../plan/machines.js';

function report(planned: LoadPlan, ramGib = 256) {
  return planReport(planned, model, { memoryAvailable: ramGib * gib });
}

function lines(planned: LoadPlan): string {
  return reportLines(planned, report(planned)).join('\n');
}

describe('the places of a plan', () => {
  it('are one row for layers side by side that are in the same place', () => {
    expect(report(plan(card(48))).places).toEqual([
      expect.objectContaining({ part: 'embedding', place: 'device', tensors: 1 }),
      expect.objectContaining({ part: 'layer', place: 'device', firstLayer: 0, lastLayer: 42 }),
      expect.objectContaining({ part: 'experts', place: 'pinnedMapping', firstLayer: 0 }),
      expect.objectContaining({ part: 'head', place: 'device' }),
    ]);
  });

  it('are several rows when a limit cuts through the layers', () => {
    const { places } = report(plan(card(10)));

    const layers = places.filter(({ part }) => part === 'layer');
    expect(new Set(layers.map(({ place }) => place))).toEqual(new Set(['device', 'pinnedMapping']));
    expect(places.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(model.bytes.total);
  });

  it('are a table with the cache, the session and the sums', () => {
    const text = lines(plan(card(48), {}, { experts: { streaming: true } }));

    expect(text).toMatch(/^routed experts +0-42 +file, read when needed +72\.56/m);
    expect(text).toMatch(/^\d+ expert slots +GPU memory +\d+\.\d{4}$/m);
    expect(text).toMatch(/^\d+ experts +main memory, pinned +\d/m);
    expect(text).toMatch(/^session +GPU memory/m);
    expect(text).toMatch(/^GPU memory: \d+\.\d{4} of 45\.1000 GiB$/m);
    expect(text).toMatch(/^main memory: .* of 256\.0000 GiB/m);
    expect(text).toMatch(/^estimate: .* ms a token \(.* tokens\/s\)/m);
  });

  it('of the CPU have no GPU memory', () => {
    const text = lines(hostPlan());

    expect(text).toMatch(/^routed experts +0-42 +mapping +72\.56/m);
    expect(text).not.toContain('GPU');
  });
});

describe('the estimate', () => {
  const seconds = (planned: LoadPlan) => report(planned).estimate.seconds;

  it('orders resident before hot copies before the bus before the file', () => {
    const order = [
      seconds(plan(card(140))),
      seconds(plan(card(48))),
      seconds(plan(card(48), { resident: false })),
      seconds(plan(card(48), {}, { experts: { streaming: true, hostTier: false, percent: 50 } })),
    ];

    expect([...order].sort((a, b) => a - b)).toEqual(order);
  });

  it('counts the routed bytes of one token for experts that are all read over the bus', () => {
    const { mappedBytes, diskBytes, linkBytes } = report(
      plan(card(48), { resident: false }),
    ).estimate;

    expect(mappedBytes).toBe(43 * 6 * 7_077_888);
    expect([diskBytes, linkBytes]).toEqual([0, 0]);
  });

  it('moves nothing of a resident model', () => {
    expect(report(plan(card(140))).estimate).toMatchObject({
      mappedBytes: 0,
      diskBytes: 0,
      linkBytes: 0,
    });
  });

  it('takes the rates that are known', () => {
    const planned = plan(card(48), { resident: false });
    const of = (mapped: number) =>
      planReport(planned, model, { memoryAvailable: 256 * gib, rates: { mapped } }).estimate;

    const [slow, fast] = [of(1e9), of(2e9)];
    expect(slow.seconds - fast.seconds).toBeCloseTo(slow.mappedBytes / 2e9);
  });

  it('of pages is what takes turns, from the disk when main memory cannot keep the file', () => {
    const cost = (slots: number, ramGib: number) =>
      report(plan(card(48), {}, { ramGib, paging: { slots } }), ramGib).estimate;

    expect(cost(43, 256).linkBytes).toBe(0);
    expect(cost(8, 256)).toMatchObject({ diskBytes: 0, linkBytes: 37 * 166_946_504 });
    expect(cost(8, 78).diskBytes).toBe(37 * 166_946_504);
  });
});
