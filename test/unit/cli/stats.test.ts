import { describe, expect, it } from 'vitest';
import { cacheText, hitRateText, sayStats, statsJson, statsLines } from '../../../src/cli/stats.js';
import { PrefillProgress } from '../../../src/cli/progress.js';
import { defaultSettings } from '../../../src/cli/settings.js';
import { readEnvironment } from '../../../src/cli/environment.js';
import { createStyle } from '../../../src/cli/style.js';
import { Terminal } from '../../../src/cli/terminal.js';
import type { TelemetrySnapshot } from '../../../src/engine/index.js';

type Changes = {
  readonly [Group in 'experts' | 'files' | 'pages' | 'device' | 'simulation']?: Partial<
    TelemetrySnapshot[Group]
  >;
};

function snapshot(changes: Changes = {}): TelemetrySnapshot {
  return {
    phase: 'idle',
    bytesDone: 0,
    bytesTotal: 0,
    layer: 0,
    layerCount: 0,
    tokensDone: 10,
    evals: 4,
    experts: {
      lookups: 0,
      deviceHits: 0,
      hostHits: 0,
      inFlightHits: 0,
      misses: 0,
      evictions: 0,
      promotions: 0,
      demotions: 0,
      transit: 0,
      busReadBytes: 0,
      layerLoads: 0,
      slots: 0,
      slotsUsed: 0,
      hostPlaces: 0,
      hostPlacesUsed: 0,
      seeded: 0,
      foreseen: 0,
      evictedBytes: 0,
      hostAdmissions: 0,
      hostAdmittedBytes: 0,
      layerLoadBytes: 0,
      ...changes.experts,
    },
    files: {
      reads: 0,
      readBytes: 0,
      readNs: 0,
      directBytes: 0,
      shortReads: 0,
      retries: 0,
      uploadBytes: 0,
      uploadWaitNs: 0,
      directRefused: 0,
      errors: 0,
      uploads: 0,
      pinWaitNs: 0,
      ...changes.files,
    },
    pages: { loads: 0, hits: 0, prefetched: 0, late: 0, bytes: 0, ...changes.pages },
    device: { leastFreeBytes: 0, ...changes.device },
    simulation: {
      toDeviceBytes: 0,
      fromDeviceBytes: 0,
      mappedReadBytes: 0,
      diskBytes: 0,
      allocations: 0,
      allocatedBytes: 0,
      peakBytes: 0,
      pinnedBytes: 0,
      calls: 0,
      ns: 0,
      ...changes.simulation,
    },
  };
}

const streamed = snapshot({
  experts: {
    lookups: 200,
    deviceHits: 120,
    hostHits: 20,
    inFlightHits: 10,
    misses: 50,
    evictions: 7,
    slots: 64,
    slotsUsed: 40,
  },
  files: { reads: 50, readBytes: 20 * 2 ** 20, readNs: 1e9 },
});

/** The table with its columns apart. */
function rows(changes: Changes, reserveBytes?: number): string[] {
  return statsLines(snapshot(changes), reserveBytes).map((line) =>
    line.trim().replace(/ {2,}/g, ' | '),
  );
}

describe('the table of counters', () => {
  it('has only what is not zero, with shares, bytes a token and rates', () => {
    const lines = statsLines(streamed).map((line) => line.replace(/ {2,}/g, ' | '));

    expect(lines).toEqual([
      'tokens evaluated | 10',
      'evaluations | 4',
      'experts looked up | 200',
      ' | in a slot | 120 | 60.0 %',
      ' | in main memory | 20 | 10.0 %',
      ' | on the way | 10 | 5.0 %',
      ' | missed | 50 | 25.0 %',
      'evictions | 7',
      'slots used | 40 | of 64',
      'read from the file | 20.00 MiB | 2.00 MiB a token, 20.00 MiB/s a reader',
      ' | reads | 50',
    ]);
  });

  it('says what of the file went past the page cache, what through it, and which files had to', () => {
    const files = { reads: 3, readBytes: 5 * 2 ** 20, directBytes: 2 ** 20, directRefused: 2 };

    expect(rows({ files })).toEqual(
      expect.arrayContaining([
        'past the page cache | 1.00 MiB',
        'through the page cache | 4.00 MiB',
        'files that had to go through it | 2',
      ]),
    );
    expect(rows({ files: { ...files, directBytes: 0 } }).join()).not.toContain('through the page');
    expect(rows({ files: { ...files, directBytes: 5 * 2 ** 20 } }).join()).not.toContain(
      'through the page',
    );
  });

  it('says of what left a place, got one or was read as a whole how many bytes that was', () => {
    const experts = {
      evictions: 3,
      evictedBytes: 3 * 2 ** 20,
      hostAdmissions: 2,
      hostAdmittedBytes: 2 * 2 ** 20,
      layerLoads: 1,
      layerLoadBytes: 5 * 2 ** 20,
    };

    expect(rows({ experts }).slice(2)).toEqual([
      'layers wanted as a whole | 1 | 5.00 MiB',
      'evictions | 3 | 3.00 MiB',
      'places given in main memory | 2 | 2.00 MiB',
    ]);
  });

  it('says which reads failed, how many copies there were and what was waited for, if that shows', () => {
    const files = { errors: 1, uploads: 9, uploadWaitNs: 2e9, pinWaitNs: 25e8 };

    expect(rows({ files }).slice(2)).toEqual([
      'reads that failed | 1',
      'copies | 9',
      'waited for uploads | 2.000 s',
      'waited for pinned buffers | 2.500 s | all threads together',
    ]);
    expect(rows({ files: { pinWaitNs: 400_000 } }).slice(2)).toEqual([]);
  });

  it('says how much GPU memory was free at least, and when that is less than the plan keeps free', () => {
    const device = { leastFreeBytes: 3 * 2 ** 30 };
    const free = 'least free GPU memory | 3.00 GiB';

    expect(rows({ device }).slice(2)).toEqual([free]);
    expect(rows({ device }, 3 * 2 ** 30).slice(2)).toEqual([free]);
    expect(rows({ device }, 4 * 2 ** 30).slice(2)).toEqual([
      `${free} | below the 4.00 GiB that the plan keeps free`,
    ]);
    expect(rows({}, 4 * 2 ** 30).slice(2)).toEqual([]);
  });

  it('says how far it went when there was nothing else to count', () => {
    expect(statsLines(snapshot())).toHaveLength(2);
  });

  it('divides by no token when none was evaluated', () => {
    const early = { ...snapshot({ files: { uploadBytes: 1024 } }), tokensDone: 0 };

    expect(statsLines(early).at(-1)).toMatch(/^uploaded +1\.00 KiB$/);
  });
});

