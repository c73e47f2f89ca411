import fc from 'fast-check';

/**
 * Every run draws the same examples, so that a change is judged by the change and not by the draw.
 * `DS4_TEST_SEED=7 npx vitest run --project unit` draws others.
 */
fc.configureGlobal({ seed: Number(process.env['DS4_TEST_SEED'] ?? 1) });
