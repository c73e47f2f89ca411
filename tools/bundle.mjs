// Puts together a folder that runs on a Linux machine without Node, npm or a compiler, and packs it:
//   node tools/bundle.mjs [--backends cpu,cuda] [--no-model] [--no-pack]     (make bundle)
// build/bundle/ds4/ holds the Node binary, the compiled program, its run-time packages, the native libraries and the small
// model; build/bundle/ds4.tar.xz is the same, packed. The machine needs the C and C++ libraries of its Linux, at least as
// new as those here, and a driver for the GPU libraries.
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  openSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const root = resolve(import.meta.dirname, '..');
const parent = join(root, 'build', 'bundle');
const folder = join(parent, 'ds4');
const mostBytes = 60 * 2 ** 20;

const { values } = parseArgs({
  options: {
    backends: { type: 'string' },
    'no-model': { type: 'boolean', default: false },
    'no-pack': { type: 'boolean', default: false },
  },
});

function fail(sentence) {
  process.stderr.write(`ds4: ${sentence}\n`);
  process.exit(1);
}

const libraryOf = (backend) => join(root, 'build', backend, `libds4-${backend}.so`);
const backends =
  values.backends?.split(',') ??
  ['cpu', 'cuda', 'rocm'].filter((name) => existsSync(libraryOf(name)));
for (const backend of ['cpu', ...backends]) {
  if (!existsSync(libraryOf(backend))) {
    fail(
      `cannot bundle backend ${backend}: ${libraryOf(backend)} is not built; run make ${backend}`,
    );
  }
}

function run(program, args, options = {}) {
  try {
    return execFileSync(program, args, {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
      ...options,
    });
  } catch (thrown) {
    return fail(`${program} failed: ${thrown.message}`);
  }
}

/** Symbols serve only debuggers, and are most of the bytes. */
function copyStripped(from, to) {
  run('strip', ['--strip-unneeded', '-o', to, from]);
}

rmSync(parent, { recursive: true, force: true });
for (const name of ['', 'runtime', 'lib', 'bin', 'models']) {
  mkdirSync(join(folder, name), { recursive: true });
}

copyStripped(process.execPath, join(folder, 'runtime', 'node'));
chmodSync(join(folder, 'runtime', 'node'), 0o755);
for (const backend of new Set(['cpu', ...backends])) {
  copyStripped(libraryOf(backend), join(folder, 'lib', `libds4-${backend}.so`));
}
for (const file of ['ds4', 'ds4-bench', 'launcher.cjs', 'package.json']) {
  copyFileSync(join(root, 'bin', file), join(folder, 'bin', file));
}
for (const file of ['package.json', 'LICENSE', 'README.md']) {
  if (existsSync(join(root, file))) {
    copyFileSync(join(root, file), join(folder, file));
  }
}
cpSync(join(root, 'dist'), join(folder, 'dist'), {
  recursive: true,
  filter: (path) => !path.endsWith('.map') && !path.endsWith('.d.ts'),
});

/** What packages bring for people and compilers, and not for Node. koffi's sources are for a build from scratch. */
const notNeeded = /\.(md|markdown|map|d\.[cm]?ts)$/;
const koffiSources = /^(vendor|doc)(\/|$)|^cnoke\.cjs$|\.(cc|hh|c|h|S|s|asm|def|inc|txt)$/;
const packages = run('npm', ['ls', '--omit=dev', '--parseable', '--all'], { cwd: root })
  .trim()
  .split('\n')
  .filter((path) => path.includes('node_modules'));
for (const path of packages) {
  const isKoffi = path.endsWith('/koffi');
  cpSync(path, join(folder, relative(root, path)), {
    recursive: true,
    dereference: true,
    filter: (from) => {
      const inside = relative(path, from);
      const isOther = /(^|\/)node_modules(\/|$)/.test(inside);
      return !isOther && !notNeeded.test(inside) && !(isKoffi && koffiSources.test(inside));
    },
  });
}

if (!values['no-model']) {
  copyFileSync(join(root, 'models', 'ds4-small.gguf'), join(folder, 'models', 'ds4-small.gguf'));
}
for (const program of ['ds4', 'ds4-bench']) {
  const script = [
    '#!/bin/sh',
    '# Follows links, so that one in a folder of programs works.',
    'here=$(dirname "$(readlink -f "$0")")',
    `exec "$here/runtime/node" "$here/bin/${program}" "$@"`,
    '',
  ].join('\n');
  writeFileSync(join(folder, program), script, { mode: 0o755 });
}

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
if (!values['no-pack']) {
  const packed = join(parent, 'ds4.tar.xz');
  run('tar', [
    '-C',
    parent,
    '--owner=0',
    '--group=0',
    '--numeric-owner',
    '--sort=name',
    '-cf',
    `${packed}.tar`,
    'ds4',
  ]);
  run('xz', ['-9', '-T0', '--stdout', `${packed}.tar`], {
    stdio: ['ignore', openSync(packed, 'w'), 'inherit'],
  });
  rmSync(`${packed}.tar`);
  const { size } = statSync(packed);
  process.stdout.write(
    `${packed}: ${mib(size)} (${['cpu', ...backends.filter((name) => name !== 'cpu')].join(', ')})\n`,
  );
  if (size > mostBytes) {
    fail(`the bundle has ${mib(size)}, more than the ${mib(mostBytes)} that it may have`);
  }
}
