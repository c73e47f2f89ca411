import type { Environment } from './environment.js';
import type { Settings } from './settings.js';
import type { Stop } from './stop.js';
import type { Terminal } from './terminal.js';

/** What every command works with. */
export interface Run {
  readonly settings: Readonly<Settings>;
  readonly environment: Environment;
  readonly terminal: Terminal;
  readonly stop: Stop;
}
