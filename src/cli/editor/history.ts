import { chmodSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';

const mostEntries = 512;

/**
 * Lines entered before, newest last, kept in a file that only its owner can read. The file is read again before
 * each write, so that two chats do not overwrite each other. A failure to read or write it is nobody's business.
 */
export class History {
  #entries: string[];

  constructor(readonly path: string | undefined) {
    this.#entries = this.#read() ?? [];
  }

  get entries(): readonly string[] {
    return this.#entries;
  }

  #read(): string[] | undefined {
    if (this.path === undefined) {
      return undefined;
    }
    try {
      // A line break inside an entry is stored as CR.
      return readFileSync(this.path, 'utf8')
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => line.replaceAll('\r', '\n'))
        .slice(-mostEntries);
    } catch {
      return undefined;
    }
  }

  add(entry: string): void {
    const entries = this.#read() ?? [...this.#entries];
    if (entry === '' || entries.at(-1) === entry) {
      this.#entries = entries;
      return;
    }
    entries.push(entry);
    this.#entries = entries.slice(-mostEntries);
    this.#write();
  }

  #write(): void {
    if (this.path === undefined) {
      return;
    }
    const temporary = `${this.path}.${process.pid}.tmp`;
    try {
      const lines = this.#entries.map((entry) => `${entry.replaceAll('\n', '\r')}\n`);
      writeFileSync(temporary, lines.join(''), { mode: 0o600 });
      chmodSync(temporary, 0o600);
      renameSync(temporary, this.path);
    } catch {
      rmSync(temporary, { force: true });
    }
  }
}
