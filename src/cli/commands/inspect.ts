import { openGguf } from '../../gguf/index.js';
import { describeModel, summariseModel } from '../../model/index.js';
import type { ModelSummary } from '../../model/index.js';
import { PlanError } from '../../plan/index.js';
import type { LoadPlan } from '../../plan/index.js';
import { formatBytes } from '../bytes.js';
import { chooseBackend } from '../backend-choice.js';
import { modelPath } from '../model-file.js';
import { partReports, planReport, reportLines, splitReport } from '../plan-report.js';
import type { PartReport, PlanReport } from '../plan-report.js';
import { planRun } from '../planning.js';
import type { Run } from '../run.js';

const schemaVersion = 1;

/** What a run of this model with these options would do, or why it cannot. */
type Memory =
  | {
      readonly kind: 'plan';
      readonly plan: LoadPlan;
      readonly report: PlanReport;
      /** When several devices share the model. */
      readonly parts: readonly PartReport[] | undefined;
    }
  | { readonly kind: 'refused'; readonly reason: string }
  | { readonly kind: 'unknown' };

/** Small models too should show a figure. */
function billions(count: number): string {
  return `${(count / 1e9).toFixed(count < 1e8 ? 4 : 2)} billion`;
}

type Fact = readonly [name: string, value: number | string | undefined];

/** `name=value` for what is known; undefined when nothing is, and then the line is left out. */
function facts(...list: readonly Fact[]): string | undefined {
  const known = list.filter(([, value]) => value !== undefined);
  return known.length === 0
    ? undefined
    : known.map(([name, value]) => `${name}=${value ?? ''}`).join(' ');
}

function textLines(path: string, summary: ModelSummary, memory: Memory): string[] {
  const { attention, indexer, experts } = summary;
  const lines: [string, string | undefined][] = [
    ['model', summary.name === undefined ? path : `${path} (${summary.name})`],
    ['arch', summary.architecture],
    [
      'gguf',
      `version ${summary.gguf.version}, ${summary.gguf.keys} keys, ${summary.gguf.tensors} tensors`,
    ],
    ['layers', summary.layers?.toString()],
    ['train context', summary.trainedContext?.toString()],
    [
      'attention',
      facts(
        ['heads', attention.heads],
        ['kv_heads', attention.kvHeads],
        ['head_dim', attention.headDim],
        ['swa', attention.slidingWindow],
      ),
    ],
    [
      'indexer',
      facts(['heads', indexer.heads], ['head_dim', indexer.headDim], ['top_k', indexer.topK]),
    ],
    [
      'experts',
      facts(
        ['count', experts.count],
        ['used', experts.used],
        ['shared', experts.shared],
        ['groups', experts.groups],
        ['groups_used', experts.groupsUsed],
      ),
    ],
    [
      'unused tensors',
      summary.ignoredTensors === 0
        ? undefined
        : `${summary.ignoredTensors} (draft model or unknown)`,
    ],
    ['file size', formatBytes(summary.fileBytes)],
    ['tensor bytes', formatBytes(summary.tensorBytes)],
    ['parameters', billions(summary.parameters)],
  ];
  if (memory.kind === 'plan') {
    lines.push(...memory.plan.reasons.map(({ text }): [string, string] => ['plan', text]));
  } else if (memory.kind === 'refused') {
    lines.push(['plan', `cannot run as asked: ${memory.reason}`]);
  }
  return [
    ...lines.flatMap(([name, value]) =>
      value === undefined ? [] : [`${`${name}:`.padEnd(6)} ${value}`],
    ),
    '',
    `${'type'.padEnd(10)}${'tensors'.padStart(8)}${'GiB'.padStart(12)}`,
    ...summary.types.map(
      ({ type, count, bytes }) =>
        `${type.padEnd(10)}${String(count).padStart(8)}${(bytes / 2 ** 30).toFixed(4).padStart(12)}`,
    ),
    ...(memory.kind === 'plan'
      ? ['', ...reportLines(memory.plan, memory.report, memory.parts)]
      : []),
  ];
}

function json(path: string, summary: ModelSummary, memory: Memory): string {
  return `${JSON.stringify(
    {
      version: schemaVersion,
      path,
      ...summary,
      plan:
        memory.kind === 'plan' ? { ...memory.plan, ...memory.report, parts: memory.parts } : null,
      planRefusal: memory.kind === 'refused' ? memory.reason : null,
    },
    null,
    2,
  )}\n`;
}

/**
 * Prints what a model file holds and what a run with these options would do. Loads nothing and takes no lock, so it
 * works beside a running model. A file that cannot run is shown as far as it can be read, with status 1.
 */
export async function inspect(run: Run): Promise<number> {
  const path = modelPath(run);
  const gguf = openGguf(path);
  const summary = summariseModel(gguf);
  let memory: Memory = { kind: 'unknown' };
  if (summary.problems.length === 0) {
    try {
      const choice = await chooseBackend(run);
      for (const warning of choice.warnings) {
        run.terminal.warning(warning);
      }
      const description = describeModel(gguf);
      const { plan, split, facts } = planRun(run, choice, description);
      memory = {
        kind: 'plan',
        plan,
        report:
          split === undefined
            ? planReport(plan, description, facts)
            : splitReport(split, description, facts),
        parts: split === undefined ? undefined : partReports(split),
      };
    } catch (thrown) {
      if (!(thrown instanceof PlanError)) {
        throw thrown;
      }
      memory = { kind: 'refused', reason: thrown.message };
    }
  }
  await run.terminal.answer(
    run.settings.json
      ? json(path, summary, memory)
      : `${textLines(path, summary, memory).join('\n')}\n`,
  );
  if (summary.problems.length === 0) {
    return 0;
  }
  for (const problem of summary.problems) {
    run.terminal.error(problem);
  }
  run.terminal.error(`'${path}' cannot run: ${summary.problems.length} problems, listed above`);
  return 1;
}
