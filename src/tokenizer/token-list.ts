/** Token ids that grow at the end. */
export class TokenList {
  private ids = new Int32Array(64);
  private count = 0;

  get length(): number {
    return this.count;
  }

  push(id: number): void {
    this.reserve(1);
    this.ids[this.count++] = id;
  }

  append(ids: Int32Array): void {
    this.reserve(ids.length);
    if (ids.length === 1) {
      this.ids[this.count] = ids[0] ?? 0;
    } else {
      this.ids.set(ids, this.count);
    }
    this.count += ids.length;
  }

  /** A copy of the ids from `start` on. */
  copyFrom(start: number): Int32Array {
    return this.ids.slice(start, this.count);
  }

  toArray(): Int32Array {
    return this.copyFrom(0);
  }

  private reserve(more: number): void {
    if (this.count + more > this.ids.length) {
      const wider = new Int32Array(Math.max(2 * this.ids.length, this.count + more));
      wider.set(this.ids);
      this.ids = wider;
    }
  }
}
