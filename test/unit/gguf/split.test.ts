import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { GgufError, openGguf } from '../../../src/gguf/index.js';
import { messageOf, scratchFolder } from '../../support/gguf-scratch.js';
import { text } from '../../support/gguf-spec.js';
import { writeGguf } from '../../support/gguf-writer.js';
import type { GgufSpec, WrittenTensor, WrittenValue } from '../../support/gguf-writer.js';

const scratch = scratchFolder();

function tensor(name: string): WrittenTensor {
  return { name, type: 'F32', dims: [8], data: new Uint8Array(32).fill(name.length) };
}

function splitKeys(index: number, count: number, tensors: number): [string, WrittenValue][] {
  return [
    ['split.no', { type: 'u16', value: index }],
    ['split.count', { type: 'u16', value: count }],
    ['split.tensors.count', { type: 'i32', value: tensors }],
  ];
}

function part(index: number, count: number, total: number, ...names: string[]): GgufSpec {
  const own: [string, WrittenValue][] = index === 0 ? [['general.name', text('whole')]] : [];
  return { metadata: [...own, ...splitKeys(index, count, total)], tensors: names.map(tensor) };
}

function numbered(index: number, count: number): string {
  return `m-0000${index}-of-0000${count}.gguf`;
}

let folder = '';
let count = 0;
/** Three parts in a folder of their own. */
beforeEach(() => {
  count += 1;
  folder = scratch.path(`set${count}`);
  mkdirSync(folder);
  writeGguf(part(0, 3, 4)).save(join(folder, numbered(1, 3)));
  writeGguf(part(1, 3, 4, 'a', 'bb')).save(join(folder, numbered(2, 3)));
  writeGguf(part(2, 3, 4, 'ccc', 'dddd')).save(join(folder, numbered(3, 3)));
});

function refusal(name: string): string {
  return messageOf(() => openGguf(join(folder, name)), GgufError);
}

