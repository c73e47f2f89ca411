import type { PolicyName } from './caches.js';

/** Hit rates of one policy, 0 to 1, in the order of the capacities. */
export interface Curve {
  readonly policy: PolicyName;
  readonly rates: readonly number[];
}

const picture = { width: 760, height: 380, left: 60, right: 110, top: 46, bottom: 52 };
const colours: Readonly<Record<PolicyName, string>> = {
  LRU: '#0b6bcb',
  LFRU: '#c2410c',
  'static pin': '#15803d',
  Belady: '#6b7280',
};

function escape(text: string): string {
  return text.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** Hit rate over capacity; the distance of two capacities shows their ratio. */
export function chartText(
  title: string,
  capacities: readonly number[],
  curves: readonly Curve[],
): string {
  const { width, height, left, right, top, bottom } = picture;
  const [least, most] = [Math.min(...capacities), Math.max(...capacities)];
  const span = Math.max(Math.log(most / least), 1e-9);
  const x = (capacity: number): string =>
    (left + ((width - left - right) * Math.log(capacity / least)) / span).toFixed(1);
  const y = (rate: number): string => (height - bottom - (height - top - bottom) * rate).toFixed(1);
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `<text x="${left}" y="22" font-size="15" font-weight="600" fill="#1f2937">${escape(title)}</text>`,
    ...[0, 0.25, 0.5, 0.75, 1].flatMap((rate) => [
      `<line x1="${left}" x2="${width - right}" y1="${y(rate)}" y2="${y(rate)}" stroke="#e5e7eb"/>`,
      `<text x="${left - 8}" y="${y(rate)}" dy="4" text-anchor="end" fill="#4b5563">${100 * rate} %</text>`,
    ]),
    ...capacities.map(
      (capacity) =>
        `<text x="${x(capacity)}" y="${height - bottom + 18}" text-anchor="middle" fill="#4b5563">${capacity}</text>`,
    ),
    `<text x="${(left + width - right) / 2}" y="${height - 12}" text-anchor="middle" fill="#4b5563">slots</text>`,
  ];
  curves.forEach(({ policy, rates }, index) => {
    const colour = colours[policy];
    const points = capacities.map(
      (capacity, place) => [x(capacity), y(rates[place] ?? 0)] as const,
    );
    parts.push(
      `<polyline points="${points.map((point) => point.join()).join(' ')}" fill="none" stroke="${colour}" stroke-width="2"/>`,
      ...points.map(([cx, cy]) => `<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"/>`),
      `<text x="${width - right + 14}" y="${top + 14 + 20 * index}" fill="${colour}">${policy}</text>`,
    );
  });
  return [...parts, '</svg>', ''].join('\n');
}
