// node tools/test-summary.mjs NATIVE_LOG VITEST_JSON: adds up both runners and prints `ds4: N passed, N failed, N skipped`.
// Ends with status 1 when a test failed or when a runner left no result.
import { readFileSync } from 'node:fs';

const [nativeLog, vitestJson] = process.argv.slice(2);
const native = /(\d+) passed, (\d+) failed\s*$/.exec(readFileSync(nativeLog, 'utf8'));
if (native === null) {
  throw new Error(`${nativeLog} has no summary line: the native tests did not end`);
}
const vitest = JSON.parse(readFileSync(vitestJson, 'utf8'));
const passed = Number(native[1]) + vitest.numPassedTests;
// A file that cannot even be loaded has no tests to count.
const broken = vitest.testResults.filter(
  ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
);
const failed = Number(native[2]) + vitest.numFailedTests + broken.length;
const skipped = vitest.numPendingTests + vitest.numTodoTests;
console.log(`ds4: ${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