describe('a split model', () => {
  it.each([1, 2, 3])('opens whole, whichever part is given: %d', (given) => {
    const gguf = openGguf(join(folder, numbered(given, 3)));

    expect(gguf.metadata.string('general.name')).toBe('whole');
    expect(gguf.files.map(({ path }) => path)).toEqual(
      [1, 2, 3].map((index) => join(folder, numbered(index, 3))),
    );
    expect(gguf.tensors.map(({ name, file }) => [name, file])).toEqual([
      ['a', 1],
      ['bb', 1],
      ['ccc', 2],
      ['dddd', 2],
    ]);
  });

  it('has offsets that count from the start of their own part', () => {
    const gguf = openGguf(join(folder, numbered(1, 3)));

    const firstBytes = gguf.tensors.map(
      ({ file, offset }) => readFileSync(gguf.files[file]?.path ?? '')[offset],
    );

    expect(firstBytes).toEqual([1, 2, 3, 4]);
  });

  it('names the missing parts, whichever part is given', () => {
    rmSync(join(folder, numbered(2, 3)));

    for (const given of [1, 3]) {
      expect(refusal(numbered(given, 3))).toContain(
        `it has 3 parts, missing: '${join(folder, numbered(2, 3))}'`,
      );
    }
  });

  it('refuses a part whose name was changed, saying what it is called', () => {
    renameSync(join(folder, numbered(1, 3)), join(folder, 'model.gguf'));

    expect(refusal('model.gguf')).toContain("name does not end in '-00001-of-00003.gguf'");
  });

  it('refuses a part under the name of another', () => {
    renameSync(join(folder, numbered(3, 3)), join(folder, numbered(2, 3)));

    expect(refusal(numbered(2, 3))).toContain(
      'by its name it is part 2 of 3, by its content part 3 of 3',
    );
  });

  it('refuses a set in which a part has the place of another', () => {
    writeFileSync(join(folder, numbered(2, 3)), readFileSync(join(folder, numbered(3, 3))));

    expect(refusal(numbered(1, 3))).toContain('should be part 2 of 3, but says it is part 3 of 3');
  });

  it('refuses a set whose tensors do not add up', () => {
    writeGguf(part(2, 3, 4, 'ccc')).save(join(folder, numbered(3, 3)));

    expect(refusal(numbered(1, 3))).toContain('its 3 parts hold 3 tensors, should hold 4');
  });

  it('refuses a tensor that two parts have', () => {
    writeGguf(part(2, 3, 4, 'ccc', 'a')).save(join(folder, numbered(3, 3)));

    expect(refusal(numbered(1, 3))).toMatch(/tensor 'a' is in '.*00002.*' and again in '.*00003/);
  });

  it('names the part that is damaged', () => {
    writeFileSync(join(folder, numbered(3, 3)), Buffer.alloc(100, 'x'));

    expect(refusal(numbered(1, 3))).toMatch(/^model is not a GGUF file: .*part 3 of 3/);
  });

  it('refuses parts joined into one file', () => {
    const joined = Buffer.concat(
      [1, 2, 3].map((index) => readFileSync(join(folder, numbered(index, 3)))),
    );
    writeFileSync(join(folder, 'joined.gguf'), joined);

    expect(refusal('joined.gguf')).toContain('another GGUF file begins at its byte');
  });

  it('refuses joined parts also when the join has the name of the first part', () => {
    const joined = Buffer.concat(
      [1, 2, 3].map((index) => readFileSync(join(folder, numbered(index, 3)))),
    );
    writeFileSync(join(folder, numbered(1, 3)), joined);

    expect(refusal(numbered(1, 3))).toContain('another GGUF file begins at its byte');
  });

  it('finds the other parts beside the links of a blob store, not beside the blobs', () => {
    const blobs = join(folder, 'blobs');
    const links = join(folder, 'links');
    mkdirSync(blobs);
    mkdirSync(links);
    for (const index of [1, 2, 3]) {
      renameSync(join(folder, numbered(index, 3)), join(blobs, `sha256-${index}`));
      symlinkSync(join('..', 'blobs', `sha256-${index}`), join(links, numbered(index, 3)));
    }

    const gguf = openGguf(join(links, numbered(2, 3)));

    expect(gguf.tensors).toHaveLength(4);
    expect(gguf.files[0]?.path).toBe(join(links, numbered(1, 3)));
  });

  it('counts a link into nowhere as a missing part', () => {
    rmSync(join(folder, numbered(3, 3)));
    symlinkSync('nowhere', join(folder, numbered(3, 3)));

    expect(refusal(numbered(1, 3))).toContain(`missing: '${join(folder, numbered(3, 3))}'`);
  });

  it('refuses a part number beyond the count', () => {
    writeGguf(part(7, 3, 4, 'x')).save(join(folder, numbered(1, 3)));

    expect(refusal(numbered(1, 3))).toContain('split.no is 7, but there are 3 parts');
  });

  it.each(['split.no', 'split.count', 'split.tensors.count'])('refuses %s as a text', (key) => {
    writeGguf({ metadata: [[key, text('2')]], tensors: [] }).save(join(folder, 'text.gguf'));
    writeFileSync(
      join(folder, 'text.gguf'),
      Buffer.concat([readFileSync(join(folder, 'text.gguf')), Buffer.alloc(32)]),
    );

    expect(refusal('text.gguf')).toContain(`${key} is string '2', must be a count`);
  });

  it('names five of thousands of missing parts', () => {
    writeGguf(part(0, 65_535, 4)).save(join(folder, 'm-00001-of-65535.gguf'));

    expect(refusal('m-00001-of-65535.gguf')).toMatch(/missing: ('[^']*', ){4}'[^']*' and more$/);
  });
});

describe('a complete model under the name of a part', () => {
  it('opens with split keys that say so', () => {
    const path = join(folder, 'x-00001-of-00001.gguf');
    writeGguf(part(0, 1, 2, 'a', 'bb')).save(path);

    expect(openGguf(path).tensors).toHaveLength(2);
  });

  it.each(['x-00001-of-00001.gguf', 'x-00001-of-00003.gguf'])(
    'opens as %s without them',
    (name) => {
      const path = join(folder, name);
      writeGguf({ metadata: [], tensors: [tensor('a')] }).save(path);

      expect(openGguf(path).tensors).toHaveLength(1);
    },
  );

  it('is refused when it has lost tensors', () => {
    writeGguf(part(0, 1, 3, 'a', 'bb')).save(join(folder, 'x-00001-of-00001.gguf'));

    expect(refusal('x-00001-of-00001.gguf')).toContain(
      'it holds 2 tensors, split.tensors.count says 3',
    );
  });
});
