import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  fsyncSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname } from 'node:path';
import type { ExpertId, ExpertUse, ModelEngine } from '../engine/index.js';
import type { ModelShape } from '../model/index.js';
import { RunError, systemReason } from './errors.js';
import type { Settings } from './settings.js';

// Which experts were wanted in earlier runs, the most valuable first: what the expert cache begins with.

const version = 1;
/** Of a file that is read as a whole: many times what the largest model needs. */
const mostBytes = 16 * 2 ** 20;
/** Of a line that is quoted in an error. */
const quotedCharacters = 60;
const digits = '(0|[1-9][0-9]{0,15})';
const linePattern = new RegExp(`^${digits} ${digits} ${digits}$`);
const headerPattern = new RegExp(
  `^ds4-expert-profile ${digits} layers=${digits} experts=${digits} used=${digits}$`,
);

export type ProfiledShape = Pick<ModelShape, 'layerCount' | 'expertCount' | 'expertUsed'>;

/** A line of a profile. */
export interface ProfiledExpert extends ExpertId {
  /** Evaluations that wanted it; older runs count less. */
  readonly hits: number;
}

function header({ layerCount, expertCount, expertUsed }: ProfiledShape): string {
  return `ds4-expert-profile ${version} layers=${layerCount} experts=${expertCount} used=${expertUsed}`;
}

/** A first line with the model's shape, then `LAYER EXPERT HITS` for each expert. */
export function profileText(shape: ProfiledShape, experts: readonly ProfiledExpert[]): string {
  const lines = experts.map(({ layer, expert, hits }) => `${layer} ${expert} ${hits}\n`);
  return `${header(shape)}\n${lines.join('')}`;
}

function quoted(line: string): string {
  const shown = line.length > quotedCharacters ? `${line.slice(0, quotedCharacters)}...` : line;
  return JSON.stringify(shown).replaceAll(/[\u007f-\u009f]/g, '?');
}

function checkHeader(line: string, shape: ProfiledShape): void {
  const match = headerPattern.exec(line);
  if (match === null) {
    throw new RunError(
      `line 1: this is no expert profile: it begins with ${quoted(line)} and not with '${header(shape)}'`,
    );
  }
  const [found = 0, layers = 0, experts = 0, used = 0] = match.slice(1).map(Number);
  if (found !== version) {
    throw new RunError(`line 1: it has version ${found}; this program reads version ${version}`);
  }
  if (layers !== shape.layerCount || experts !== shape.expertCount || used !== shape.expertUsed) {
    throw new RunError(
      `line 1: it belongs to a model of ${layers} layers with ${experts} experts, ${used} used; ` +
        `this one has ${shape.layerCount} layers with ${shape.expertCount}, ${shape.expertUsed} used`,
    );
  }
}

function parseLine(line: string, { layerCount, expertCount }: ProfiledShape): ProfiledExpert {
  const match = linePattern.exec(line);
  if (match === null) {
    throw new RunError(`${quoted(line)} is not LAYER EXPERT HITS`);
  }
  const [layer = 0, expert = 0, hits = 0] = match.slice(1).map(Number);
  if (layer >= layerCount) {
    throw new RunError(`there is no layer ${layer}; the model has 0 to ${layerCount - 1}`);
  }
  if (expert >= expertCount) {
    throw new RunError(`there is no expert ${expert}; a layer has 0 to ${expertCount - 1}`);
  }
  if (!Number.isSafeInteger(hits)) {
    throw new RunError(`${hits} hits are more than can be counted`);
  }
  return { layer, expert, hits };
}

/**
 * Reads what `profileText` wrote, or what somebody else wrote: nothing in it is trusted.
 *
 * @returns in the order of the file, each expert once
 * @throws RunError that begins with the number of the line
 */
export function parseProfile(text: string, shape: ProfiledShape): ProfiledExpert[] {
  const [first = '', ...lines] = text.split('\n');
  checkHeader(first, shape);
  if (lines.at(-1) === '') {
    lines.pop();
  }
  const lineOf = new Map<number, number>();
  return lines.map((line, index) => {
    const number = index + 2;
    try {
      const entry = parseLine(line, shape);
      const key = entry.layer * shape.expertCount + entry.expert;
      const earlier = lineOf.get(key);
      if (earlier !== undefined) {
        throw new RunError(
          `expert ${entry.expert} of layer ${entry.layer} is in line ${earlier} already`,
        );
      }
      lineOf.set(key, number);
      return entry;
    } catch (thrown) {
      throw thrown instanceof RunError ? new RunError(`line ${number}: ${thrown.message}`) : thrown;
    }
  });
}

/**
 * The profile after a run: what is in the cache in the order of its value, as far as anybody ever wanted it, then the others
 * by their hits. What the profile had before counts half, so that it follows its user.
 */
