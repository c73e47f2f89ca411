import type { ModelDescription } from '../model/index.js';
import { deviceBytesOf, hostBytesOf, placesOf, sharedPlan, tokenCost } from '../plan/index.js';
import type {
  LoadPlan,
  MachineFacts,
  Place,
  PlanPart,
  PlanRequest,
  SplitPlan,
  TokenCost,
} from '../plan/index.js';

// What --inspect says about a plan, beside its reasons.

/** All tensors of one part of the model that are in one place. */
export interface PlaceRow {
  readonly part: 'embedding' | 'head' | 'layer' | 'experts';
  readonly place: Place;
  readonly firstLayer?: number;
  readonly lastLayer?: number;
  /** Index of the GPU that has them, or the processor, when several share the model. */
  readonly device?: number | 'cpu';
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
    /** Among those of the host: what goes from one part of a model on several devices to the next. */
    readonly hiddenStateBytes?: number;
  };
  readonly estimate: TokenCost & { readonly tokensPerSecond: number };
}

/** Layers side by side whose tensors are in the same place become one row. */
function placeRows(
  plan: LoadPlan,
  model: ModelDescription,
  request: Pick<PlanRequest, 'layers'> = {},
): PlaceRow[] {
  const rows: PlaceRow[] = [];
  const open = new Map<string, number>();
  for (const { part, layer, place, tensors, bytes } of placesOf(plan, model, request)) {
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

function deviceMemory(
  plan: LoadPlan,
): Pick<PlanReport['memory'], 'deviceBytes' | 'deviceBudgetBytes'> {
  return plan.backend === 'cpu'
    ? {}
    : { deviceBytes: deviceBytesOf(plan), deviceBudgetBytes: plan.device.budgetBytes };
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
      ...deviceMemory(plan),
      hostBytes: hostBytesOf(plan),
      hostAvailableBytes: facts.memoryAvailable,
    },
    estimate: { ...cost, tokensPerSecond: 1 / cost.seconds },
  };
}

/** What one device has of a model that several share. */
export type PartReport = PlanPart['plan'] &
  Pick<PlanPart, 'layers' | 'embedding' | 'head'> & {
    readonly memory: Pick<PlanReport['memory'], 'deviceBytes' | 'deviceBudgetBytes' | 'hostBytes'>;
  };

export function partReports({ parts }: SplitPlan): PartReport[] {
  return parts.map(({ plan, layers, embedding, head }) => ({
    ...plan,
    layers,
    embedding,
    head,
    memory: { ...deviceMemory(plan), hostBytes: hostBytesOf(plan) },
  }));
}

function nameOf(plan: LoadPlan): number | 'cpu' {
  return plan.backend === 'cpu' ? 'cpu' : plan.device.index;
}

/** The report of a model that several devices share: a token passes one part after another, so that their times add up. */
export function splitReport(
  split: SplitPlan,
  model: ModelDescription,
  facts: MachineFacts,
): PlanReport {
  const shared = sharedPlan(split);
  const costs = split.parts.map(({ plan, layers }) => tokenCost(plan, model, facts, { layers }));
  const sum = (pick: (cost: TokenCost) => number): number =>
    costs.reduce((total, cost) => total + pick(cost), 0);
  const seconds = sum((cost) => cost.seconds);
  return {
    places: split.parts.flatMap(({ plan, layers }) =>
      placeRows(plan, model, { layers }).map((row) => ({ ...row, device: nameOf(plan) })),
    ),
    memory: {
      ...deviceMemory(shared),
      // The parts are loaded one after another, with one ring of buffers at a time.
      hostBytes:
        hostBytesOf(shared) +
        split.hiddenStateBytes +
        split.parts.reduce(
          (bytes, { plan }) => bytes + (plan.backend === 'cpu' ? hostBytesOf(plan) : 0),
          0,
        ),
      hostAvailableBytes: facts.memoryAvailable,
      hiddenStateBytes: split.hiddenStateBytes,
    },
    estimate: {
      computeBytes: sum((cost) => cost.computeBytes),
      mappedBytes: sum((cost) => cost.mappedBytes),
      diskBytes: sum((cost) => cost.diskBytes),
      linkBytes: sum((cost) => cost.linkBytes),
      seconds,
      tokensPerSecond: 1 / seconds,
    },
  };
}

