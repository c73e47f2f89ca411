import type { ModelEngine, TelemetrySnapshot } from '../engine/index.js';
import type { ExpertMemoryPlan } from '../plan/index.js';
import { formatBytes } from './bytes.js';
import { jsonNumber } from './json.js';
import type { Run } from './run.js';

const schemaVersion = 1;
const labelColumns = 34;
const figureColumns = 14;

type Experts = TelemetrySnapshot['experts'];

function hits({ deviceHits, hostHits, inFlightHits }: Experts): number {
  return deviceHits + hostHits + inFlightHits;
}

function percent(part: number, whole: number): string {
  return whole === 0 ? '' : `${((100 * part) / whole).toFixed(1)} %`;
}

/**
 * How often an expert that was wanted since `before`, or at all, was in memory or on its way there.
 *
 * @returns `93.1 %`; undefined when none was looked up
 */
export function hitRateText(now: Experts, before?: Experts): string | undefined {
  const lookups = now.lookups - (before?.lookups ?? 0);
  const hit = hits(now) - (before === undefined ? 0 : hits(before));
  return lookups > 0 ? percent(hit, lookups) : undefined;
}

/** `93.1 % of 258 lookups hit, 40 of 64 slots used`; undefined when nothing was looked up. */
export function cacheText(now: Experts, before?: Experts): string | undefined {
  const rate = hitRateText(now, before);
  return rate === undefined
    ? undefined
    : `${rate} of ${now.lookups - (before?.lookups ?? 0)} lookups hit, ${now.slotsUsed} of ${now.slots} slots used`;
}

type Row = readonly [label: string, count: number, figure: string, remark?: string];

const count = (label: string, value: number, remark = ''): Row => [
  label,
  value,
  String(value),
  remark,
];

const bytes = (label: string, value: number, remark = ''): Row => [
  label,
  value,
  formatBytes(value),
  remark,
];

/** What `value` things were in bytes. */
const size = (value: number): string => (value === 0 ? '' : formatBytes(value));

const seconds = (nanoseconds: number): string => `${(nanoseconds / 1e9).toFixed(3)} s`;

/** Nobody is told of waits that add up to nothing that the line shows. */
const wait = (label: string, nanoseconds: number, remark = ''): Row => [
  label,
  Math.round(nanoseconds / 1e6),
  seconds(nanoseconds),
  remark,
];

function expertRows({ experts }: TelemetrySnapshot): Row[] {
  const part = (label: string, value: number): Row =>
    count(label, value, percent(value, experts.lookups));
  return [
    count('experts looked up', experts.lookups),
    part('  in a slot', experts.deviceHits),
    part('  in main memory', experts.hostHits),
    part('  on the way', experts.inFlightHits),
    part('  missed', experts.misses),
    count('read, used once and given up', experts.transit),
    count('layers wanted as a whole', experts.layerLoads, size(experts.layerLoadBytes)),
    count('evictions', experts.evictions, size(experts.evictedBytes)),
    count('places given in main memory', experts.hostAdmissions, size(experts.hostAdmittedBytes)),
    count('promotions', experts.promotions),
    count('demotions', experts.demotions),
    count('read ahead of the first token', experts.seeded),
    count('asked for ahead of their layer', experts.foreseen),
    count('slots used', experts.slotsUsed, `of ${experts.slots}`),
    count('places in main memory used', experts.hostPlacesUsed, `of ${experts.hostPlaces}`),
  ];
}

function byteRows({ tokensDone, experts, files }: TelemetrySnapshot): Row[] {
  const perToken = (value: number): string =>
    tokensDone === 0 ? '' : `${formatBytes(value / tokensDone)} a token`;
  const took = files.readNs / 1e9;
  const rate = took > 0 ? `, ${formatBytes(files.readBytes / took)}/s a reader` : '';
  return [
    bytes('read from the file', files.readBytes, `${perToken(files.readBytes)}${rate}`),
    bytes('  past the page cache', files.directBytes),
    // Said where both ways were gone: alone it would repeat the line above it.
    bytes(
      '  through the page cache',
      files.directBytes > 0 ? files.readBytes - files.directBytes : 0,
    ),
    count('  files that had to go through it', files.directRefused),
    count('  reads', files.reads),
    count('  reads that were short', files.shortReads),
    count('  reads that were repeated', files.retries),
    count('  reads that failed', files.errors),
    bytes('uploaded', files.uploadBytes, perToken(files.uploadBytes)),
    count('  copies', files.uploads),
    wait('  waited for uploads', files.uploadWaitNs),
    wait('  waited for pinned buffers', files.pinWaitNs, 'all threads together'),
    bytes('read over the bus', experts.busReadBytes, perToken(experts.busReadBytes)),
  ];
}

