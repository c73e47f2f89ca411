// Puts together a folder that runs on a Linux machine without Node, npm or a compiler, and packs it:
//   node tools/bundle.mjs [--out FOLDER] [--backends cpu,cuda] [--no-model] [--no-pack] [--xz-level N]      (make bundle)
// FOLDER/ds4/ (build/bundle/ds4/) holds the Node binary, the compiled program, its run-time packages, the native libraries
// and the small model; FOLDER/ds4.tar.xz is the same, packed. The machine needs the C and C++ libraries of its Linux, at least
// as new as those here, and a driver for the GPU libraries.
// Everything is made aside and takes its place when it is whole: whatever fails, what lay there before stays as it is.
import { execFile } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { parseArgs, promisify } from 'node:util';

const root = resolve(import.meta.dirname, '..');
/** Of the packed file. */
const mostBytes = 60 * 2 ** 20;
const bundled = ['cpu', 'cuda', 'rocm'];
const stop = new globalThis.AbortController();

/** A sentence for the user. */
class Refusal extends Error {}

function readArguments() {
  try {
    const { values } = parseArgs({
      options: {
        out: { type: 'string', default: join(root, 'build', 'bundle') },
        backends: { type: 'string' },
        'no-model': { type: 'boolean', default: false },
        'no-pack': { type: 'boolean', default: false },
        'xz-level': { type: 'string', default: '9' },
      },
    });
    const level = values['xz-level'];
    if (!/^[0-9]$/.test(level)) {
      throw new Error(`--xz-level takes a number from 0 to 9, not '${level}'`);
    }
    return values;
  } catch (thrown) {
    throw new Refusal(`cannot make a bundle: ${thrown.message}`);
  }
}

const libraryOf = (backend) => join(root, 'build', backend, `libds4-${backend}.so`);

/** The CPU's is always there: the program falls back to it. */
function chooseBackends(asked) {
  const names = asked?.split(',') ?? bundled.filter((name) => existsSync(libraryOf(name)));
  for (const backend of ['cpu', ...names]) {
    if (!bundled.includes(backend)) {
      throw new Refusal(
        `cannot bundle backend '${backend}': there is none of that name; choose from ${bundled.join(', ')}`,
      );
    }
    if (!existsSync(libraryOf(backend))) {
      throw new Refusal(
        `cannot bundle backend ${backend}: ${libraryOf(backend)} is not built; run make ${backend}`,
      );
    }
  }
  return [...new Set(['cpu', ...names])];
}

async function run(program, args, options = {}) {
  try {
    const { stdout } = await promisify(execFile)(program, args, {
      encoding: 'utf8',
      maxBuffer: 2 ** 26,
      signal: stop.signal,
      ...options,
    });
    return stdout;
  } catch (thrown) {
    const reason = stop.signal.aborted
      ? 'it was interrupted'
      : thrown.code === 'ENOENT'
        ? 'there is no such program here; install it'
        : (thrown.stderr ?? '').trim() || thrown.message;
    throw new Refusal(`cannot make a bundle: ${program} failed: ${reason}`);
  }
}

/** Symbols serve only debuggers, and are most of the bytes. */
async function copyStripped(from, to) {
  await run('strip', ['--strip-unneeded', '-o', to, from]);
}

/** What packages bring for people and compilers, and not for Node. koffi's sources are for a build from scratch. */
const notNeeded = /\.(md|markdown|map|d\.[cm]?ts)$/;
const koffiSources = /^(vendor|doc)(\/|$)|^cnoke\.cjs$|\.(cc|hh|c|h|S|s|asm|def|inc|txt)$/;
/** May be left out of no copy. */
const terms = /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i;

function copyPackage(path, folder) {
  const isKoffi = path.endsWith('/koffi');
  cpSync(path, join(folder, relative(root, path)), {
    recursive: true,
    dereference: true,
    filter: (from) => {
      const inside = relative(path, from);
      const isOther = /(^|\/)node_modules(\/|$)/.test(inside);
      const isSource = notNeeded.test(inside) || (isKoffi && koffiSources.test(inside));
      return !isOther && (!isSource || (terms.test(inside) && !/^vendor(\/|$)/.test(inside)));
    },
  });
}

