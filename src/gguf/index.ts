export { ggmlTypeName } from './element-type.js';
export { GgufError } from './errors.js';
export type { GgufFile, GgufTensor } from './gguf-file.js';
export { Metadata } from './metadata.js';
export type { MetadataValue, NumberList } from './metadata.js';
export { openGguf } from './open.js';
export { printable } from './printable.js';