function pageRows({ pages }: TelemetrySnapshot): Row[] {
  const wanted = pages.hits + pages.loads;
  return [
    count('pages loaded', pages.loads),
    count('pages that were there', pages.hits, percent(pages.hits, wanted)),
    count('  loaded ahead of time', pages.prefetched),
    count('pages still on the way', pages.late),
    bytes('bytes of pages', pages.bytes),
  ];
}

function deviceRows(
  { device: { leastFreeBytes } }: TelemetrySnapshot,
  reserveBytes: number,
): Row[] {
  const isShort = leastFreeBytes < reserveBytes;
  return [
    bytes(
      'least free GPU memory',
      leastFreeBytes,
      isShort ? `below the ${formatBytes(reserveBytes)} that the plan keeps free` : '',
    ),
  ];
}

function simulationRows({ simulation }: TelemetrySnapshot): Row[] {
  return [
    bytes('simulated: to the device', simulation.toDeviceBytes),
    bytes('simulated: from the device', simulation.fromDeviceBytes),
    bytes('simulated: read over the bus', simulation.mappedReadBytes),
    bytes('simulated: from the disk', simulation.diskBytes),
    count('simulated: allocations alive', simulation.allocations),
    bytes('simulated: device memory taken', simulation.allocatedBytes),
    bytes('simulated: at most', simulation.peakBytes),
    bytes('simulated: pinned', simulation.pinnedBytes),
    count('simulated: calls that may fail', simulation.calls),
    ['simulated: time of transfers', simulation.ns, seconds(simulation.ns)],
  ];
}

/** A table of what is not zero. `reserveBytes`: device memory that the plan keeps free. */
export function statsLines(snapshot: TelemetrySnapshot, reserveBytes = 0): string[] {
  const rows: Row[] = [
    count('tokens evaluated', snapshot.tokensDone),
    count('evaluations', snapshot.evals),
    ...[
      ...expertRows(snapshot),
      ...byteRows(snapshot),
      ...pageRows(snapshot),
      ...deviceRows(snapshot, reserveBytes),
      ...simulationRows(snapshot),
    ].filter(([, value]) => value > 0),
  ];
  return rows.map(([label, , figure, remark = '']) =>
    `${label.padEnd(labelColumns)}${figure.padStart(figureColumns)}  ${remark}`.trimEnd(),
  );
}

function isCounted(group: Readonly<Record<string, number>>): boolean {
  return Object.values(group).some((value) => value > 0);
}

/** The same as one line; docs/json-output.md describes it. */
export function statsJson(snapshot: TelemetrySnapshot, reserveBytes = 0): string {
  const { tokensDone, evals, experts, files, pages, device, simulation } = snapshot;
  const hitRate =
    experts.lookups === 0 ? {} : { hitRate: Number(jsonNumber(hits(experts) / experts.lookups)) };
  return JSON.stringify({
    source: 'ds4',
    version: schemaVersion,
    tokens: tokensDone,
    evaluations: evals,
    ...(isCounted(experts) ? { experts: { ...experts, ...hitRate } } : {}),
    ...(isCounted(files) ? { files } : {}),
    ...(isCounted(pages) ? { pages } : {}),
    ...(isCounted(device)
      ? { device: { ...device, ...(reserveBytes > 0 ? { reserveBytes } : {}) } }
      : {}),
    ...(isCounted(simulation) ? { simulation } : {}),
  });
}

/** Of a model, what counts, and what its plan keeps free. */
interface Counted {
  readonly engine: Pick<ModelEngine, 'telemetry'>;
  readonly plan: {
    readonly weights: { readonly experts?: Pick<ExpertMemoryPlan, 'reserveBytes'> };
  };
}

/** Says what was counted, if that was asked for: on stderr, also with --quiet. */
export function sayStats(
  { settings, environment, terminal }: Pick<Run, 'settings' | 'environment' | 'terminal'>,
  { engine, plan }: Counted,
): void {
  const reserveBytes = plan.weights.experts?.reserveBytes;
  switch (settings.stats ?? (environment.stats ? 'text' : undefined)) {
    case 'text':
      terminal.timing(statsLines(engine.telemetry(), reserveBytes).join('\n'));
      break;
    case 'json':
      terminal.raw(`${statsJson(engine.telemetry(), reserveBytes)}\n`);
      break;
    case undefined:
  }
}
