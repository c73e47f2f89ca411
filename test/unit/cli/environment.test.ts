import { describe, expect, it } from 'vitest';
import { readEnvironment, wantsDebug } from '../../../src/cli/environment.js';
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
      DS4_CUDA_COPY_MODEL_CHUNKED: '',
      DS4_CUDA_DIRECT_MODEL: '',
      DS4_CUDA_NO_PINNED_ARENA_FALLBACK: '0',
      DS4_CUDA_KEEP_MODEL_PAGES: '',
    });

    expect(tokenTiming).toBe(true);
    expect(gpu.copyAskedBy).toBe('DS4_CUDA_COPY_MODEL_CHUNKED');
    expect(gpu.copyForbiddenBy).toBe('DS4_CUDA_DIRECT_MODEL');
    expect(gpu.pinnedFallbackForbiddenBy).toBe('DS4_CUDA_NO_PINNED_ARENA_FALLBACK');
    expect(gpu.keepModelPages).toBe(true);
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

  it.each(['1', '', 'yes'])('takes DS4_CUDA_COPY_MODEL_CHUNKED=%s for a yes', (text) => {
    const { gpu, warnings } = readEnvironment({ DS4_CUDA_COPY_MODEL_CHUNKED: text });

    expect(gpu.copyAskedBy).toBe('DS4_CUDA_COPY_MODEL_CHUNKED');
    expect(warnings).toEqual([]);
  });

  it('takes DS4_CUDA_COPY_MODEL_CHUNKED=0 for a no, and says so', () => {
    const { gpu, warnings } = readEnvironment({ DS4_CUDA_COPY_MODEL_CHUNKED: '0' });

    expect(gpu.copyAskedBy).toBeUndefined();
    expect(warnings).toEqual([expect.stringContaining('DS4_CUDA_COPY_MODEL_CHUNKED=0') as string]);
  });

  it.each([
    [{ DS4_ROCM_STREAM_FREE_RESERVE_GIB: '4.5' }, 4.5],
    [{ DS4_ROCM_STREAM_FREE_RESERVE_GIB: '0' }, 0],
    [{ DS4_ROCM_STREAM_FREE_RESERVE_GB: '8' }, 8],
    [{ DS4_ROCM_STREAM_FREE_RESERVE_GIB: '8.0', DS4_ROCM_STREAM_FREE_RESERVE_GB: '8' }, 8],
    [{}, undefined],
  ])('reads the streaming reserve by both of its names: %j', (variables, gib) => {
    expect(readEnvironment(variables).gpu.streamFreeReserveGib).toBe(gib);
  });

  it('refuses the two names of the streaming reserve when they differ', () => {
    expect(() =>
      readEnvironment({
        DS4_ROCM_STREAM_FREE_RESERVE_GIB: '4.5',
        DS4_ROCM_STREAM_FREE_RESERVE_GB: '8',
      }),
    ).toThrow(/_GIB=4\.5 and .*_GB=8/);
  });

  it.each([
    ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', '16G'],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', '-1'],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GIB', ' 4'],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GB', '1'],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GB', '65'],
    ['DS4_ROCM_STREAM_FREE_RESERVE_GB', '4.5'],
    ['DS4_CUDA_Q8_F16_CACHE_MB', '64M'],
    ['DS4_ROCM_STREAM_MODEL_CACHE_GB', '0'],
    ['DS4_ROCM_STREAM_READ_WORKERS', '0'],
    ['DS4_ROCM_STREAM_READ_WORKERS', '+4'],
    ['DS4_SIM', 'ram=4'],
  ])('refuses to start with %s=%s, by name', (name, text) => {
    let thrown: unknown;
    try {
      readEnvironment({ [name]: text });
    } catch (error) {
      thrown = error;
    }

    expect(thrown).toMatchObject({ exitCode: 2 });
    expect((thrown as Error).message).toContain(name);
  });

  it.each(['49', '96', '80.5', 'all'])('takes 80 for DS4_SSD_AUTO_CACHE_PCT=%s', (text) => {
    const { gpu, warnings } = readEnvironment({ DS4_SSD_AUTO_CACHE_PCT: text });

    expect(gpu.autoCachePercent).toBe(80);
    expect(warnings).toEqual([expect.stringContaining(`DS4_SSD_AUTO_CACHE_PCT=${text}`) as string]);
  });

  it.each([
    ['5', 16],
    ['99999', 4096],
  ])('takes the nearest size for DS4_CUDA_MODEL_COPY_CHUNK_MB=%s, and says so', (text, mib) => {
    const { gpu, warnings } = readEnvironment({ DS4_CUDA_MODEL_COPY_CHUNK_MB: text });

    expect(gpu.copyChunkMib).toBe(mib);
    expect(warnings).toEqual([
      `DS4_CUDA_MODEL_COPY_CHUNK_MB=${text} is taken as ${mib}: it should be a whole number of MiB, 16 to 4096`,
    ]);
  });

  it.each([
    ['16', 16],
    ['4096', 4096],
  ])('takes DS4_CUDA_MODEL_COPY_CHUNK_MB=%s as it is', (text, mib) => {
    const { gpu, warnings } = readEnvironment({ DS4_CUDA_MODEL_COPY_CHUNK_MB: text });

    expect(gpu.copyChunkMib).toBe(mib);
    expect(warnings).toEqual([]);
  });

  it('reads the other settings of streaming', () => {
    expect(
      readEnvironment({
        DS4_SSD_AUTO_CACHE_PCT: '50',
        DS4_ROCM_STREAM_MODEL_CACHE_GB: '8',
        DS4_ROCM_STREAM_READ_WORKERS: '3',
        DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK: '0',
      }).gpu,
    ).toMatchObject({
      autoCachePercent: 50,
      streamModelCacheGib: 8,
      readWorkers: 3,
      hostMappedExpertFallback: false,
    });
    expect(readEnvironment({}).gpu).toMatchObject({
      autoCachePercent: undefined,
      streamModelCacheGib: undefined,
      readWorkers: undefined,
      hostMappedExpertFallback: true,
      bufferedReadsBy: undefined,
      pinnedFallbackForbiddenBy: undefined,
    });
  });

  it.each([
    ['DS4_ROCM_STREAM_NO_DIRECT', '1', true],
    ['DS4_CUDA_NO_DIRECT_IO', 'x', true],
    ['DS4_ROCM_STREAM_NO_DIRECT', '0', false],
    ['DS4_CUDA_NO_DIRECT_IO', '', false],
  ])('reads %s=%s', (name, text, isOn) => {
    expect(readEnvironment({ [name]: text }).gpu.bufferedReadsBy).toBe(isOn ? name : undefined);
  });

  it.each(['DS4_ROCM_STREAM_CACHE_STATS', 'DS4_ROCM_STREAM_LAYER_STATS'])(
    'takes the presence of %s for --stats',
    (name) => {
      expect(readEnvironment({ [name]: '' }).stats).toBe(true);
      expect(readEnvironment({}).stats).toBe(false);
    },
  );

  it('says that a rule for victims which it does not have has no effect', () => {
    const name = 'DS4_ROCM_STREAM_EVICT_PAST_LAYERS_FIRST';

    expect(readEnvironment({ [name]: '1' }).warnings.join()).toContain(`${name}=1 has no effect`);
    expect(readEnvironment({ [name]: '0' }).warnings).toEqual([]);
  });

  it('answers whether to show stacks whatever the others hold', () => {
    expect(wantsDebug({ DS4_DEBUG: '', DS4_SIM: 'nonsense' })).toBe(true);
    expect(wantsDebug({ DS4_SIM: 'nonsense' })).toBe(false);
  });

  it.each(['DS4_ROCM_REGISTERED_WEIGHTS', 'DS4_METAL_PREFILL_CHUNK'])(
    'warns about %s=16G by name and goes on',
    (name) => {
      const { warnings } = readEnvironment({ [name]: '16G' });

      expect(warnings).toHaveLength(1);
      expect(warnings[0]).toContain(`${name}=16G`);
    },
  );
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
