import { defineConfig } from 'vitest/config';

/** Native state and threads do not mix with worker threads, so every project runs in forked processes. */
function project(name: string, include: string[], testTimeout: number) {
  return {
    test: {
      name,
      include,
      pool: 'forks' as const,
      setupFiles: ['test/support/property-seed.ts'],
      testTimeout,
      hookTimeout: testTimeout,
    },
  };
}

export default defineConfig({
  test: {
    // As many files at a time as there are processors: most of a test's time is a child process's start.
    maxWorkers: '100%',
    projects: [
      project('unit', ['test/unit/**/*.test.ts'], 20_000),
      project('golden', ['test/golden/**/*.test.ts'], 300_000),
      project('e2e', ['test/e2e/**/*.test.ts'], 120_000),
      project('fault', ['test/fault/**/*.test.ts'], 120_000),
    ],
  },
});
