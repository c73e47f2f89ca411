/** An option has a value that cannot be used, or the machine cannot do what is measured: a sentence, no stack. */
export class Refusal extends Error {}
