import { describe, expect, it } from 'vitest';
import { helpText } from '../../../src/cli/help.js';
import { optionTable } from '../../../src/cli/options/index.js';

describe('help', () => {
  it('has the usage line, the sections, the topics and no escape bytes on the default page', () => {
    const text = helpText(undefined);

    expect(text).toContain('Usage: ds4 [(-p PROMPT | --prompt-file FILE)] [options]');
    expect(text).toContain('\nModel And Runtime:\n');
    expect(text).toContain('\nPrompt And Sampling:\n');
    expect(text).toContain('\nDiagnostics And Data Collection:\n');
    expect(text).toContain('ds4 --help distributed');
    expect(text).not.toContain('\u001b');
  });

  it('shows every option under the topic all', () => {
    const text = helpText('all');

    for (const { names } of optionTable) {
      expect(text).toContain(`  ${names.join(', ')}`);
    }
  });

  it.each([
    ['distributed', ['--role', '--layers', '--listen', '--coordinator'], '--temp'],
    ['sampling', ['--temp', '--seed', '--nothink'], '--role'],
    ['commands', ['/ctx TOKENS', '/reset'], '--temp'],
    ['diagnostics', ['--inspect', '--perplexity-file'], '--temp'],
    ['runtime', ['--backend', '--gpu-vram', '--ssd-streaming'], '--temp'],
    ['steering', ['--dir-steering-file'], '--temp'],
  ] as const)('the topic %s has its own options and no others', (topic, present, absent) => {
    const text = helpText(topic);

    for (const option of present) {
      expect(text).toContain(`  ${option}`);
    }
    expect(text).not.toMatch(new RegExp(`^ +${absent} `, 'm'));
  });

  it('marks the options that this build does not have', () => {
    expect(helpText('runtime')).toMatch(/--vision FILE[^(]*\(not in this build\)/);
  });

  it('pads terms to 30 columns and puts longer ones on a line of their own', () => {
    const text = helpText('all');

    expect(text).toContain(`\n  ${'-c, --ctx TOKENS'.padEnd(30)} Context`);
    expect(text).toContain('\n  --ssd-streaming-cache-experts COUNT|GIB\n      Size');
  });

  it('stays within 100 columns', () => {
    expect(
      helpText('all')
        .split('\n')
        .filter((line) => line.length > 100),
    ).toEqual([]);
  });
});
