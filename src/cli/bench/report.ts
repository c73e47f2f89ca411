import type { LoadPlan } from '../../plan/index.js';
import type { Machine } from './machine.js';
import type { Row } from './measure.js';
import type { Window } from './windows.js';

/** The columns of a row, in their order, as they stand in CSV. */
const columns: readonly (readonly [name: string, value: (row: Row) => string])[] = [
  ['ctx_tokens', ({ context }) => String(context)],
  ['prefill_tokens', ({ prefillTokens }) => String(prefillTokens)],
  ['prefill_tps', ({ prefillRate }) => prefillRate.toFixed(2)],
  ['gen_tokens', ({ generated }) => String(generated)],
  ['gen_tps', ({ generateRate }) => generateRate.toFixed(2)],
  ['gen_first_ms', ({ firstMs }) => firstMs.toFixed(3)],
  ['gen_steady_tokens', ({ steadyTokens }) => String(steadyTokens)],
  ['gen_steady_tps', ({ steadyRate }) => steadyRate.toFixed(2)],
  ['kvcache_bytes', ({ kvBytes }) => String(kvBytes)],
  ['gen_cycles', ({ cycles }) => String(cycles)],
  ['gen_token_fnv64', ({ tokens }) => tokenHash(tokens)],
];

export const csvHeader = columns.map(([name]) => name).join(',');

export function csvLine(row: Row): string {
  return columns.map(([, value]) => value(row)).join(',');
}

const offset = 0xcbf29ce484222325n;
const prime = 0x100000001b3n;
const mask = (1n << 64n) - 1n;

/** FNV-1a over the token ids as 32-bit little-endian numbers: two runs that agree generated the same tokens. */
export function tokenHash(tokens: readonly number[]): string {
  let hash = offset;
  for (const token of tokens) {
    for (let shift = 0; shift < 32; shift += 8) {
      hash = ((hash ^ BigInt((token >>> shift) & 0xff)) * prime) & mask;
    }
  }
  return hash.toString(16).padStart(16, '0');
}

export interface Report {
  readonly machine: Machine;
  readonly model: { readonly path: string; readonly bytes: number };
  readonly context: number;
  readonly prefillChunk: number;
  readonly loadSeconds: number;
  readonly weightBytes: number;
  readonly deviceBytes: number;
  readonly weights: Pick<LoadPlan['weights'], 'place' | 'source'>;
  readonly rows: readonly Row[];
}

function windowJson({ tokens, ms, traffic }: Window): object {
  return {
    gen_tokens: tokens,
    gen_tps: Number(((tokens * 1000) / Math.max(ms, 1e-6)).toFixed(2)),
    expert_lookups: traffic.lookups,
    expert_slot_hits: traffic.slotHits,
    expert_host_hits: traffic.hostHits,
    expert_in_flight_hits: traffic.inFlightHits,
    expert_misses: traffic.misses,
    expert_promotions: traffic.promotions,
    file_read_bytes: traffic.fileReadBytes,
    upload_bytes: traffic.uploadBytes,
    bus_read_bytes: traffic.busReadBytes,
  };
}

/** The hash is a name and no number, though it may look like one. */
function jsonValue(name: string, text: string): string | number {
  return name === 'gen_token_fnv64' ? text : Number(text);
}

/** docs/json-output.md describes the file. */
export function jsonText(report: Report): string {
  const rows = report.rows.map((row) => ({
    ...Object.fromEntries(columns.map(([name, value]) => [name, jsonValue(name, value(row))])),
    ...(row.windows === undefined ? {} : { gen_windows: row.windows.map(windowJson) }),
  }));
  return `${JSON.stringify({ source: 'ds4-bench', version: 1, ...report, rows }, undefined, 2)}\n`;
}

const picture = { width: 760, height: 380, left: 70, right: 70, top: 46, bottom: 52 };

function ticks(highest: number): number[] {
  const step = 10 ** Math.floor(Math.log10(highest));
  const fine = highest / step < 2.5 ? step / 2 : step;
  return Array.from({ length: Math.floor(highest / fine) + 1 }, (_, index) => index * fine);
}

/** Prefill on the left scale, generation on the right one, over the context. */
export function svgText(title: string, rows: readonly Row[]): string {
  const { width, height, left, right, top, bottom } = picture;
  const most = (values: number[]): number => 1.08 * Math.max(...values, 1e-9);
  const contexts = most(rows.map(({ context }) => context));
  const lines = [
    { name: 'prefill', colour: '#0b6bcb', side: 'left', values: rows.map((r) => r.prefillRate) },
    { name: 'decode', colour: '#c2410c', side: 'right', values: rows.map((r) => r.generateRate) },
  ] as const;
  const x = (context: number): number => left + ((width - left - right) * context) / contexts;
  const y = (value: number, highest: number): number =>
    height - bottom - ((height - top - bottom) * value) / highest;
  const escape = (text: string): string =>
    text.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `<text x="${left}" y="22" font-size="15" font-weight="600" fill="#1f2937">${escape(title)}</text>`,
  ];
  for (const tick of ticks(contexts)) {
    const at = x(tick).toFixed(1);
    parts.push(
      `<line x1="${at}" x2="${at}" y1="${top}" y2="${height - bottom}" stroke="#e5e7eb"/>`,
      `<text x="${at}" y="${height - bottom + 18}" text-anchor="middle" fill="#4b5563">${tick}</text>`,
    );
  }
  parts.push(
    `<text x="${width / 2}" y="${height - 12}" text-anchor="middle" fill="#4b5563">context, tokens</text>`,
  );
  for (const { name, colour, side, values } of lines) {
    const highest = most(values);
    const anchor = side === 'left' ? 'end' : 'start';
    const edge = side === 'left' ? left - 8 : width - right + 8;
    for (const tick of ticks(highest)) {
      parts.push(
        `<text x="${edge}" y="${(y(tick, highest) + 4).toFixed(1)}" text-anchor="${anchor}" fill="${colour}">${tick}</text>`,
      );
    }
    const points = rows.map(
      (row, index) => `${x(row.context).toFixed(1)},${y(values[index] ?? 0, highest).toFixed(1)}`,
    );
    parts.push(
      `<polyline points="${points.join(' ')}" fill="none" stroke="${colour}" stroke-width="2"/>`,
      ...points.map((point) => {
        const [cx = '', cy = ''] = point.split(',');
        return `<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"/>`;
      }),
      `<text x="${side === 'left' ? left : width - right}" y="40" text-anchor="${side === 'left' ? 'start' : 'end'}" fill="${colour}">${name}, tokens per second</text>`,
    );
  }
  return [...parts, '</svg>', ''].join('\n');
}
