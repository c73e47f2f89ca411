// node tools/test-summary.mjs NATIVE_LOG... VITEST_JSON: adds up the runners and prints `ds4: N passed, N failed, N skipped`.
// Ends with status 1 when a test failed or when a runner left no result.
import { readFileSync } from 'node:fs';

const files = process.argv.slice(2);
const vitestJson = files.pop();
const native = files.map((log) => {
  const summary = /(\d+) passed, (\d+) failed\s*$/.exec(readFileSync(log, 'utf8'));
  if (summary === null) {
    throw new Error(`${log} has no summary line: its tests did not end`);
  }
  return { passed: Number(summary[1]), failed: Number(summary[2]) };
});
const vitest = JSON.parse(readFileSync(vitestJson, 'utf8'));
const passed = native.reduce((sum, log) => sum + log.passed, 0) + vitest.numPassedTests;
// A file that cannot even be loaded has no tests to count.
const broken = vitest.testResults.filter(
  ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
);
const failed =
  native.reduce((sum, log) => sum + log.failed, 0) + vitest.numFailedTests + broken.length;
const skipped = vitest.numPendingTests + vitest.numTodoTests;
console.log(`ds4: ${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
