import { Engine, SplitEngine } from '../engine/index.js';
import type { DeviceInfo, EngineOptions, LayerSlice, ModelEngine } from '../engine/index.js';
import type { LoadPlan, PlanPart, SplitPlan } from '../plan/index.js';
import type { BackendChoice } from './backend-choice.js';
import { keepsExperts } from './expert-profile.js';
import type { ExpertProfile } from './expert-profile.js';
import type { ModelFile } from './model-file.js';
import { copyBegins, copyEnded } from './load-lines.js';
import { plannedOptions } from './planned-options.js';
import { drawsProgress, withProgress } from './progress.js';
import type { Run } from './run.js';

/** Experts of different sizes have places of their own, and each size may lose one by rounding. */
const roundingLoss = 8;

/** A plan to carry out, with the parts of it when several devices share the model. */
interface Carried {
  readonly plan: LoadPlan;
  readonly split: SplitPlan | undefined;
  readonly profile: ExpertProfile | undefined;
}

function sliceOf({ layers, embedding, head }: PlanPart): LayerSlice {
  return { ...layers, embedding, head };
}

/** One try to carry out a plan: it ends with a loaded engine, or with nothing. */
export class LoadAttempt {
  readonly #run: Run;
  readonly #file: ModelFile;
  readonly #devices: readonly DeviceInfo[];
  readonly #plans: readonly LoadPlan[];
  readonly #parts: readonly Engine[];
  readonly #split: SplitEngine | undefined;
  readonly #engine: ModelEngine;
  readonly #isLocked: boolean;
  readonly #profile: ExpertProfile | undefined;
  #forget: (() => void) | undefined;

