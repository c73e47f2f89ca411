import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { formatBytes } from '../../src/cli/bytes.js';
import type { BenchRun, Workload } from './decode.js';
import type { ModelFacts } from './model-facts.js';
import { linkRates } from './outcome.js';
import type { MeasuredLinks, Outcome } from './outcome.js';
import { shareChart, topicChart } from './pictures.js';
import { outcomeTable, percent, windowTable } from './table.js';

/** Cases of one file, beside whole residency of it. */
export interface Group {
  readonly model: ModelFacts;
  readonly whole: BenchRun;
  /** Median of the rounds, tokens per second. */
  readonly wholeRate: number;
  readonly outcomes: readonly Outcome[];
}

export interface Topic {
  /** Different tokens in the text. */
  readonly size: number;
  /** Of the experts, those that have slots. */
  readonly share: number;
  readonly run: BenchRun;
}

export interface Measurement {
  readonly links: MeasuredLinks;
  readonly isSimulated: boolean;
  readonly rounds: number;
  readonly workload: Workload;
  readonly inMemory: Group;
  readonly onDisk: Group | undefined;
  readonly topic: Topic | undefined;
}

function outcomesOf({ inMemory, onDisk }: Measurement): Outcome[] {
  return [...inMemory.outcomes, ...(onDisk?.outcomes ?? [])];
}

function remarksOn(measurement: Measurement): string[] {
  return [
    'Tokens are drawn evenly from the vocabulary and the weights are random, so experts are chosen nearly evenly: the hit ' +
      'rate to expect is the share of the experts that is in slots. Texts that stay with a topic do better; ' +
      'tools/expert-trace says how much better those of a real model do.',
    ...(measurement.isSimulated
      ? ['The device is simulated: its counters are right, its times mean nothing.']
      : []),
    ...outcomesOf(measurement).flatMap(({ mode, wanted, faults }) =>
      faults.map((fault) => `FAULT: ${mode}, ${wanted}: ${fault}`),
    ),
  ];
}

function titleOf({ inMemory: { model, whole } }: Measurement): string {
  const size = `${formatBytes(model.routedBytes)} of experts`;
  return `${model.layers} layers, ${size}, ${whole.file.machine['device'] ?? 'unknown device'}`;
}

/** What is printed: the links, the table of cases, remarks, the windows of the topic. */
export function reportText(measurement: Measurement): string {
  const { links, inMemory, topic } = measurement;
  return [
    titleOf(measurement),
    JSON.stringify(links),
    outcomeTable(outcomesOf(measurement)).trimEnd(),
    remarksOn(measurement).join('\n'),
    ...(topic === undefined
      ? []
      : [
          `${topic.size} different tokens, ${percent(topic.share, 1)} of the experts in slots, the rest in main memory:`,
          windowTable(topic.run.windows, inMemory.wholeRate).trimEnd(),
        ]),
  ]
    .map((part) => `${part}\n`)
    .join('\n');
}

function modelJson({ path, layers, experts, used, routedBytes, tokenBytes }: ModelFacts): object {
  return { path, layers, experts, used, routedBytes, tokenBytes };
}

function jsonOf(measurement: Measurement): object {
  const { links, rounds, workload, inMemory, onDisk, topic } = measurement;
  const { warmTokens, tokens, context } = workload;
  return {
    source: 'ds4-bench-memory',
    version: 1,
    machine: inMemory.whole.file.machine,
    links,
    model: modelJson(inMemory.model),
    ...(onDisk === undefined ? {} : { disk: modelJson(onDisk.model) }),
    workload: { rounds, warmTokens, tokens, context },
    remarks: remarksOn(measurement),
    outcomes: outcomesOf(measurement),
    ...(topic === undefined
      ? {}
      : {
          topic: {
            size: topic.size,
            share: topic.share,
            windows: topic.run.windows,
          },
        }),
  };
}

/** Writes memory.json, shares.svg and, with a topic, topic.svg. */
export function writeReport(folder: string, measurement: Measurement): void {
  const { links, inMemory, onDisk, topic } = measurement;
  const title = titleOf(measurement);
  const whole = ({ model, wholeRate }: Group) => ({
    rate: wholeRate,
    tokenBytes: model.tokenBytes,
  });
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, 'memory.json'),
    `${JSON.stringify(jsonOf(measurement), undefined, 2)}\n`,
  );
  writeFileSync(
    join(folder, 'shares.svg'),
    shareChart(
      title,
      outcomesOf(measurement),
      {
        overflow: whole(inMemory),
        ...(onDisk === undefined ? {} : { streaming: whole(onDisk) }),
      },
      linkRates(links),
    ),
  );
  if (topic !== undefined) {
    writeFileSync(
      join(folder, 'topic.svg'),
      topicChart(title, topic.run.windows, inMemory.wholeRate),
    );
  }
}

/** Whether something moved that had to stay where it was. */
export function hasFaults(measurement: Measurement): boolean {
  return outcomesOf(measurement).some(({ faults }) => faults.length > 0);
}
