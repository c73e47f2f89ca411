import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { writeGguf } from './gguf-writer.js';
import type { GgufSpec, WrittenGguf } from './gguf-writer.js';

export interface Scratch {
  readonly folder: string;
  path(name: string): string;
  /** Writes a file and answers its path. */
  save(name: string, file: GgufSpec | WrittenGguf): string;
}

/** A folder for the files of one test file, removed after its last test. */
export function scratchFolder(): Scratch {
  const folder = mkdtempSync(join(tmpdir(), 'ds4-test-'));
  afterAll(() => {
    rmSync(folder, { recursive: true, force: true });
  });
  const path = (name: string): string => join(folder, name);
  return {
    folder,
    path,
    save(name, file) {
      const written = 'header' in file ? file : writeGguf(file);
      // A new file each time: some file systems write a truncated one to the disk at once.
      rmSync(path(name), { force: true });
      written.save(path(name));
      return path(name);
    },
  };
}

/** The message of the error that `action` throws; fails when it throws something else or nothing. */
export function messageOf(
  action: () => unknown,
  expected: abstract new (...args: never[]) => Error,
): string {
  try {
    action();
  } catch (error) {
    if (error instanceof expected) {
      return error.message;
    }
    throw error;
  }
  throw new Error(`expected ${expected.name}, but nothing was thrown`);
}
