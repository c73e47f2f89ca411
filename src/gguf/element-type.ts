/** How the values of a tensor are stored. Blocks lie back to back along a row. */
export interface ElementType {
  readonly name: string;
  /** Values per block; a row holds a whole number of blocks. */
  readonly blockValues: number;
  readonly blockBytes: number;
}

function plain(name: string, bytes: number): ElementType {
  return { name, blockValues: 1, blockBytes: bytes };
}

function blocks(name: string, blockValues: number, blockBytes: number): ElementType {
  return { name, blockValues, blockBytes };
}

/**
 * Every type the file format defines, by its number in the file, including those that no backend computes with:
 * their sizes are needed to check a file and to list what is in it.
 */
const elementTypes: ReadonlyMap<number, ElementType> = new Map([
  [0, plain('F32', 4)],
  [1, plain('F16', 2)],
  [2, blocks('Q4_0', 32, 18)],
  [3, blocks('Q4_1', 32, 20)],
  [6, blocks('Q5_0', 32, 22)],
  [7, blocks('Q5_1', 32, 24)],
  [8, blocks('Q8_0', 32, 34)],
  [9, blocks('Q8_1', 32, 36)],
  [10, blocks('Q2_K', 256, 84)],
  [11, blocks('Q3_K', 256, 110)],
  [12, blocks('Q4_K', 256, 144)],
  [13, blocks('Q5_K', 256, 176)],
  [14, blocks('Q6_K', 256, 210)],
  [15, blocks('Q8_K', 256, 292)],
  [16, blocks('IQ2_XXS', 256, 66)],
  [17, blocks('IQ2_XS', 256, 74)],
  [18, blocks('IQ3_XXS', 256, 98)],
  [19, blocks('IQ1_S', 256, 50)],
  [20, blocks('IQ4_NL', 32, 18)],
  [21, blocks('IQ3_S', 256, 110)],
  [22, blocks('IQ2_S', 256, 82)],
  [23, blocks('IQ4_XS', 256, 136)],
  [24, plain('I8', 1)],
  [25, plain('I16', 2)],
  [26, plain('I32', 4)],
  [27, plain('I64', 8)],
  [28, plain('F64', 8)],
  [29, blocks('IQ1_M', 256, 56)],
  [30, plain('BF16', 2)],
  [34, blocks('TQ1_0', 256, 54)],
  [35, blocks('TQ2_0', 256, 66)],
  [39, blocks('MXFP4', 32, 17)],
  [40, blocks('NVFP4', 64, 36)],
]);

/** Layout of a type, or `undefined` for a number that the format does not define. */
export function elementType(type: number): ElementType | undefined {
  return elementTypes.get(type);
}

/** `Q8_0` for 8; `type 99` for a number that the format does not define. */
export function ggmlTypeName(type: number): string {
  return elementTypes.get(type)?.name ?? `type ${type}`;
}
