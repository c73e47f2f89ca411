import { describe, expect, it } from 'vitest';
import { readEnvironment } from '../../../src/cli/environment.js';
import { colored, createStyle } from '../../../src/cli/style.js';

describe('the environment', () => {
  it('gives the documented defaults when it is empty', () => {
    expect(readEnvironment({})).toMatchObject({
      lockFile: '/tmp/ds4.lock',
      noColor: false,
      forceColor: false,
      prefillChunk: undefined,
      tokenTiming: false,
      traceTop: false,
      warnings: [],
    });
  });

  it('takes an empty lock file name as none', () => {
    expect(readEnvironment({ DS4_LOCK_FILE: '' }).lockFile).toBe('/tmp/ds4.lock');
    expect(readEnvironment({ DS4_LOCK_FILE: '/x' }).lockFile).toBe('/x');
  });

  it.each([
    ['512', 512],
    ['0', 'whole'],
    ['-1', 'whole'],
    ['', undefined],
  ])('reads DS4_METAL_PREFILL_CHUNK=%s', (text, chunk) => {
    const { prefillChunk, warnings } = readEnvironment({ DS4_METAL_PREFILL_CHUNK: text });

    expect(prefillChunk).toBe(chunk);
    expect(warnings).toEqual([]);
  });

  it('switches on presence, whatever the value', () => {
    const { tokenTiming, gpu } = readEnvironment({
      DS4_TOKEN_TIMING: '0',
      DS4_CUDA_COPY_MODEL_CHUNKED: '0',
      DS4_CUDA_DIRECT_MODEL: '',
    });

    expect(tokenTiming).toBe(true);
    expect(gpu.copyAskedBy).toBe('DS4_CUDA_COPY_MODEL_CHUNKED');
    expect(gpu.copyForbiddenBy).toBe('DS4_CUDA_DIRECT_MODEL');
  });

  it('takes an older name for the copy of the model, unless it is empty', () => {
    expect(readEnvironment({ DS4_CUDA_COPY_MODEL: '1' }).gpu.copyAskedBy).toBe(
      'DS4_CUDA_COPY_MODEL',
    );
    expect(readEnvironment({ DS4_CUDA_COPY_MODEL: '' }).gpu.copyAskedBy).toBeUndefined();
  });

  it('reads where the native libraries are', () => {
    expect(readEnvironment({ DS4_LIBRARY_DIR: '/x' }).libraryDirectory).toBe('/x');
    expect(readEnvironment({ DS4_LIBRARY_DIR: '' }).libraryDirectory).toBeUndefined();
  });

  it('reads fractions of the streaming reserve and prefers GIB to GB', () => {
    expect(
      readEnvironment({
        DS4_ROCM_STREAM_FREE_RESERVE_GIB: '4.5',
        DS4_ROCM_STREAM_FREE_RESERVE_GB: '8',
      }).gpu.streamFreeReserveGib,
    ).toBe(4.5);
    expect(readEnvironment({ DS4_ROCM_STREAM_FREE_RESERVE_GB: '8' }).gpu.streamFreeReserveGib).toBe(
      8,
    );
  });

  it.each([
    'DS4_ROCM_STREAM_FREE_RESERVE_GIB',
    'DS4_ROCM_STREAM_FREE_RESERVE_GB',
    'DS4_ROCM_REGISTERED_WEIGHTS',
    'DS4_CUDA_Q8_F16_CACHE_MB',
    'DS4_SSD_AUTO_CACHE_PCT',
    'DS4_METAL_PREFILL_CHUNK',
  ])('warns about %s=16G by name and goes on', (name) => {
    const { warnings } = readEnvironment({ [name]: '16G' });

    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain(`${name}=16G`);
  });
});

describe('colour', () => {
  const plain = { noColor: false, forceColor: false, terminal: 'xterm' };

  it.each([
    ['auto', plain, true, true],
    ['auto', plain, false, false],
    ['auto', { ...plain, noColor: true }, true, false],
    ['auto', { ...plain, forceColor: true }, false, true],
    ['auto', { ...plain, noColor: true, forceColor: true }, true, false],
    ['auto', { ...plain, terminal: 'dumb' }, true, false],
    ['always', { ...plain, noColor: true }, false, true],
    ['never', { ...plain, forceColor: true }, true, false],
  ] as const)(
    '%s with %j on a terminal: %s gives %s',
    (choice, environment, isTerminal, result) => {
      expect(colored(choice, environment, isTerminal)).toBe(result);
    },
  );

  it('adds no byte when it is off', () => {
    const style = createStyle({ stdout: false, stderr: false });

    expect(style.error('x') + style.warning('x') + style.progress('x') + style.memory('x')).toBe(
      'xxxx',
    );
    expect(style.thinkingOn + style.thinkingOff).toBe('');
  });

  it('uses the documented codes when it is on', () => {
    const style = createStyle({ stdout: true, stderr: true });

    expect(style.error('x')).toBe('\u001b[31mx\u001b[39m');
    expect(style.progress('x')).toBe('\u001b[36mx\u001b[39m');
    expect(style.warning('x')).toBe('\u001b[38;5;208mx\u001b[39m');
    expect(style.thinkingOn).toBe('\u001b[90m');
    expect(style.thinkingOff).toBe('\u001b[0m');
  });
});
