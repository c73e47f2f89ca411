export { LineEditor } from './editor.js';
export type { EditorInput, EditorOutput, Line } from './editor.js';
export { History } from './history.js';
