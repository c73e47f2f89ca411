"""Draws docs/small-model-loss.svg from the records of train.py: python3 tools/small-model/curve.py retrieval.json mixture.json ..."""
import json
import math
import os
import sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 420, 64, 44, 24, 56
LINES = [("answers", 4, "#0b6bcb"), ("code words", 6, "#c2410c")]  # name, column of the history, colour
OUT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "small-model-loss.svg"))


def main(paths):
    points, ends, base = [], [], 0
    for path in paths:
        with open(path) as file:
            record = json.load(file)
        rows = [r for r in record["history"] if r[1] > 0]
        points += [(base + r[1] / 1e6, r) for r in rows]
        base += record["tokens"] / 1e6
        ends.append((os.path.splitext(os.path.basename(path))[0], base))
    floor, top = 1e-4, 10.0
    x = lambda tokens: LEFT + (WIDTH - LEFT - RIGHT) * tokens / base
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (math.log10(top) - math.log10(max(loss, floor))) / (math.log10(top) - math.log10(floor))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="16" font-weight="600" fill="#1f2937">ds4-small: training loss per token (mean of 100 steps)</text>']
    for power in range(-4, 2):
        at = y(10 ** power)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#4b5563">{10 ** power:g}</text>')
    step = 100 if base > 250 else 50
    for tokens in range(0, int(base) + 1, step):
        out.append(f'<text x="{x(tokens):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#4b5563">{tokens}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle" fill="#4b5563">million tokens</text>')
    before = 0
    for i, (phase, end) in enumerate(ends):
        if i:
            out.append(f'<line x1="{x(before):.1f}" x2="{x(before):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#9ca3af" stroke-dasharray="4 4"/>')
        out.append(f'<text x="{x(before) + 5:.1f}" y="{TOP + 14}" fill="#6b7280">{phase}</text>')
        before = end
    for number, (name, column, colour) in enumerate(LINES):
        smooth = []
        for at in range(0, len(points) - 9, 10):
            part = points[at:at + 10]
            values = [r[column] for _, r in part if column != 6 or r[column] > 0]
            if values:
                smooth.append((part[-1][0], sum(values) / len(values)))
        path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in smooth)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linejoin="round"/>')
        out.append(f'<rect x="{WIDTH - 150}" y="{TOP + 24 + 20 * number}" width="14" height="4" fill="{colour}"/>'
                   f'<text x="{WIDTH - 130}" y="{TOP + 30 + 20 * number}" fill="#1f2937">{name}</text>')
    out.append("</svg>")
    with open(OUT, "w") as file:
        file.write("\n".join(out) + "\n")
    print(OUT, len("\n".join(out)), "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
