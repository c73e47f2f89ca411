import { defineConfig } from 'vitest/config';
import { BaseSequencer } from 'vitest/node';
import type { TestSpecification } from 'vitest/node';

/** Files that take a minute or more. Begun last, one of them would keep a single processor busy at the end. */
const slowest = [
  'golden/small-model',
  'fault/lost-gpu',
  'golden/memory-modes',
  'fault/memory-modes-program',
];

class SlowestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const place = slowest.findIndex((name) => moduleId.endsWith(`${name}.test.ts`));
      return place < 0 ? slowest.length : place;
    };
    return (await super.sort(files)).sort((one, other) => rank(one) - rank(other));
  }
}

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
    sequence: { sequencer: SlowestFirst },
    projects: [
      project('unit', ['test/unit/**/*.test.ts'], 20_000),
      project('golden', ['test/golden/**/*.test.ts'], 300_000),
      project('e2e', ['test/e2e/**/*.test.ts'], 120_000),
      project('fault', ['test/fault/**/*.test.ts'], 120_000),
    ],
  },
});
