import {
  expertCacheSize,
  floatBetween,
  integerBetween,
  nonNegativeInteger,
  numberList,
  plainDecimal,
  positiveInteger,
  tierShares,
  word,
} from '../values.js';
import { UsageError } from '../errors.js';
import { checked, entry } from './entry.js';
import type { OptionEntry } from './entry.js';

const gpu = 'GPU Placement';
const streaming = 'Expert Streaming';
const tiers = 'KV Tiers And Weight Paging';
const drafts = 'Draft Models';

const noFullLayers = 'layers that stay whole, which are for GLM models on Metal';
const noTiers = 'KV tiers';
const noDrafts = 'draft models';

export const placementOptions: readonly OptionEntry[] = [
  entry({
    names: '--gpu-vram',
    values: 'LIST',
    section: gpu,
    description:
      'Memory that may be used of each GPU in GiB, such as 40 or 40,12; auto: of every GPU what is free less the larger of 2 GiB and 5 percent. More than is free is cut to what is free, with a warning. Several GPUs share the layers in order, and what fits on none is left to the processor. 0 uses the CPU.',
    apply: (settings, use) => {
      settings.gpuVram =
        use.value === 'auto' ? 'auto' : numberList('--gpu-vram', use.value, 16_384);
    },
  }),
  entry({
    names: '--gpu-devices',
    values: 'LIST',
    section: gpu,
    description:
      'Numbers of the GPUs to use, such as 0,1, in the order in which they take layers. Default: the first, or those of --gpu-vram.',
    apply: (settings, use) => {
      settings.gpuDevices = numberList('--gpu-devices', use.value, 1023);
    },
  }),
  entry({
    names: '--gpus',
    values: 'LIST',
    section: gpu,
    description: 'One process for each of these GPUs.',
    lacks: 'a launcher for several GPUs',
    apply: (_settings, use) => {
      const devices = numberList('--gpus', use.value, 1023);
      const twice = devices.find((device, index) => devices.indexOf(device) !== index);
      if (twice !== undefined) {
        throw new UsageError(`--gpus: device ${twice} is named twice`);
      }
    },
  }),
  entry({
    names: '--gpu-resident',
    section: gpu,
    description:
      'Copy the whole model into GPU memory; with a warning it runs otherwise when it does not fit. Default: when it fits with 2 GiB to spare.',
    apply: (settings) => {
      settings.gpuResident = true;
    },
  }),
  entry({
    names: '--no-gpu-resident',
    section: gpu,
    description:
      'Never copy the whole model into GPU memory: the experts stay in main memory and are read over the bus.',
    apply: (settings) => {
      settings.gpuResident = false;
    },
  }),
  entry({
    names: '--upload-buffer-mib',
    values: 'MIB',
    section: gpu,
    description:
      'Size of one of the pinned buffers that weights go through on their way into GPU memory, 16 to 4096 MiB. Default: 64; less where main memory is short.',
    apply: (settings, use) => {
      settings.uploadBufferMib = integerBetween(16, 4096)(use.value);
    },
  }),
  entry({
    names: '--cuda-tensor-parallel',
    section: gpu,
    description: 'Share each layer among an even number of GPUs.',
    lacks: 'tensor parallelism',
  }),
  entry({
    names: '--host-expert-cache',
    values: 'GIB',
    section: streaming,
    description:
      'Main memory, pinned, for experts that GPU memory has no place for, with --ssd-streaming on a discrete GPU: GiB, also 0.5; 0 is off. At most half of what is available is taken, with a warning; more than the machine has is refused. Default: that half.',
    apply: (settings, use) => {
      settings.hostExpertCacheGib = plainDecimal(0, 2 ** 20)(use.value);
    },
  }),
  entry({
    names: '--expert-policy',
    values: 'NAME',
    section: streaming,
    description:
      'Which expert leaves when another needs its place: lru, the one not used for longest, or lfru, which spares those that are used often. Default: lru, or lfru where there is no room for the experts of one token.',
    apply: (settings, use) => {
      settings.expertPolicy = word(['lru', 'lfru'])(use.value);
    },
  }),
  entry({
    names: '--ssd-streaming',
    section: streaming,
    description:
      'Keep only a part of the experts in memory and read the others from the file when they are needed.',
    apply: (settings) => {
      settings.ssdStreaming = true;
    },
  }),
  entry({
    names: '--ssd-streaming-cold',
    section: streaming,
    description:
      'Start with an empty expert cache, whatever --expert-profile has. It does so without a profile anyway.',
    apply: (settings) => {
      settings.ssdStreamingCold = true;
    },
  }),
  entry({
    names: '--ssd-streaming-cache-experts',
    values: 'COUNT|GIB',
    section: streaming,
    description:
      'Size of the expert cache: a number of experts, or a budget such as 64GB (GiB). More than fits now is cut to what fits, with a warning; more experts than there are, or more than the memory has in all, is refused. Default: what is free, with a reserve.',
    apply: (settings, use) => {
      settings.expertCache = expertCacheSize(use.value);
    },
  }),
  entry({
    names: '--ssd-streaming-full-layers',
    values: 'COUNT',
    section: streaming,
    description: 'GLM models on Metal: layers whose experts all stay in memory.',
    lacks: noFullLayers,
    apply: checked(nonNegativeInteger),
  }),
  entry({
    names: '--ssd-streaming-preload-experts',
    values: 'COUNT',
    section: streaming,
    description:
      'Read at most so many experts of --expert-profile before the first token, the first ones in the file. Default: as many as there are places for.',
    apply: (settings, use) => {
      settings.preloadExperts = positiveInteger(use.value);
    },
  }),
  entry({
    names: '--kv-warm-device',
    values: 'DEVICE',
    section: tiers,
    description: 'GPU that holds the warm KV tier; -1 is main memory.',
    lacks: noTiers,
    apply: (_settings, use) => {
      if (use.value !== '-1') {
        integerBetween(0, 1023)(use.value);
      }
    },
  }),
  entry({
    names: '--kv-tiered',
    values: 'SHARES',
    section: tiers,
    description: 'Percent of the context in the hot, warm and cold KV tier, such as 12.5,50,37.5.',
    lacks: noTiers,
    apply: checked(tierShares),
  }),
  entry({
    names: '--tier-ssd-path',
    values: 'FOLDER',
    section: tiers,
    description: 'Where the cold KV tier lies.',
    lacks: noTiers,
  }),
  entry({
    names: '--tier-eviction-policy',
    values: 'NUMBER',
    section: tiers,
    description: 'Which rows leave a tier first: 0 LRU, 1 LFU, 2 attention, 3 hybrid.',
    lacks: noTiers,
    apply: checked(integerBetween(0, 3)),
  }),
  entry({
    names: '--weight-paging',
    section: tiers,
    description:
      'GPU: let the weights outside the experts take turns in GPU memory, a layer at a time, for models that are larger than it.',
    apply: (settings) => {
      settings.weightPaging = true;
    },
  }),
  entry({
    names: '--weight-paging-slots',
    values: 'COUNT',
    section: tiers,
    description: 'Layers that are in GPU memory at once with --weight-paging. Default: 8.',
    apply: (settings, use) => {
      settings.weightPagingSlots = positiveInteger(use.value);
    },
  }),
  entry({
    names: '--mtp, --mtp-model',
    values: 'FILE',
    section: drafts,
    description: 'Draft model for speculative decoding.',
    lacks: noDrafts,
  }),
  entry({
    names: '--mtp-draft',
    values: 'TOKENS',
    section: drafts,
    description: 'Tokens to guess ahead.',
    lacks: noDrafts,
    apply: checked(positiveInteger),
  }),
  entry({
    names: '--mtp-margin',
    values: 'NUMBER',
    section: drafts,
    description: 'How much better a draft token must be.',
    lacks: noDrafts,
    apply: checked(floatBetween(0, 1000)),
  }),
  entry({
    names: '--mtp-exact-sampling',
    section: drafts,
    description: 'Accept draft tokens by the sampling rule.',
    lacks: noDrafts,
  }),
  entry({
    names: '--mtp-timing, --glm-mtp-timing',
    section: drafts,
    description: 'Report the time that drafts took.',
    lacks: noDrafts,
  }),
  entry({
    names: '--glm-mtp',
    section: drafts,
    description: 'Use the draft layers of a GLM model.',
    lacks: 'GLM models',
  }),
  entry({
    names: '--dspark',
    section: drafts,
    description: 'DSpark speculative decoding.',
    lacks: noDrafts,
  }),
  entry({
    names: '--dspark-strict',
    section: drafts,
    description: 'DSpark with strict verification.',
    lacks: noDrafts,
  }),
  entry({
    names: '--dspark-confidence',
    values: 'NUMBER',
    section: drafts,
    description: 'An older DSpark setting.',
    lacks: noDrafts,
    apply: checked(floatBetween(0, 1)),
  }),
];