describe('the counters as JSON', () => {
  it('are one line with the groups that have something', () => {
    const text = statsJson(streamed);

    expect(text).not.toContain('\n');
    expect(JSON.parse(text)).toEqual({
      source: 'ds4',
      version: 1,
      tokens: 10,
      evaluations: 4,
      experts: { ...streamed.experts, hitRate: 0.75 },
      files: streamed.files,
    });
  });
});

describe('the free memory of the device as JSON', () => {
  const device = { leastFreeBytes: 5 };

  it('has what the plan keeps free beside it, if there is such a plan', () => {
    expect(JSON.parse(statsJson(snapshot({ device })))).toMatchObject({ device });
    expect(JSON.parse(statsJson(snapshot({ device })))).not.toHaveProperty('device.reserveBytes');
    expect(JSON.parse(statsJson(snapshot({ device }), 7))).toMatchObject({
      device: { leastFreeBytes: 5, reserveBytes: 7 },
    });
    expect(JSON.parse(statsJson(snapshot(), 7))).not.toHaveProperty('device');
  });
});

describe('the hit rate', () => {
  it('is that since an earlier moment', () => {
    const later = { ...streamed.experts, lookups: 210, deviceHits: 129, misses: 51 };

    expect(hitRateText(streamed.experts)).toBe('75.0 %');
    expect(hitRateText(later, streamed.experts)).toBe('90.0 %');
    expect(cacheText(later, streamed.experts)).toBe(
      '90.0 % of 10 lookups hit, 40 of 64 slots used',
    );
  });

  it('is none where nothing was looked up', () => {
    expect(hitRateText(streamed.experts, streamed.experts)).toBeUndefined();
    expect(cacheText(snapshot().experts)).toBeUndefined();
  });
});

/** A terminal that remembers what was written to it. */
function recorded(quiet: boolean): { terminal: Terminal; written: () => string } {
  let written = '';
  const stream = {
    write: (text: string | Uint8Array) => {
      written += String(text);
      return true;
    },
    on: () => undefined,
  };
  const terminal = new Terminal({
    stdout: stream,
    stderr: stream,
    style: createStyle({ stdout: false, stderr: false }),
    quiet,
    stdoutIsTerminal: false,
    stderrIsTerminal: false,
  });
  return { terminal, written: () => written };
}

describe('the progress of a prompt', () => {
  function drawn(later: TelemetrySnapshot, draws: boolean): string {
    const { terminal, written } = recorded(false);
    let now = streamed;
    const telemetry = (): TelemetrySnapshot => now;
    const progress = new PrefillProgress({ terminal, draws, prefillChunk: 4, telemetry });
    now = later;
    progress.update(4, 8);
    progress.end();
    return written();
  }
  const hit = { ...streamed, experts: { ...streamed.experts, lookups: 204, deviceHits: 123 } };

  it('has the hit rate since the prompt began, where it is drawn', () => {
    expect(drawn(hit, true)).toContain('4/8 (50.0%), 75.0 % of the experts in memory');
  });

  it('has none where nothing is looked up, and none off a terminal', () => {
    expect(drawn(streamed, true)).toContain('4/8 (50.0%)\u001b[K');
    expect(drawn(hit, false)).toBe('processing 8 input tokens: 4/8 (50.0%)\n');
  });
});

describe('the end of a run', () => {
  function said(
    stats: 'text' | 'json' | undefined,
    variables: Record<string, string>,
    counted = { engine: { telemetry: () => streamed }, plan: { weights: {} } },
  ): string {
    const { terminal, written } = recorded(true);
    const settings = { ...defaultSettings(), stats };
    sayStats({ settings, environment: readEnvironment(variables), terminal }, counted);
    return written();
  }
  const wanted = { DS4_ROCM_STREAM_CACHE_STATS: '' };

  it('says nothing unless it is asked', () => {
    expect(said(undefined, {})).toBe('');
  });

  it('prints the table also with --quiet, each line with the name in front', () => {
    expect(said('text', {}).trimEnd().split('\n')).toEqual(
      statsLines(streamed).map((line) => `ds4: ${line}`),
    );
    expect(said(undefined, wanted)).toBe(said('text', {}));
  });

  it('knows from the plan what is to be kept free', () => {
    const telemetry = (): TelemetrySnapshot => snapshot({ device: { leastFreeBytes: 1024 } });
    const plan = { weights: { experts: { reserveBytes: 2048 } } };

    expect(said('text', {}, { engine: { telemetry }, plan })).toContain('below the 2.00 KiB');
    expect(said('json', {}, { engine: { telemetry }, plan })).toContain('"reserveBytes":2048');
  });

  it('prints JSON alone on its line, and the option wins over the variable', () => {
    expect(said('json', wanted)).toBe(`${statsJson(streamed)}\n`);
  });
});
