import type { BackendName, EngineSession, Lock, ModelEngine } from '../engine/index.js';
import type { LoadPlan, SplitPlan } from '../plan/index.js';
import { chooseBackend } from './backend-choice.js';
import type { BackendChoice } from './backend-choice.js';
import { modelPath, openModelFile } from './model-file.js';
import type { ModelFile } from './model-file.js';
import type { Planned } from './planning.js';
import type { Run } from './run.js';

/** Everything that a run holds until its end. */
export interface LoadedModel extends ModelFile {
  readonly engine: ModelEngine;
  /** Of several devices, what all of them take together. */
  readonly plan: LoadPlan;
  /** The parts, when several devices share the model. */
  readonly split?: SplitPlan;
  /**
   * Another session of the same model; the caller closes it.
   *
   * @throws PlanError when there is no memory for it.
   */
  openSession(context: number): Promise<EngineSession>;
  close(): Promise<void>;
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
  if (choice.devices.length > 0) {
    const { placementLine } = await import('./load-lines.js');
    const line = placementLine(run.settings, choice.devices);
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
function announcePlan(
  { settings, terminal }: Run,
  { plan, split }: Pick<Planned, 'plan' | 'split'>,
  said: Set<string>,
): void {
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
  // A part of the model on the processor is served by these options.
  if (split?.parts.some((part) => part.plan.backend === 'cpu') === true) {
    return;
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
    const [{ planAnotherSession, planRun }, { loadAsPlanned }, { LoadAttempt }, { memoryLine }] =
      await Promise.all([
        import('./planning.js'),
        import('./load-as-planned.js'),
        import('./load-engine.js'),
        import('./load-lines.js'),
      ]);
    const said = new Set<string>();
    let planned: Planned | undefined;
    let attempt: InstanceType<typeof LoadAttempt> | undefined;
    const { plan, loaded: engine } = await loadAsPlanned({
      plan: (failures) => {
        planned = planRun(run, choice, file.description, failures);
        return planned.plan;
      },
      announce: (next) => {
        announcePlan(run, planned ?? { plan: next }, said);
      },
      load: (next) => {
        attempt = new LoadAttempt(run, file, choice, { plan: next, split: planned?.split });
        return attempt.load();
      },
      failed: () => attempt?.failedPart(),
    });
    const split = planned?.split;
    releases.push(
      () => engine.close(),
      () => attempt?.forget(),
    );

    const openSession = async (next: Pick<Planned, 'plan' | 'split'>): Promise<EngineSession> => {
      const session = await engine.openSession(next.plan);
      const plans = next.split?.parts.map((part) => part.plan) ?? [next.plan];
      run.terminal.memory(memoryLine(plans, session.measure()));
      return session;
    };
    const loaded = { plan, ...(split === undefined ? {} : { split }) };
    const session = await openSession(loaded);
    const model = {
      ...file,
      engine,
      ...loaded,
      openSession: async (context: number) => {
        const next = planAnotherSession(run, choice, file.description, loaded, context);
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
