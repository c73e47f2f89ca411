import { existsSync, statSync } from 'node:fs';
import type { BackendName, Engine, EngineSession, Lock } from '../engine/index.js';
import type { ModelDescription } from '../model/index.js';
import type { LoadPlan } from '../plan/index.js';
import { chooseBackend } from './backend-choice.js';
import type { BackendChoice } from './backend-choice.js';
import { RunError } from './errors.js';
import { chooseModel } from './model-choice.js';
import { plannedOptions } from './planned-options.js';
import { drawsProgress, withProgress } from './progress.js';
import type { Run } from './run.js';

/** The model file, read and understood; nothing is loaded yet. */
export interface ModelFile {
  readonly path: string;
  readonly description: ModelDescription;
}

/** Everything that a run holds until its end. */
export interface LoadedModel extends ModelFile {
  readonly engine: Engine;
  readonly plan: LoadPlan;
  /**
   * Another session of the same model; the caller closes it.
   *
   * @throws PlanError when there is no memory for it.
   */
  openSession(context: number): Promise<EngineSession>;
  close(): Promise<void>;
}

/** Which model file this run is about; says so when nobody named it. */
export function modelPath(run: Run): string {
  const choice = chooseModel(run.settings.model);
  if (choice.note !== undefined) {
    run.terminal.note(choice.note);
  }
  return choice.path;
}

/** Opens the file, or says why it cannot be opened, in the words of the system. */
export async function openModelFile(path: string): Promise<ModelFile> {
  if (existsSync(path) && statSync(path).isDirectory()) {
    throw new RunError(`cannot open model '${path}': it is a directory; name a GGUF file`);
  }
  const [{ openGguf }, { describeModel }] = await Promise.all([
    import('../gguf/index.js'),
    import('../model/index.js'),
  ]);
  return { path, description: describeModel(openGguf(path)) };
}

/** Says which backend it will be, and refuses one that cannot be used. */
async function announceBackend(run: Run): Promise<BackendChoice> {
  const choice = await chooseBackend(run);
  for (const warning of choice.warnings) {
    run.terminal.warning(warning);
  }
  for (const note of choice.notes) {
    run.terminal.note(note);
  }
  if (choice.device !== undefined) {
    const { placementLine } = await import('./load-lines.js');
    const line = placementLine(run.settings, choice.device);
    if (line !== undefined) {
      run.terminal.note(line);
    }
  }
  return choice;
}

async function takeLock(run: Run, backend: BackendName): Promise<Lock> {
  const { acquireLock, LockFileError, LockHeldError } = await import('../engine/index.js');
  const { lockFile: path, libraryDirectory } = run.environment;
  try {
    return acquireLock(path, backend, libraryDirectory);
  } catch (thrown) {
    if (thrown instanceof LockHeldError) {
      // Two models at once seldom fit, so this is an error; who knows better needs the variable's name.
      thrown.message += `; if there is memory for both, give this run a lock file of its own with DS4_LOCK_FILE (now ${path})`;
    } else if (thrown instanceof LockFileError) {
      thrown.message += '; DS4_LOCK_FILE names another lock file';
    }
    throw thrown;
  }
}

/** Says what the plan has decided, and which options it leaves without effect; nothing twice. */
function announcePlan({ settings, terminal }: Run, plan: LoadPlan, said: Set<string>): void {
  const tell = (kind: 'warning' | 'headline' | 'note', text: string): void => {
    if (said.has(text) || kind === 'note') {
      return;
    }
    said.add(text);
    if (kind === 'warning') {
      terminal.warning(text);
    } else {
      terminal.note(text);
    }
  };
  for (const { kind, text } of plan.reasons) {
    tell(kind, text);
  }
  if (plan.backend !== 'cpu' && settings.threads !== undefined) {
    tell('warning', `--threads has no effect with the ${plan.backend} backend`);
  }
  if (settings.warm && plan.weights.place === 'device') {
    tell('warning', '--warm-weights has no effect: the whole model is copied into GPU memory');
  } else if (settings.warm && plan.weights.place === 'streamExperts') {
    tell('warning', '--warm-weights has no effect on experts that are read when they are needed');
  }
}

