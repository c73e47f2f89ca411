/** Points in the units of the axes. */
export interface Line {
  readonly name: string;
  readonly colour: string;
  readonly kind: 'measured' | 'limit';
  readonly points: readonly (readonly [x: number, y: number])[];
}

export interface Axis {
  readonly name: string;
  readonly most: number;
  readonly ticks: number;
  readonly text: (value: number) => string;
}

const picture = { width: 760, height: 420, left: 70, right: 24, top: 40, bottom: 96 };
const legendColumns = 2;

function escape(text: string): string {
  return text.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** Lines over two axes that begin at zero, with a legend below. What was measured has dots, a limit is dashed. */
export function chartText(title: string, across: Axis, up: Axis, lines: readonly Line[]): string {
  const { width, height, left, right, top, bottom } = picture;
  const x = (value: number): string =>
    (left + ((width - left - right) * value) / across.most).toFixed(1);
  const y = (value: number): string =>
    (height - bottom - ((height - top - bottom) * value) / up.most).toFixed(1);
  const marks = ({ ticks, most }: Axis): number[] =>
    Array.from({ length: ticks + 1 }, (_, index) => (index * most) / ticks);
  const text = (at: readonly [string | number, string | number], more: string, what: string) =>
    `<text x="${at[0]}" y="${at[1]}" ${more}>${escape(what)}</text>`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    text([left, 22], 'font-size="15" font-weight="600" fill="#1f2937"', title),
    ...marks(up).flatMap((value) => [
      `<line x1="${left}" x2="${width - right}" y1="${y(value)}" y2="${y(value)}" stroke="#e5e7eb"/>`,
      text([left - 8, y(value)], 'dy="4" text-anchor="end" fill="#4b5563"', up.text(value)),
    ]),
    ...marks(across).map((value) =>
      text(
        [x(value), height - bottom + 18],
        'text-anchor="middle" fill="#4b5563"',
        across.text(value),
      ),
    ),
    text(
      [(left + width - right) / 2, height - bottom + 36],
      'text-anchor="middle" fill="#4b5563"',
      across.name,
    ),
    `<text transform="translate(16 ${(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle" fill="#4b5563">${escape(up.name)}</text>`,
    ...lines.flatMap(({ name, colour, kind, points }, index) => {
      const dash = kind === 'limit' ? ' stroke-dasharray="5 4"' : '';
      const legendX = left + (index % legendColumns) * ((width - left - right) / legendColumns);
      const legendY = height - bottom + 60 + Math.floor(index / legendColumns) * 18;
      return [
        `<polyline points="${points.map(([px, py]) => `${x(px)},${y(py)}`).join(' ')}" fill="none" stroke="${colour}" stroke-width="2"${dash}/>`,
        ...(kind === 'measured'
          ? points.map(([px, py]) => `<circle cx="${x(px)}" cy="${y(py)}" r="3" fill="${colour}"/>`)
          : []),
        `<line x1="${legendX}" x2="${legendX + 26}" y1="${legendY - 4}" y2="${legendY - 4}" stroke="${colour}" stroke-width="2"${dash}/>`,
        text([legendX + 32, legendY], 'fill="#1f2937"', name),
      ];
    }),
    '</svg>',
    '',
  ].join('\n');
}
