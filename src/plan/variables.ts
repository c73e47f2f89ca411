import type { NamedVariable, PlanReason } from './plan.js';

/** What of a plan variables may be for. */
interface Uses {
  readonly isOnGpu: boolean;
  /** Experts are read from the file while the model runs. */
  readonly streams: boolean;
  /** Experts or other weights are. */
  readonly fetches: boolean;
}

function whyIdle(
  { about, overriddenBy }: NamedVariable,
  { isOnGpu, streams, fetches }: Uses,
): string | undefined {
  const isForGpu = about === 'gpu' || about === 'gpuStreaming';
  const isForStreams = about === 'gpuStreaming' || about === 'streaming';
  if (isForGpu && !isOnGpu) {
    return 'with the cpu backend';
  }
  if (isForStreams && !streams) {
    return 'where no experts are read from the file while the model runs';
  }
  if (about === 'fetching' && !fetches) {
    return 'where no weights are read from the file while the model runs';
  }
  return overriddenBy === undefined ? undefined : `beside ${overriddenBy}, which wins`;
}

/** Which variables change nothing in a plan, and why: nothing that somebody has set is passed over in silence. */
export function variableReasons(
  variables: readonly NamedVariable[] = [],
  uses: Uses,
): PlanReason[] {
  return variables.flatMap((variable): PlanReason[] => {
    const { name, about } = variable;
    if (about === 'q8Copies') {
      const text = `${name} has no effect: Q8_0 weights are multiplied as they are in the file, and no copies of them in 16 bits are kept`;
      return [{ kind: 'headline', text }];
    }
    const why = whyIdle(variable, uses);
    return why === undefined ? [] : [{ kind: 'note', text: `${name} has no effect ${why}` }];
  });
}