async function loadEngine(
  run: Run,
  file: ModelFile,
  { device }: BackendChoice,
  plan: LoadPlan,
): Promise<{ engine: Engine; forget: () => void }> {
  const { settings, terminal, environment } = run;
  const [{ Engine }, { copyBegins, copyEnded }] = await Promise.all([
    import('../engine/index.js'),
    import('./load-lines.js'),
  ]);
  const gpu = plan.backend === 'cpu' || device === undefined ? undefined : { plan, device };
  const planned = plannedOptions(plan);
  const engine = new Engine({
    description: file.description,
    backend: plan.backend,
    arithmetic: settings.exact ? 'exact' : 'fast',
    warm: settings.warm,
    ...(environment.libraryDirectory === undefined
      ? {}
      : { libraryDirectory: environment.libraryDirectory }),
    ...planned,
    ...(plan.backend === 'cpu'
      ? {}
      : { upload: { ...planned.upload, check: settings.checkTensors } }),
    ...(settings.threads === undefined ? {} : { threads: settings.threads }),
  });
  const forget = run.stop.onStop(() => {
    engine.cancel();
  });
  const say = (lines: readonly string[]): void => {
    for (const line of lines) {
      terminal.note(line);
    }
  };
  try {
    say(gpu === undefined ? [] : copyBegins(gpu.plan, gpu.device));
    const started = performance.now();
    await withProgress(
      {
        terminal,
        draws: drawsProgress(terminal, environment.terminal),
        text: gpu === undefined ? 'loading the model' : 'copying the model into GPU memory',
        telemetry: () => engine.telemetry(),
      },
      () => engine.load(),
    );
    const seconds = (performance.now() - started) / 1000;
    const { threads, instructionSet, lockedBytes } = engine.info;
    if (plan.weights.lock && lockedBytes === 0) {
      terminal.warning(
        '--mlock: the system did not lock the weights in memory; ulimit -l says how much it allows',
      );
    }
    say(gpu === undefined ? [] : copyEnded(gpu.plan, engine.info, seconds));
    terminal.note(
      `model ${file.path} loaded in ${seconds.toFixed(2)} s` +
        (gpu === undefined ? `; ${threads} threads, ${instructionSet} instructions` : ''),
    );
    return { engine, forget };
  } catch (thrown) {
    forget();
    await engine.close();
    throw thrown;
  }
}

/**
 * Takes the lock and loads the model. Ctrl+C ends it within a second. The order of the steps decides which of two
 * errors a user sees: backend, lock, model file, memory.
 */
export async function loadModel(run: Run): Promise<{ model: LoadedModel; session: EngineSession }> {
  const choice = await announceBackend(run);
  const releases: (() => void | Promise<void>)[] = [];
  const close = async (): Promise<void> => {
    for (const release of releases.splice(0).reverse()) {
      await release();
    }
  };
  try {
    const lock = await takeLock(run, choice.backend);
    releases.push(() => {
      lock.release();
    });
    const file = await openModelFile(modelPath(run));
    const [{ planAnotherSession, planRun }, { loadAsPlanned }, { memoryLine }] = await Promise.all([
      import('./planning.js'),
      import('./load-as-planned.js'),
      import('./load-lines.js'),
    ]);
    const said = new Set<string>();
    const { plan, loaded } = await loadAsPlanned({
      plan: (failures) => planRun(run, choice, file.description, failures).plan,
      announce: (next) => {
        announcePlan(run, next, said);
      },
      load: (next) => loadEngine(run, file, choice, next),
    });
    const { engine, forget } = loaded;
    releases.push(() => engine.close(), forget);

    const openSession = async (sessionPlan: LoadPlan): Promise<EngineSession> => {
      const session = await engine.openSession(sessionPlan);
      run.terminal.memory(memoryLine(sessionPlan, session.measure()));
      return session;
    };
    const session = await openSession(plan);
    const model = {
      ...file,
      engine,
      plan,
      openSession: async (context: number) => {
        const next = planAnotherSession(run, choice, file.description, plan, context);
        announcePlan(run, next, said);
        return openSession(next);
      },
      close,
    };
    return { model, session };
  } catch (thrown) {
    await close();
    throw thrown;
  }
}
