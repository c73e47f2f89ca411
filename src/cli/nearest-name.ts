/** Letters to change, insert, delete or swap with their neighbour to turn one text into the other. */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row += 1) {
    const next = [row];
    for (let column = 1; column <= b.length; column += 1) {
      const same = a[row - 1] === b[column - 1];
      let distance = Math.min(
        (last[column] ?? 0) + 1,
        (next[column - 1] ?? 0) + 1,
        (last[column - 1] ?? 0) + (same ? 0 : 1),
      );
      if (row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]) {
        distance = Math.min(distance, (before[column - 2] ?? 0) + 1);
      }
      next.push(distance);
    }
    before = last;
    last = next;
  }
  return last[b.length] ?? 0;
}

/** The name that was probably meant, or undefined when none is near enough to be worth a guess. */
export function nearestName(text: string, names: readonly string[]): string | undefined {
  const bare = text.replace(/^-+/, '');
  if (bare.length < 2) {
    return undefined;
  }
  let best: string | undefined;
  let bestDistance = Math.floor(bare.length / 3) + 1;
  for (const name of names) {
    const distance = editDistance(bare, name.replace(/^-+/, ''));
    if (distance < bestDistance) {
      best = name;
      bestDistance = distance;
    }
  }
  return best;
}
