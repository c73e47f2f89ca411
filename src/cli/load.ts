import { existsSync, statSync } from 'node:fs';
import type { Engine, EngineSession, Lock } from '../engine/index.js';
import type { ModelDescription } from '../model/index.js';
import type { LoadPlan, PlanRequest } from '../plan/index.js';
import { chooseBackend } from './backend-choice.js';
import { formatBytes } from './bytes.js';
import { RunError } from './errors.js';
import { availableMemory } from './host-memory.js';
import { chooseModel } from './model-choice.js';
import { drawsProgress, withProgress } from './progress.js';
import type { Run } from './run.js';

/** Checkpoints that a session keeps: the ends of the last turns. */
const checkpointCount = 4;

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

/** Says which backend it will be, and refuses one that is not here. */
function announceBackend(run: Run): 'cpu' {
  const choice = chooseBackend(run.settings);
  if (choice.warning !== undefined) {
    run.terminal.warning(choice.warning);
  }
  if (choice.note !== undefined) {
    run.terminal.note(choice.note);
  }
  return choice.backend;
}

async function takeLock(run: Run, backend: 'cpu'): Promise<Lock> {
  const { acquireLock, LockFileError, LockHeldError } = await import('../engine/index.js');
  const path = run.environment.lockFile;
  try {
    return acquireLock(path, backend);
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

/** What the options ask of the planner. `--prefill-chunk` wins over its environment variable. */
export function planRequest(run: Run, context: number | undefined): PlanRequest {
  const chunk = run.settings.prefillChunk ?? run.environment.prefillChunk;
  return {
    source: run.settings.source,
    ...(context === undefined ? {} : { context }),
    ...(chunk === undefined ? {} : { prefillChunk: chunk }),
  };
}

async function planRun(
  run: Run,
  description: ModelDescription,
  context: number | undefined,
): Promise<LoadPlan> {
  const { planLoad } = await import('../plan/index.js');
  const plan = planLoad(
    description,
    { memoryAvailable: availableMemory() },
    planRequest(run, context),
  );
  for (const reason of plan.reasons) {
    if (reason.kind === 'warning') {
      run.terminal.warning(reason.text);
    }
  }
  return plan;
}

function memoryLine(plan: LoadPlan, session: EngineSession): string {
  const { kvBytes, workspaceBytes } = session.measure();
  const { bytes, source } = plan.weights;
  const total = kvBytes + workspaceBytes + bytes;
  return (
    `memory: KV ${formatBytes(kvBytes)} + buffers ${formatBytes(workspaceBytes)} + ` +
    `${source === 'mmap' ? 'mapped' : 'resident'} model ${formatBytes(bytes)} = ${formatBytes(total)} planned`
  );
}

/**
 * Takes the lock and loads the model. Ctrl+C ends it within a second. The order of the steps decides which of two
 * errors a user sees: backend, lock, model file, memory.
 */
export async function loadModel(run: Run): Promise<{ model: LoadedModel; session: EngineSession }> {
  const backend = announceBackend(run);
  const releases: (() => void | Promise<void>)[] = [];
  const close = async (): Promise<void> => {
    for (const release of releases.splice(0).reverse()) {
      await release();
    }
  };
  try {
    const lock = await takeLock(run, backend);
    releases.push(() => {
      lock.release();
    });
    const file = await openModelFile(modelPath(run));
    const plan = await planRun(run, file.description, run.settings.context);
    const { Engine } = await import('../engine/index.js');
    const { settings, terminal } = run;
    const engine = new Engine({
      description: file.description,
      backend,
      arithmetic: settings.exact ? 'exact' : 'fast',
      source: settings.source,
      warm: settings.warm,
      ...(settings.threads === undefined ? {} : { threads: settings.threads }),
    });
    releases.push(() => engine.close());
    releases.push(
      run.stop.onStop(() => {
        engine.cancel();
      }),
    );

    const openSession = async (sessionPlan: LoadPlan): Promise<EngineSession> => {
      const session = await engine.openSession({
        context: sessionPlan.context,
        prefillChunk: sessionPlan.prefillChunk,
        checkpoints: checkpointCount,
      });
      terminal.memory(memoryLine(sessionPlan, session));
      return session;
    };
    const draws = drawsProgress(terminal, run.environment.terminal);
    let seconds = 0;
    await withProgress(
      {
        terminal,
        draws,
        text: 'ds4: loading the model',
        telemetry: () => engine.telemetry(),
      },
      async () => {
        const started = performance.now();
        await engine.load();
        seconds = (performance.now() - started) / 1000;
      },
    );
    const { threads, instructionSet } = engine.info;
    terminal.note(
      `model ${file.path} loaded in ${seconds.toFixed(2)} s; ${threads} threads, ${instructionSet} instructions`,
    );
    const session = await openSession(plan);
    const model = {
      ...file,
      engine,
      plan,
      openSession: async (context: number) =>
        openSession(await planRun(run, file.description, context)),
      close,
    };
    return { model, session };
  } catch (thrown) {
    await close();
    throw thrown;
  }
}
