import type { BackendName, EngineSession, Lock, ModelEngine } from '../engine/index.js';
import { Ds4Error, ExitCode } from '../error/index.js';
import type { LoadPlan, SplitPlan } from '../plan/index.js';
import { chooseBackend, hasLostDevice } from './backend-choice.js';
import type { BackendChoice } from './backend-choice.js';
import { keepsExperts, openExpertProfile } from './expert-profile.js';
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
   * Closes the only session and opens one with another context in its place: there need not be memory for both.
   *
   * @throws PlanError when it will not fit: then nothing has changed. NoSessionError.
   */
  replaceSession(session: EngineSession, context: number): Promise<Replaced>;
  /**
   * Writes the file of --expert-profile, at the end of a run that went well.
   *
   * @throws RunError when it cannot be written.
   */
  saveExpertProfile(): Promise<void>;
  close(): Promise<void>;
}

/** The new session; or, with the reason, an empty one like the old one, when the new one could not be had. */
export interface Replaced {
  readonly session: EngineSession;
  readonly failure?: Ds4Error;
}

/** The old session was given up for a new one, and now neither can be had. */
export class NoSessionError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
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

/** The way back, when the session that was to be in its place could not be had. */
async function openAgain(
  openSession: (planned: Pick<Planned, 'plan' | 'split'>) => Promise<EngineSession>,
  planned: Pick<Planned, 'plan' | 'split'>,
  { message }: Ds4Error,
): Promise<EngineSession> {
  try {
    return await openSession(planned);
  } catch (thrown) {
    throw thrown instanceof Ds4Error
      ? new NoSessionError(
          `${message}; the context of ${planned.plan.context} that was there before cannot be had any more either: ${thrown.message}`,
        )
      : thrown;
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
    const profile = openExpertProfile(run.settings, file.description.shape);
    const [{ planNextSession, planRun }, { loadAsPlanned }, { LoadAttempt }, { memoryLine }] =
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
        attempt = new LoadAttempt(run, file, choice, {
          plan: next,
          split: planned?.split,
          profile,
        });
        return attempt.load();
      },
      failed: () => attempt?.failedPart(),
      isLost: () => hasLostDevice(run, choice),
    });
    const split = planned?.split;
    releases.push(
      () => engine.close(),
      () => attempt?.forget(),
    );

    const openSession = async (next: Pick<Planned, 'plan' | 'split'>): Promise<EngineSession> => {
      const session = await engine.openSession(next.plan);
      const plans = next.split?.parts.map((part) => part.plan) ?? [next.plan];
      run.terminal.memory(memoryLine(plans, session.measure(), next.split?.hiddenStateBytes));
      return session;
    };
    const loaded = { plan, ...(split === undefined ? {} : { split }) };
    const session = await openSession(loaded);
    let current: Pick<Planned, 'plan' | 'split'> = loaded;
    const model = {
      ...file,
      engine,
      ...loaded,
      replaceSession: async (old: EngineSession, context: number) => {
        const next = planNextSession(run, choice, file.description, current, context);
        announcePlan(run, next, said);
        await old.close();
        try {
          const opened = { session: await openSession(next) };
          current = next;
          return opened;
        } catch (failure) {
          if (!(failure instanceof Ds4Error)) {
            throw failure;
          }
          return { session: await openAgain(openSession, current, failure), failure };
        }
      },
      saveExpertProfile: async () => {
        if (profile !== undefined && keepsExperts(engine)) {
          await profile.save(engine);
        }
      },
      close,
    };
    return { model, session };
  } catch (thrown) {
    await close();
    throw thrown;
  }
}
