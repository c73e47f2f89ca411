// `make docs`: writes the generated parts of docs/cli.md anew, in the layout that prettier checks.
import { readFileSync, writeFileSync } from 'node:fs';
import { format, resolveConfig } from 'prettier';
import { withGeneratedParts } from './cli-reference.js';

const path = 'docs/cli.md';
const options = { ...(await resolveConfig(path)), parser: 'markdown' };
writeFileSync(path, await format(withGeneratedParts(readFileSync(path, 'utf8')), options));
