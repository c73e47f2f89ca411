import { StringDecoder } from 'node:string_decoder';

export type KeyName =
  | 'enter'
  | 'newline'
  | 'backspace'
  | 'delete'
  | 'left'
  | 'right'
  | 'up'
  | 'down'
  | 'home'
  | 'end'
  | 'wordLeft'
  | 'wordRight'
  | 'deleteWord'
  | 'killLine'
  | 'killToEnd'
  | 'transpose'
  | 'clearScreen'
  | 'interrupt'
  | 'endOfFile'
  | 'suspend'
  | 'previous'
  | 'next';

export type Key =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'paste'; readonly text: string }
  | { readonly kind: 'key'; readonly name: KeyName };

const controls: Readonly<Record<string, KeyName>> = {
  '\u0001': 'home',
  '\u0002': 'left',
  '\u0003': 'interrupt',
  '\u0004': 'endOfFile',
  '\u0005': 'end',
  '\u0006': 'right',
  '\b': 'backspace',
  '\n': 'newline',
  '\u000b': 'killToEnd',
  '\f': 'clearScreen',
  '\r': 'enter',
  '\u000e': 'next',
  '\u0010': 'previous',
  '\u0014': 'transpose',
  '\u0015': 'killLine',
  '\u0017': 'deleteWord',
  '\u001a': 'suspend',
  '\u007f': 'backspace',
};

/** What follows ESC [ or ESC O. */
const sequences: Readonly<Record<string, KeyName>> = {
  A: 'up',
  B: 'down',
  C: 'right',
  D: 'left',
  H: 'home',
  F: 'end',
  '1~': 'home',
  '3~': 'delete',
  '4~': 'end',
  '7~': 'home',
  '8~': 'end',
  '1;5C': 'wordRight',
  '1;5D': 'wordLeft',
  '1;3C': 'wordRight',
  '1;3D': 'wordLeft',
};

const altKeys: Readonly<Record<string, KeyName>> = {
  b: 'wordLeft',
  f: 'wordRight',
  '\r': 'newline',
  '\n': 'newline',
  '\u007f': 'deleteWord',
};

const pasteStart = '\u001b[200~';
const pasteEnd = '\u001b[201~';
const escape = '\u001b';
// eslint-disable-next-line no-control-regex -- escape sequences begin with one
const csi = /^\u001b(?:\[([0-9;?]*[ -/]*[@-~])|O([@-~]))/;
// eslint-disable-next-line no-control-regex -- escape sequences begin with one
const unfinishedCsi = /^\u001b(?:\[[0-9;?]*[ -/]*|O)?$/;

/** Turns terminal input into keys. Characters and escape sequences may be split over any number of chunks. */
export class KeyDecoder {
  readonly #utf8 = new StringDecoder('utf8');
  #rest = '';
  #paste: string | undefined;

  /** Input that may be the beginning of an escape sequence is being held back. */
  get isPending(): boolean {
    return this.#rest !== '';
  }

  push(bytes: Uint8Array): Key[] {
    this.#rest += this.#utf8.write(Buffer.from(bytes));
    const keys: Key[] = [];
    for (;;) {
      const key = this.#paste === undefined ? this.#nextKey() : this.#nextPaste();
      if (key === 'more') {
        return keys;
      }
      if (key !== 'nothing') {
        keys.push(key);
      }
    }
  }

  /** Gives up waiting for the rest of an escape sequence: it was the Escape key, which does nothing. */
  dropPending(): void {
    if (this.#paste === undefined) {
      this.#rest = '';
    }
  }

  #take(length: number): string {
    const taken = this.#rest.slice(0, length);
    this.#rest = this.#rest.slice(length);
    return taken;
  }

  #nextKey(): Key | 'nothing' | 'more' {
    if (this.#rest === '') {
      return 'more';
    }
    if (this.#rest.startsWith(escape)) {
      return this.#nextSequence();
    }
    const control = controls[this.#rest.charAt(0)];
    if (control !== undefined) {
      this.#take(1);
      return { kind: 'key', name: control };
    }
    // eslint-disable-next-line no-control-regex -- control characters are what ends a run of text
    const text = /^[^\u0000-\u001f\u007f]+/.exec(this.#rest)?.[0];
    if (text === undefined) {
      this.#take(1);
      return 'nothing';
    }
    return { kind: 'text', text: this.#take(text.length) };
  }

  #nextSequence(): Key | 'nothing' | 'more' {
    if (this.#rest.startsWith(pasteStart)) {
      this.#take(pasteStart.length);
      this.#paste = '';
      return 'nothing';
    }
    if (unfinishedCsi.test(this.#rest)) {
      return 'more';
    }
    const match = csi.exec(this.#rest);
    if (match !== null) {
      this.#take(match[0].length);
      const name = sequences[match[1] ?? match[2] ?? ''];
      return name === undefined ? 'nothing' : { kind: 'key', name };
    }
    const name = altKeys[this.#rest.charAt(1)];
    this.#take(2);
    return name === undefined ? 'nothing' : { kind: 'key', name };
  }

  #nextPaste(): Key | 'nothing' | 'more' {
    const end = this.#rest.indexOf(pasteEnd);
    if (end < 0) {
      // The end mark may be split over chunks: its possible beginning stays in the rest.
      const safe = Math.max(0, this.#rest.length - pasteEnd.length + 1);
      this.#paste = (this.#paste ?? '') + this.#take(safe);
      return 'more';
    }
    const text = (this.#paste ?? '') + this.#take(end);
    this.#take(pasteEnd.length);
    this.#paste = undefined;
    return { kind: 'paste', text: text.replace(/\r\n?/g, '\n') };
  }
}