const partNames: Readonly<Record<PlaceRow['part'], string>> = {
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

function placeText({ place, device }: PlaceRow): string {
  return device === undefined
    ? places[place]
    : device === 'cpu'
      ? `${places[place]}, processor`
      : `${places[place]}, device ${device}`;
}

function tableLine(part: string, layers: string, place: string, bytes: string): string {
  return `${part.padEnd(22)}${layers.padEnd(8)}${place.padEnd(24)}${bytes.padStart(12)}`;
}

/** The cache and the buffers of readers as rows of the table: their bytes are copies, and not among those of the tensors. */
function cacheLines({ backend, weights }: LoadPlan): string[] {
  const { experts, fetchBytes = 0, readThreads = 0 } = weights;
  const near = backend === 'cpu' ? places.memory : places.device;
  const ofExperts = (): (readonly [string, string, number])[] => {
    if (experts === undefined) {
      return [];
    }
    const { slots, slotBytes, transitBytes, hostBytes, expertBytes } = experts;
    return [
      [`${slots} expert slots`, near, slotBytes],
      ['experts in transit', near, transitBytes],
      [`${hostBytes / expertBytes} experts`, places.pinnedMemory, hostBytes],
    ];
  };
  const rows: readonly (readonly [string, string, number])[] = [
    ...ofExperts(),
    [`buffers of ${readThreads} readers`, places.memory, fetchBytes],
  ];
  return rows
    .filter(([, , bytes]) => bytes > 0)
    .map(([name, place, bytes]) => tableLine(name, '', place, gibText(bytes)));
}

function rateText(tokensPerSecond: number): string {
  return tokensPerSecond >= 10 ? tokensPerSecond.toFixed(0) : tokensPerSecond.toPrecision(2);
}

/** What each of several devices has, and may have. */
function partLines(parts: readonly PartReport[]): string[] {
  return parts.map(({ layers: { first, last }, memory, ...plan }) => {
    const layers = first === last ? `layer ${first}` : `layers ${first} to ${last}`;
    const { deviceBytes = 0, deviceBudgetBytes = 0, hostBytes } = memory;
    return plan.backend === 'cpu'
      ? `  ${layers}, processor: ${gibText(hostBytes)} GiB of main memory`
      : `  ${layers}, device ${plan.device.index}: ${gibText(deviceBytes)} of ${gibText(deviceBudgetBytes)} GiB`;
  });
}

/** The report as a table and a few sums, for people; `parts` when several devices share the model. */
export function reportLines(
  plan: LoadPlan,
  report: PlanReport,
  parts: readonly PartReport[] = [],
): string[] {
  const { deviceBytes, deviceBudgetBytes, hostBytes, hostAvailableBytes, hiddenStateBytes } =
    report.memory;
  const { seconds, tokensPerSecond, diskBytes, mappedBytes, linkBytes } = report.estimate;
  const session = plan.kv.bytes + plan.bufferBytes;
  const near = plan.backend === 'cpu' ? places.memory : places.device;
  return [
    tableLine('weights', 'layers', 'place', 'GiB'),
    ...report.places.map((row) =>
      tableLine(partNames[row.part], layersText(row), placeText(row), gibText(row.bytes)),
    ),
    ...cacheLines(plan),
    tableLine('session', '', near, gibText(session)),
    '',
    ...(deviceBytes === undefined || deviceBudgetBytes === undefined
      ? []
      : [`GPU memory: ${gibText(deviceBytes)} of ${gibText(deviceBudgetBytes)} GiB`]),
    ...partLines(parts),
    ...(hiddenStateBytes === undefined
      ? []
      : [`  between them: ${gibText(hiddenStateBytes)} GiB of main memory for hidden states`]),
    `main memory: ${gibText(hostBytes)} of ${gibText(hostAvailableBytes)} GiB, beside what the system keeps of the file`,
    `estimate: ${(seconds * 1000).toPrecision(3)} ms a token (${rateText(tokensPerSecond)} tokens/s), from nominal rates: ` +
      `${gibText(diskBytes)} GiB from the disk, ${gibText(mappedBytes)} GiB read over the bus, ` +
      `${gibText(linkBytes)} GiB copied`,
  ];
}
