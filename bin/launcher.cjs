'use strict';

// CommonJS and old syntax, so that an old Node reaches the sentence about its age.
const { existsSync } = require('node:fs');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

const oldestNode = 20;
const root = path.resolve(__dirname, '..');

/** Starts a program of dist/, given by its path there, under the name that its messages carry. */
function launch(name, ...place) {
  const program = path.join(root, 'dist', ...place);
  const refuse = (sentence) => {
    process.stderr.write(`${name}: ${sentence}\n`);
    process.exit(1);
  };
  if (Number(process.versions.node.split('.')[0]) < oldestNode) {
    refuse(
      `needs Node.js ${oldestNode} or newer, this is ${process.version}; install a newer one from https://nodejs.org`,
    );
  }
  if (!existsSync(program)) {
    refuse(`the program is not built (${program} is missing); run make in ${root}`);
  }
  import(pathToFileURL(program).href).then(
    ({ main, report }) => {
      // A failure that nobody caught is a bug; it still gets one line and status 1 instead of a stack.
      process.on('uncaughtException', (thrown) => process.exit(report(thrown)));
      main(process.argv.slice(2)).then((status) => process.exit(status));
    },
    (thrown) => refuse(`the program cannot be loaded: ${thrown.message}; run make in ${root}`),
  );
}

module.exports = { launch };
