import { describe, expect, it } from 'vitest';
import {
  expertCacheSize,
  floatBetween,
  gibValue,
  layerRange,
  nonNegativeInteger,
  numberList,
  positiveInteger,
  seedValue,
  tierShares,
} from '../../../src/cli/values.js';

describe('positive integers', () => {
  it.each([
    ['1', 1],
    ['007', 7],
    [' \t+5', 5],
    ['2147483647', 2147483647],
  ])('reads %j', (text, value) => {
    expect(positiveInteger(text)).toBe(value);
  });

  it.each([
    '0',
    '-1',
    '1.0',
    '1e3',
    '8k',
    '0x10',
    '',
    '5 ',
    '2147483648',
    '4294967297',
    '+',
    '- 5',
  ])('refuses %j', (text) => {
    expect(() => positiveInteger(text)).toThrow();
  });

  it('reads 0 where it is allowed', () => {
    expect(nonNegativeInteger('0')).toBe(0);
    expect(() => nonNegativeInteger('-1')).toThrow();
  });
});

describe('seeds', () => {
  it('keeps all 64 bits', () => {
    expect(seedValue('18446744073709551615')).toBe(2n ** 64n - 1n);
  });

  it.each(['0', '-1', '18446744073709551616', 'x', ''])('refuses %j', (text) => {
    expect(() => seedValue(text)).toThrow();
  });
});

describe('floats', () => {
  it.each([
    ['0.5', 0.5],
    ['.5', 0.5],
    ['5.', 5],
    ['1e-3', 0.001],
    ['+2', 2],
    ['0x1p-2', 0.25],
    ['0x.8', 0.5],
    ['0XA', 10],
    [' 1', 1],
  ])('reads %j', (text, value) => {
    expect(floatBetween(0, 100)(text)).toBe(value);
  });

  it.each(['nan', 'inf', '-inf', '0,5', '', '.', '0x', 'e5', '1e', '1 ', '101', '-0.1', '1.5x'])(
    'refuses %j',
    (text) => {
      expect(() => floatBetween(0, 100)(text)).toThrow();
    },
  );
});

describe('GiB values', () => {
  it.each([
    ['64', 64],
    ['64GB', 64],
    ['64gb', 64],
    ['1Gb', 1],
  ])('reads %j', (text, value) => {
    expect(gibValue(text)).toBe(value);
  });

  it.each(['64G', '64GiB', '1.5GB', '64 GB', '0GB', '0', '', 'GB', '-1GB'])(
    'refuses %j',
    (text) => {
      expect(() => gibValue(text)).toThrow();
    },
  );
});

describe('the expert cache', () => {
  it('takes digits as experts and GB as a budget', () => {
    expect(expertCacheSize('4580')).toEqual({ kind: 'experts', count: 4580 });
    expect(expertCacheSize('30gb')).toEqual({ kind: 'gib', gib: 30 });
  });

  it.each(['0', '4294967296', '0GB', '1.5GB', '30GiB', ''])(
    'refuses %j and says the forms',
    (text) => {
      expect(() => expertCacheSize(text)).toThrow(/^--ssd-streaming-cache-experts must be/);
    },
  );
});

describe('number lists', () => {
  const parse = (text: string): number[] => numberList('--gpu-vram', text, 16384);

  it.each([
    ['40', [40]],
    ['40,12', [40, 12]],
    [' 40\t, 12 ', [40, 12]],
    ['0', [0]],
  ])('reads %j', (text, list) => {
    expect(parse(text)).toEqual(list);
  });

  it.each([
    ['abc', "--gpu-vram: not a number: 'abc'"],
    ['24GB', "--gpu-vram: junk after value: 'GB'"],
    ['1.5', "--gpu-vram: junk after value: '.5'"],
    ['16385,1', "--gpu-vram: out-of-range value: '16385,1' (allowed 0..16384)"],
    ['-1', "--gpu-vram: out-of-range value: '-1' (allowed 0..16384)"],
    ['', "--gpu-vram: empty entry near ''"],
    ['1,', "--gpu-vram: empty entry near ''"],
    [',1', "--gpu-vram: empty entry near ',1'"],
    ['1,,2', "--gpu-vram: empty entry near ',2'"],
    [Array.from({ length: 17 }, () => '1').join(','), '--gpu-vram: too many entries (max 16)'],
  ])('refuses %j with its message', (text, message) => {
    expect(() => parse(text)).toThrow(message);
  });
});

describe('layer ranges', () => {
  it('reads a range and one that ends with the output head', () => {
    expect(layerRange('0:21')).toEqual({ text: '0:21', first: 0, last: 21 });
    expect(layerRange('22:output')).toEqual({ text: '22:output', first: 22, last: undefined });
  });

  it.each(['5', '5:', ':5', '9:3', '1:2:3', 'a:b', '0:OUTPUT', ' 1:2', '-1:2', '', ':', '0:2 '])(
    'refuses %j and quotes it',
    (text) => {
      expect(() => layerRange(text)).toThrow(`invalid --layers ${text}: `);
    },
  );
});

describe('tier shares', () => {
  it('reads three percentages', () => {
    expect(tierShares('12.5,50,37.5')).toEqual([12.5, 50, 37.5]);
  });

  it.each(['50,50', '25,25,25,25', '50,50,50', '-25,75,50', 'a,b,c', ''])('refuses %j', (text) => {
    expect(() => tierShares(text)).toThrow();
  });
});
