/** Where the bytes of a GGUF file come from. */
export interface ByteSource {
  readonly path: string;
  /** How messages call it: `model 'x.gguf'`. */
  readonly named: string;
  readonly bytes: number;
  /**
   * Fills `into` from `position` on.
   *
   * @throws GgufError when the bytes are not there or cannot be read.
   */
  read(into: Uint8Array, position: number): void;
}
