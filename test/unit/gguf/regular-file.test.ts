import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import type * as FileSystem from 'node:fs';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import { RegularFile } from '../../../src/gguf/regular-file.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { list, text } from '../../support/gguf-spec.js';

/** What the next reads do instead of reading everything that was asked for. */
const faults: ((ask: number) => number)[] = [];
let reads = 0;

vi.mock('node:fs', async (original) => {
  const actual = await original<typeof FileSystem>();
  return {
    ...actual,
    readSync: (
      fd: number,
      into: Uint8Array,
      offset: number,
      length: number,
      at: number,
    ): number => {
      reads += 1;
      const allowed = faults.shift()?.(length) ?? length;
      return actual.readSync(fd, into, offset, allowed, at);
    },
  };
});

function failing(code: string, errno: number): () => never {
  return () => {
    throw Object.assign(new Error(code), { code, errno, syscall: 'read' });
  };
}

const scratch = scratchFolder();

afterEach(() => {
  faults.length = 0;
});

function refusal(path: string): string {
  return messageOf(() => openGguf(path), GgufError);
}

describe('opening a path', () => {
  it('says that a file does not exist', () => {
    const path = scratch.path('missing.gguf');

    expect(refusal(path)).toBe(`cannot open model '${path}': No such file or directory`);
  });

  it('says that an empty path is nothing', () => {
    expect(refusal('')).toBe("cannot open model '': No such file or directory");
  });

  it('says that a folder is a directory', () => {
    mkdirSync(scratch.path('folder'));

    expect(refusal(scratch.path('folder'))).toContain('it is a directory');
  });

  it('does not wait at a pipe', () => {
    execFileSync('mkfifo', [scratch.path('fifo')]);

    expect(refusal(scratch.path('fifo'))).toContain('it is a pipe');
  });

  it('does not read a device', () => {
    expect(refusal('/dev/zero')).toContain('it is a device');
  });

  it('says that a link goes in circles', () => {
    symlinkSync('circle', scratch.path('circle'));

    expect(refusal(scratch.path('circle'))).toMatch(/Too many symbolic links/);
  });

  it('says that a part of the path is no directory', () => {
    writeFileSync(scratch.path('plain'), '');

    expect(refusal(scratch.path('plain/model.gguf'))).toMatch(/: Not a directory$/);
  });

  it('says that a path is too long', () => {
    expect(refusal('x'.repeat(5000))).toMatch(/: Name too long$/);
  });

  it('refuses a path with a NUL byte', () => {
    expect(refusal('a\0b')).toContain('contains a NUL byte');
  });

  it('opens through a link', () => {
    scratch.save('target.gguf', { metadata: [['k', text('v')]], tensors: [] });
    truncateSync(scratch.path('target.gguf'), 200);
    symlinkSync('target.gguf', scratch.path('link.gguf'));

    expect(openGguf(scratch.path('link.gguf')).metadata.string('k')).toBe('v');
  });
});

describe('reading', () => {
  const words = Array.from({ length: 5000 }, (_, index) => `word ${index} `.repeat(20));
  const path = scratch.save('long.gguf', {
    metadata: [['words', list('string', words)]],
    tensors: [{ name: 't', type: 'F32', dims: [8] }],
  });

  it('gives the same header through short and interrupted reads', () => {
    reads = 0;
    for (let index = 0; index < 200; index += 1) {
      faults.push((ask) => Math.max(1, ask % 977), failing('EINTR', -4));
    }

    expect(openGguf(path).metadata.strings('words')).toEqual(words);
    expect(reads).toBeGreaterThan(400);
  });

  it('says where reading failed and why', () => {
    faults.push(failing('EIO', -5));

    expect(refusal(path)).toBe(`cannot read model '${path}' at byte 0: I/O error`);
  });

  it('says when the file has become shorter under it', () => {
    const shrinking = scratch.path('shrinking');
    writeFileSync(shrinking, Buffer.alloc(1000));
    const file = RegularFile.open(shrinking);
    truncateSync(shrinking, 300);

    const message = messageOf(() => {
      file.read(Buffer.alloc(500), 0);
    }, GgufError);
    file.close();

    expect(message).toContain('at byte 300: the file ends there, but it had 1000 bytes');
  });

  it('reads no more than a part of a file of 80 GiB', () => {
    const huge = scratch.save('huge.gguf', {
      metadata: [['k', text('v')]],
      tensors: [{ name: 't', type: 'F32', dims: [2 ** 20, 20_480] }],
    });
    reads = 0;

    const { tensors, files } = openGguf(huge);

    expect(tensors[0]?.bytes).toBe(80 * 2 ** 30);
    expect(files[0]?.bytes).toBeGreaterThan(80 * 2 ** 30);
    expect(reads).toBeLessThanOrEqual(3);
  });
});
