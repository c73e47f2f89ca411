import type { GpuFacts, PlanReason, PlanRequest } from './plan.js';
import { failuresOf } from './failures.js';

/** Who wants the whole model in GPU memory, and who does not. */
export type Wish =
  | { readonly kind: 'asked'; readonly by: string }
  | { readonly kind: 'automatic' }
  | {
      readonly kind: 'forbidden';
      /** A user's word forbids copies of experts in GPU memory too; other grounds do not. */
      readonly by: 'user' | 'failure' | 'mode';
      readonly because: string;
      readonly reasons: readonly PlanReason[];
    };

function forbidden(
  by: 'user' | 'failure' | 'mode',
  because: string,
  warning?: string,
): Extract<Wish, { kind: 'forbidden' }> {
  return {
    kind: 'forbidden',
    by,
    because,
    reasons: warning === undefined ? [] : [{ kind: 'warning', text: warning }],
  };
}

/** The modes in which the model is not copied whole, whatever fits. */
function modeOf(request: PlanRequest): string | undefined {
  return request.paging !== undefined
    ? '--weight-paging was given'
    : request.experts?.streaming === true
      ? '--ssd-streaming was given'
      : undefined;
}

export function wishOf(request: PlanRequest, gpu: GpuFacts): Wish {
  const { resident, copyAskedBy, copyForbiddenBy } = request.gpu ?? {};
  const asked = resident === true ? '--gpu-resident' : copyAskedBy;
  const mode = modeOf(request);
  if (copyForbiddenBy !== undefined) {
    return forbidden(
      'user',
      `${copyForbiddenBy} is set`,
      resident === false || asked === undefined
        ? undefined
        : `${asked} has no effect: ${copyForbiddenBy} forbids the copy of the model`,
    );
  }
  if (resident === false) {
    return forbidden('user', '--no-gpu-resident was given');
  }
  if (mode !== undefined) {
    return forbidden(
      'mode',
      mode,
      asked === undefined ? undefined : `${asked} has no effect, because ${mode}`,
    );
  }
  if (failuresOf(request, 'copy') > 0) {
    return forbidden('failure', 'the copy failed');
  }
  if (gpu.kind === 'integrated' && request.lock === true) {
    return forbidden('mode', '--mlock keeps the mapping of the file');
  }
  return asked === undefined ? { kind: 'automatic' } : { kind: 'asked', by: asked };
}
