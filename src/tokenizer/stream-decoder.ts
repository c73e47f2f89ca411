import { incompleteTail } from './utf8.js';

const nothing = new Uint8Array(0);
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });

/** Text for people: invalid sequences become U+FFFD. Feed it what a `StreamDecoder` gives, so that none is split. */
export function textOf(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}

/**
 * Regroups a byte stream so that no piece ends inside a character.
 *
 * Bytes are neither changed nor dropped: all that goes in comes out, in order. Only a sequence that may still become a
 * character waits, at most three bytes; bytes that cannot are passed on as they are as soon as that is certain.
 */
export class StreamDecoder {
  private held: Uint8Array = nothing;

  /** Takes bytes and returns those that are due; the caller owns them. */
  push(bytes: Uint8Array): Uint8Array {
    const all = new Uint8Array(this.held.length + bytes.length);
    all.set(this.held);
    all.set(bytes, this.held.length);
    const due = all.length - incompleteTail(all);
    this.held = all.subarray(due);
    return all.subarray(0, due);
  }

  /** Returns the unfinished character, if one waits, as raw bytes. The decoder can be used again afterwards. */
  end(): Uint8Array {
    const rest = this.held;
    this.held = nothing;
    return rest.slice();
  }
}
