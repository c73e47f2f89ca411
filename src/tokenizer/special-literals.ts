interface Node {
  readonly next: Map<number, Node>;
  id: number | undefined;
}

/** Part of a text: plain text, or the literal of a special token. */
export type TextPart =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'special'; readonly id: number };

/** Finds the literals of special tokens in a text, the leftmost first, the longest of those that start together. */
export class SpecialLiterals {
  private readonly root: Node = { next: new Map(), id: undefined };

  constructor(specials: ReadonlyMap<string, number>) {
    for (const [literal, id] of specials) {
      let node = this.root;
      for (let index = 0; index < literal.length; index++) {
        const unit = literal.charCodeAt(index);
        let child = node.next.get(unit);
        if (child === undefined) {
          child = { next: new Map(), id: undefined };
          node.next.set(unit, child);
        }
        node = child;
      }
      node.id = id;
    }
  }

  *cut(text: string): Generator<TextPart> {
    let end = 0;
    for (let start = 0; start < text.length; start++) {
      const found = this.longestAt(text, start);
      if (found !== undefined) {
        if (start > end) {
          yield { kind: 'text', text: text.slice(end, start) };
        }
        yield { kind: 'special', id: found.id };
        end = start + found.length;
        start = end - 1;
      }
    }
    if (end < text.length) {
      yield { kind: 'text', text: text.slice(end) };
    }
  }

  private longestAt(text: string, start: number): { id: number; length: number } | undefined {
    let found: { id: number; length: number } | undefined;
    let node = this.root.next.get(text.charCodeAt(start));
    for (let end = start + 1; node !== undefined; end++) {
      if (node.id !== undefined) {
        found = { id: node.id, length: end - start };
      }
      node = end < text.length ? node.next.get(text.charCodeAt(end)) : undefined;
    }
    return found;
  }
}