  constructor(
    run: Run,
    file: ModelFile,
    { devices }: BackendChoice,
    { plan, split, profile }: Carried,
  ) {
    this.#run = run;
    this.#profile = profile;
    this.#file = file;
    this.#devices = devices;
    this.#isLocked = plan.weights.lock;
    this.#plans = split?.parts.map((part) => part.plan) ?? [plan];
    this.#parts = split?.parts.map((part) => this.#engineFor(part.plan, sliceOf(part))) ?? [
      this.#engineFor(plan),
    ];
    this.#split = split === undefined ? undefined : new SplitEngine(this.#parts);
    const [first] = this.#parts;
    if (first === undefined) {
      throw new Error('a plan without parts');
    }
    this.#engine = this.#split ?? first;
  }

  #engineFor(plan: LoadPlan, slice?: LayerSlice): Engine {
    const { settings, environment } = this.#run;
    const planned = plannedOptions(plan);
    const options: EngineOptions = {
      description: this.#file.description,
      backend: plan.backend,
      arithmetic: settings.exact ? 'exact' : 'fast',
      warm: settings.warm,
      ...(environment.libraryDirectory === undefined
        ? {}
        : { libraryDirectory: environment.libraryDirectory }),
      ...planned,
      weights: { ...planned.weights, leaveSlots: this.#hasSeeds },
      ...(plan.backend === 'cpu'
        ? {}
        : { upload: { ...planned.upload, check: settings.checkTensors } }),
      ...(settings.threads === undefined ? {} : { threads: settings.threads }),
      ...(slice === undefined ? {} : { slice }),
    };
    return new Engine(options);
  }

  get #hasSeeds(): boolean {
    return (this.#profile?.seeds.length ?? 0) > 0;
  }

  #say(lines: readonly string[]): void {
    for (const line of lines) {
      this.#run.terminal.note(line);
    }
  }

  #sayCopies(linesOf: (part: number, device: DeviceInfo) => readonly string[]): void {
    for (const [part, plan] of this.#plans.entries()) {
      const device =
        plan.backend === 'cpu'
          ? undefined
          : this.#devices.find(({ index }) => index === plan.device.index);
      if (device !== undefined) {
        this.#say(linesOf(part, device));
      }
    }
  }

  #copyBegins(part: number, device: DeviceInfo): readonly string[] {
    const plan = this.#plans[part];
    return plan === undefined || plan.backend === 'cpu' ? [] : copyBegins(plan, device);
  }

  #copyEnded(part: number, seconds: number): readonly string[] {
    const plan = this.#plans[part];
    const engine = this.#parts[part];
    return plan === undefined || plan.backend === 'cpu' || engine === undefined
      ? []
      : copyEnded(plan, engine.info, seconds);
  }

  /**
   * Loads with progress, and says what was loaded where. Ctrl+C ends it, and later the evaluation, until `forget`.
   *
   * @throws what the engine throws; nothing is left of it then.
   */
  async load(): Promise<ModelEngine> {
    const { terminal, environment, stop } = this.#run;
    const engine = this.#engine;
    this.#forget = stop.onStop(() => {
      engine.cancel();
    });
    const hasGpu = this.#plans.some(({ backend }) => backend !== 'cpu');
    const ends: number[] = [];
    try {
      this.#sayCopies((part, device) => this.#copyBegins(part, device));
      const started = performance.now();
      await withProgress(
        {
          terminal,
          draws: drawsProgress(terminal, environment.terminal),
          text: hasGpu ? 'copying the model into GPU memory' : 'loading the model',
          telemetry: () => engine.telemetry(),
        },
        () => this.#split?.load((part) => (ends[part] = performance.now())) ?? engine.load(),
      );
      const ended = performance.now();
      const secondsOf = (part: number): number =>
        ((ends[part] ?? ended) - (part === 0 ? started : (ends[part - 1] ?? started))) / 1000;
      if (this.#isLocked && engine.info.lockedBytes === 0) {
        terminal.warning(
          '--mlock: the system did not lock the weights in memory; ulimit -l says how much it allows',
        );
      }
      this.#sayRefusedReads();
      this.#sayFewerSlots();
      this.#sayCopies((part) => this.#copyEnded(part, secondsOf(part)));
      await this.#seed();
      this.#sayLoaded((ended - started) / 1000);
      return engine;
    } catch (thrown) {
      this.forget();
      await engine.close();
      throw thrown;
    }
  }

  /** Reads the experts that earlier runs wanted. */
  async #seed(): Promise<void> {
    const { terminal, environment } = this.#run;
    const [engine, profile] = [this.#engine, this.#profile];
    if (profile === undefined) {
      return;
    }
    if (!keepsExperts(engine)) {
      terminal.note(
        `--expert-profile ${profile.path} is neither used nor written: there is no cache of experts, each stays where it is`,
      );
      return;
    }
    if (!this.#hasSeeds) {
      return;
    }
    const started = performance.now();
    const seeded = await withProgress(
      {
        terminal,
        draws: drawsProgress(terminal, environment.terminal),
        text: 'reading the experts of earlier runs',
        telemetry: () => engine.telemetry(),
      },
      () => engine.seedExperts(profile.seeds),
    );
    const seconds = (performance.now() - started) / 1000;
    terminal.note(
      `expert profile ${profile.path}: ${seeded} of ${profile.seeds.length} experts read in ${seconds.toFixed(2)} s`,
    );
  }

  /** Without this, whoever has just little memory for the page cache would wonder where it goes. */
  #sayRefusedReads(): void {
    if (this.#engine.telemetry().files.directRefused > 0) {
      this.#run.terminal.warning(
        `${this.#file.path}: the file system refuses reads past the page cache, so that all go through it; ` +
          '--no-mmap asks for that and needs no warning',
      );
    }
  }

  /** Memory that is free may still not be had: then the cache is smaller than planned, and slower. */
  #sayFewerSlots(): void {
    const wanted = this.#plans.reduce((sum, { weights }) => sum + (weights.experts?.slots ?? 0), 0);
    const { slots } = this.#engine.telemetry().experts;
    if (wanted - slots > roundingLoss) {
      this.#run.terminal.warning(
        `only ${slots} of the ${wanted} planned places for experts could be had, because memory ran out`,
      );
    }
  }

  #sayLoaded(seconds: number): void {
    const { threads, instructionSet } = this.#engine.info;
    const usesProcessor = this.#plans.some(({ backend }) => backend === 'cpu');
    this.#run.terminal.note(
      `model ${this.#file.path} loaded in ${seconds.toFixed(2)} s` +
        (usesProcessor ? `; ${threads} threads, ${instructionSet} instructions` : ''),
    );
  }

  /** The part that failed to load, when there are several. */
  failedPart(): { readonly plan: LoadPlan } | undefined {
    const plan = this.#split === undefined ? undefined : this.#plans[this.#split.activePart];
    return plan === undefined ? undefined : { plan };
  }

  /** Ctrl+C no longer means this engine. */
  forget(): void {
    this.#forget?.();
    this.#forget = undefined;
  }
}