async function fill(folder, backends, hasModel) {
  for (const name of ['runtime', 'lib', 'bin', 'models']) {
    mkdirSync(join(folder, name), { recursive: true });
  }
  await copyStripped(process.execPath, join(folder, 'runtime', 'node'));
  chmodSync(join(folder, 'runtime', 'node'), 0o755);
  for (const backend of backends) {
    await copyStripped(libraryOf(backend), join(folder, 'lib', `libds4-${backend}.so`));
  }
  for (const file of ['ds4', 'ds4-bench', 'launcher.cjs', 'package.json']) {
    copyFileSync(join(root, 'bin', file), join(folder, 'bin', file));
  }
  for (const file of ['package.json', 'LICENSE', 'README.md']) {
    copyFileSync(join(root, file), join(folder, file));
  }
  cpSync(join(root, 'dist'), join(folder, 'dist'), {
    recursive: true,
    filter: (path) => !path.endsWith('.map') && !path.endsWith('.d.ts'),
  });
  const packages = await run('npm', ['ls', '--omit=dev', '--parseable', '--all'], { cwd: root });
  for (const path of packages.split('\n').filter((line) => line.includes('node_modules'))) {
    copyPackage(path, folder);
  }
  if (hasModel) {
    copyFileSync(join(root, 'models', 'ds4-small.gguf'), join(folder, 'models', 'ds4-small.gguf'));
  }
  for (const program of ['ds4', 'ds4-bench']) {
    const script = [
      '#!/bin/sh',
      '# Follows links, so that one in a folder of programs works; with any PATH.',
      'here=$(PATH="/usr/bin:/bin:$PATH"; dirname -- "$(readlink -f -- "$0")")',
      `exec "$here/runtime/node" "$here/bin/${program}" "$@"`,
      '',
    ].join('\n');
    writeFileSync(join(folder, program), script, { mode: 0o755 });
  }
}

/** @returns the bytes of the packed file, which lies beside `ds4`. */
async function pack(parent, level) {
  const plain = join(parent, 'ds4.tar');
  const owner = ['--owner=0', '--group=0', '--numeric-owner'];
  await run('tar', ['-C', parent, ...owner, '--sort=name', '-cf', plain, 'ds4']);
  await run('xz', [`-${level}`, '-T0', plain]);
  return statSync(`${plain}.xz`).size;
}

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

async function main() {
  const values = readArguments();
  const backends = chooseBackends(values.backends);
  if (!existsSync(join(root, 'dist', 'cli', 'main.js'))) {
    throw new Refusal(`cannot make a bundle: ${join(root, 'dist')} is not built; run make ts`);
  }
  const out = resolve(values.out);
  const aside = join(out, '.making');
  try {
    // Of one that was killed.
    rmSync(aside, { recursive: true, force: true });
    const folder = join(aside, 'ds4');
    await fill(folder, backends, !values['no-model']);
    const bytes = values['no-pack'] ? undefined : await pack(aside, values['xz-level']);
    if (bytes > mostBytes) {
      throw new Refusal(
        `the bundle has ${mib(bytes)}, more than the ${mib(mostBytes)} that it may have`,
      );
    }
    for (const name of ['ds4', 'ds4.tar.xz']) {
      rmSync(join(out, name), { recursive: true, force: true });
    }
    renameSync(folder, join(out, 'ds4'));
    if (bytes !== undefined) {
      renameSync(join(aside, 'ds4.tar.xz'), join(out, 'ds4.tar.xz'));
    }
    const made = bytes === undefined ? join(out, 'ds4') : join(out, 'ds4.tar.xz');
    const size = bytes === undefined ? 'not packed' : mib(bytes);
    process.stdout.write(`${made}: ${size} (${backends.join(', ')})\n`);
  } finally {
    rmSync(aside, { recursive: true, force: true });
  }
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.once(signal, () => {
    stop.abort();
  });
}
try {
  await main();
} catch (thrown) {
  const sentence =
    thrown instanceof Refusal ? thrown.message : `cannot make a bundle: ${thrown.message}`;
  process.stderr.write(`ds4: ${sentence}\n`);
  process.exitCode = 1;
}
