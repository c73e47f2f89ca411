import type { ModelDescription } from '../model/index.js';
import { deviceBytesOf, hostBytesOf, placesOf, tokenCost } from '../plan/index.js';
import type { LoadPlan, MachineFacts, Place, TokenCost } from '../plan/index.js';

// What --inspect says about a plan, beside its reasons.

/** All tensors of one part of the model that are in one place. */
export interface PlaceRow {
  readonly part: 'embedding' | 'head' | 'layer' | 'experts';
  readonly place: Place;
  readonly firstLayer?: number;
  readonly lastLayer?: number;
  readonly tensors: number;
  readonly bytes: number;
}

export interface PlanReport {
  readonly places: readonly PlaceRow[];
  /** What the plan takes of each memory, of what it may take. */
  readonly memory: {
    readonly deviceBytes?: number;
    readonly deviceBudgetBytes?: number;
    readonly hostBytes: number;
    readonly hostAvailableBytes: number;
  };
  readonly estimate: TokenCost & { readonly tokensPerSecond: number };
}

/** Layers side by side whose tensors are in the same place become one row. */
function placeRows(plan: LoadPlan, model: ModelDescription): PlaceRow[] {
  const rows: PlaceRow[] = [];
  const open = new Map<string, number>();
  for (const { part, layer, place, tensors, bytes } of placesOf(plan, model)) {
    const key = `${part} ${place}`;
    const index = open.get(key);
    const row = index === undefined ? undefined : rows[index];
    const continues = row !== undefined && (layer === undefined || row.lastLayer === layer - 1);
    if (index !== undefined && continues) {
      rows[index] = {
        ...row,
        ...(layer === undefined ? {} : { lastLayer: layer }),
        tensors: row.tensors + tensors.length,
        bytes: row.bytes + bytes,
      };
    } else {
      open.set(key, rows.length);
      rows.push({
        part,
        place,
        ...(layer === undefined ? {} : { firstLayer: layer, lastLayer: layer }),
        tensors: tensors.length,
        bytes,
      });
    }
  }
  return rows;
}

export function planReport(
  plan: LoadPlan,
  model: ModelDescription,
  facts: MachineFacts,
): PlanReport {
  const cost = tokenCost(plan, model, facts);
  return {
    places: placeRows(plan, model),
    memory: {
      ...(plan.backend === 'cpu'
        ? {}
        : { deviceBytes: deviceBytesOf(plan), deviceBudgetBytes: plan.device.budgetBytes }),
      hostBytes: hostBytesOf(plan),
      hostAvailableBytes: facts.memoryAvailable,
    },
    estimate: { ...cost, tokensPerSecond: 1 / cost.seconds },
  };
}

const parts: Readonly<Record<PlaceRow['part'], string>> = {
  embedding: 'embedding',
  head: 'output head',
  layer: 'attention and shared',
  experts: 'routed experts',
};

const places: Readonly<Record<Place, string>> = {
  device: 'GPU memory',
  pages: 'GPU memory, in turns',
  pinnedMapping: 'mapping, pinned',
  pinnedMemory: 'main memory, pinned',
  file: 'file, read when needed',
  mapping: 'mapping',
  memory: 'main memory',
};

function gibText(bytes: number): string {
  return (bytes / 2 ** 30).toFixed(4);
}

function layersText({ firstLayer, lastLayer }: PlaceRow): string {
  if (firstLayer === undefined || lastLayer === undefined) {
    return '';
  }
  return firstLayer === lastLayer ? `${firstLayer}` : `${firstLayer}-${lastLayer}`;
}

function tableLine(part: string, layers: string, place: string, bytes: string): string {
  return `${part.padEnd(22)}${layers.padEnd(8)}${place.padEnd(24)}${bytes.padStart(12)}`;
}

/** The cache as rows of the table: its bytes are copies, and not among those of the tensors. */
function cacheLines({ backend, weights }: LoadPlan): string[] {
  const { experts } = weights;
  if (experts === undefined) {
    return [];
  }
  const near = backend === 'cpu' ? places.memory : places.device;
  const { slots, slotBytes, transitBytes, hostBytes, expertBytes } = experts;
  const rows: readonly (readonly [string, string, number])[] = [
    [`${slots} expert slots`, near, slotBytes],
    ['experts in transit', near, transitBytes],
    [`${hostBytes / expertBytes} experts`, places.pinnedMemory, hostBytes],
  ];
  return rows
    .filter(([, , bytes]) => bytes > 0)
    .map(([name, place, bytes]) => tableLine(name, '', place, gibText(bytes)));
}

function rateText(tokensPerSecond: number): string {
  return tokensPerSecond >= 10 ? tokensPerSecond.toFixed(0) : tokensPerSecond.toPrecision(2);
}

/** The report as a table and a few sums, for people. */
export function reportLines(plan: LoadPlan, report: PlanReport): string[] {
  const { deviceBytes, deviceBudgetBytes, hostBytes, hostAvailableBytes } = report.memory;
  const { seconds, tokensPerSecond, diskBytes, mappedBytes, linkBytes } = report.estimate;
  const session = plan.kv.bytes + (plan.backend === 'cpu' ? 0 : plan.bufferBytes);
  const near = plan.backend === 'cpu' ? places.memory : places.device;
  return [
    tableLine('weights', 'layers', 'place', 'GiB'),
    ...report.places.map((row) =>
      tableLine(parts[row.part], layersText(row), places[row.place], gibText(row.bytes)),
    ),
    ...cacheLines(plan),
    tableLine('session', '', near, gibText(session)),
    '',
    ...(deviceBytes === undefined || deviceBudgetBytes === undefined
      ? []
      : [`GPU memory: ${gibText(deviceBytes)} of ${gibText(deviceBudgetBytes)} GiB`]),
    `main memory: ${gibText(hostBytes)} of ${gibText(hostAvailableBytes)} GiB, beside what the system keeps of the file`,
    `estimate: ${(seconds * 1000).toPrecision(3)} ms a token (${rateText(tokensPerSecond)} tokens/s), from nominal rates: ` +
      `${gibText(diskBytes)} GiB from the disk, ${gibText(mappedBytes)} GiB read over the bus, ` +
      `${gibText(linkBytes)} GiB copied`,
  ];
}