export function updatedProfile(
  uses: readonly ExpertUse[],
  before: readonly ProfiledExpert[],
): ProfiledExpert[] {
  const keyOf = ({ layer, expert }: ExpertId): string => `${layer} ${expert}`;
  const known = new Map(before.map((entry) => [keyOf(entry), entry]));
  const counted = uses.map((use) => {
    const earlier = known.get(keyOf(use));
    known.delete(keyOf(use));
    return {
      isKept: use.isKept && (use.uses > 0 || earlier !== undefined),
      entry: {
        layer: use.layer,
        expert: use.expert,
        hits: use.uses + Math.floor((earlier?.hits ?? 0) / 2),
      },
    };
  });
  const kept = counted.filter(({ isKept }) => isKept).map(({ entry }) => entry);
  const others = [
    ...counted.filter(({ isKept }) => !isKept).map(({ entry }) => entry),
    ...[...known.values()].map((entry) => ({ ...entry, hits: Math.floor(entry.hits / 2) })),
  ];
  return [
    ...kept,
    ...others.filter(({ hits }) => hits > 0).sort((one, other) => other.hits - one.hits),
  ];
}

function readProfile(path: string): string | undefined {
  if (!existsSync(path)) {
    return undefined;
  }
  const stats = statSync(path);
  if (!stats.isFile()) {
    throw new RunError('it is no regular file');
  }
  if (stats.size > mostBytes) {
    throw new RunError(`${stats.size} bytes are too many for an expert profile`);
  }
  return readFileSync(path, 'latin1');
}

/** Writes a file anew through another one beside it, which is gone afterwards. */
function replaceFile(path: string, text: string): void {
  const beside = `${path}.${process.pid}.new`;
  const descriptor = openSync(beside, 'wx');
  try {
    try {
      writeFileSync(descriptor, text);
      fsyncSync(descriptor);
    } finally {
      closeSync(descriptor);
    }
    renameSync(beside, path);
  } catch (thrown) {
    rmSync(beside, { force: true });
    throw thrown;
  }
}

/** The file of `--expert-profile` during a run. */
export class ExpertProfile {
  readonly #path: string;
  readonly #shape: ProfiledShape;
  readonly #before: readonly ProfiledExpert[];
  /** What the cache is to begin with, the most valuable first. */
  readonly seeds: readonly ExpertId[];

  /**
   * Reads the file if there is one.
   *
   * @throws RunError when it cannot be read, is damaged or belongs to another model, or when it could not be written later
   */
  constructor(
    path: string,
    shape: ProfiledShape,
    { cold, most }: { readonly cold: boolean; readonly most: number | undefined },
  ) {
    this.#path = path;
    this.#shape = shape;
    try {
      const text = readProfile(path);
      this.#before = text === undefined ? [] : parseProfile(text, shape);
    } catch (thrown) {
      throw this.#unreadable(thrown);
    }
    try {
      accessSync(dirname(this.#target()), constants.W_OK);
    } catch (thrown) {
      throw this.#unwritable(thrown);
    }
    this.seeds = cold ? [] : this.#before.slice(0, most);
  }

  get path(): string {
    return this.#path;
  }

  #unreadable(thrown: unknown): RunError {
    return new RunError(
      `cannot use the expert profile ${this.#path}: ${systemReason(thrown)}; ` +
        'delete it to begin a new one, or name another file',
    );
  }

  #unwritable(thrown: unknown): RunError {
    return new RunError(`cannot write the expert profile ${this.#path}: ${systemReason(thrown)}`);
  }

  /** Where the bytes go: a link stays a link. */
  #target(): string {
    return existsSync(this.#path) ? realpathSync(this.#path) : this.#path;
  }

  /**
   * Writes the file anew. It is the old one or the new one at any time, never a part of either.
   *
   * @throws RunError when that fails; then it is the old one
   */
  async save(engine: ModelEngine): Promise<void> {
    const experts = updatedProfile(await engine.listExperts(), this.#before);
    const text = profileText(this.#shape, experts);
    try {
      replaceFile(this.#target(), text);
    } catch (thrown) {
      throw this.#unwritable(thrown);
    }
  }
}

/** Whether experts have places of their own that a profile could fill. */
export function keepsExperts(engine: ModelEngine): boolean {
  const { slots, hostPlaces } = engine.telemetry().experts;
  return slots + hostPlaces > 0;
}

/** The profile that the settings ask for. */
export function openExpertProfile(
  settings: Readonly<Settings>,
  shape: ProfiledShape,
): ExpertProfile | undefined {
  const { expertProfile, ssdStreamingCold: cold, preloadExperts: most } = settings;
  return expertProfile === undefined
    ? undefined
    : new ExpertProfile(expertProfile, shape, { cold, most });
}
