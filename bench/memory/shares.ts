import { Refusal } from './refusal.js';

/** How much of the experts is to be in device memory. */
export type Wanted =
  | { readonly kind: 'share'; readonly share: number; readonly text: string }
  /** What fits when so much of the device's memory may be used for everything. */
  | { readonly kind: 'budget'; readonly gib: number; readonly text: string };

/**
 * Reads `100%,75%,38`: a share of the experts, or GiB of device memory for everything.
 *
 * @throws Refusal that says what is allowed.
 */
export function parseShares(list: string): Wanted[] {
  return list.split(',').map((entry) => {
    const text = entry.trim();
    const number = Number(/^([0-9]+(?:\.[0-9]+)?)%?$/.exec(text)?.[1]);
    if (text.endsWith('%') && number <= 100) {
      return { kind: 'share', share: number / 100, text: `${number} %` };
    }
    if (/^[0-9]+$/.test(text) && number > 0) {
      return { kind: 'budget', gib: number, text: `${number} GiB` };
    }
    throw new Refusal(
      `--gib: '${text}' is neither a share of the experts such as 75% nor whole GiB of device memory such as 38`,
    );
  });
}

/** A budget with the experts that have a slot under it. */
export interface Budget {
  readonly gib: number;
  readonly slots: number;
}

/** Of some budgets, the one whose number of slots is nearest to what is wanted; undefined when none works. */
export function nearestBudget(
  budgets: Iterable<number>,
  slotsOf: (gib: number) => number | undefined,
  wantedSlots: number,
): Budget | undefined {
  let best: Budget | undefined;
  for (const gib of budgets) {
    const slots = slotsOf(gib);
    if (
      slots !== undefined &&
      (best === undefined || Math.abs(slots - wantedSlots) < Math.abs(best.slots - wantedSlots))
    ) {
      best = { gib, slots };
    }
  }
  return best;
}
