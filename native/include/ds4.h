/* ds4.h: the one boundary between the control plane (TypeScript) and the data plane.
 *
 * Rules that hold for every call:
 * - Structs start with their own `size`, set by the caller; fields are only ever appended.
 * - Every pointer carries its length in the comment beside it. Nothing is passed by value, nothing is
 *   allocated on one side and freed on the other, and there are no callbacks.
 * - A call returns DS4_OK or a status, and then leaves one sentence in the caller's `ds4_error`.
 * - The library never prints, never ends the process and never reads a file format or the environment.
 * - Handles are not thread-safe: one call at a time per model, its sessions included. The exception is
 *   the telemetry block, which any thread may read and whose cancel word any thread may set.
 */
#ifndef DS4_H
#define DS4_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DS4_API __attribute__((visibility("default")))
#else
#define DS4_API
#endif

#define DS4_ABI_VERSION 1u

typedef int32_t ds4_status;
enum {
    DS4_OK = 0,
    DS4_E_ARGUMENT = 1,    /* the caller broke the contract; nothing was changed */
    DS4_E_NO_MEMORY = 2,   /* host or device memory; the sentence has need and free */
    DS4_E_IO = 3,          /* a file could not be opened, mapped or read */
    DS4_E_UNSUPPORTED = 4, /* a tensor type or shape this backend has no code for */
    DS4_E_DEVICE = 5,      /* no such device, or it failed */
    DS4_E_CANCELLED = 6,   /* the cancel word was set; the session stands where it stood before the call */
    DS4_E_NON_FINITE = 7,  /* NaN or infinity in the logits; the session stands where it stood before the call */
    DS4_E_BUSY = 8,        /* a lock is held by another process */
    DS4_E_INTERNAL = 9
};

/* Where a failed call leaves its sentence. The caller owns `text`; the callee always ends it with
 * NUL and never writes past `capacity` bytes. */
typedef struct ds4_error {
    uint32_t size;
    uint32_t capacity; /* bytes of text */
    char    *text;     /* [capacity] */
} ds4_error;

DS4_API uint32_t ds4_abi_version(void);

/* Layout of one struct of this header, for bindings to check themselves against: sizeof, then the
 * offset of each field in declaration order. `name` is the typedef's name. Returns the number of
 * values (1 + fields), 0 for an unknown name; writes at most `capacity` of them. */
DS4_API uint32_t ds4_abi_layout(const char *name, uint32_t *values /* [capacity] */, uint32_t capacity);

/* ---- devices ------------------------------------------------------------------------------- */

enum { DS4_DEVICE_HOST = 0, DS4_DEVICE_DISCRETE = 1, DS4_DEVICE_INTEGRATED = 2, DS4_DEVICE_SIMULATED = 3 };

typedef struct ds4_device_info {
    uint32_t size;
    uint32_t kind;        /* DS4_DEVICE_* */
    uint32_t index;       /* what ds4_load_plan.device takes */
    uint32_t core_count;  /* hardware threads of a host, multiprocessors of a GPU */
    uint64_t total_bytes;
    uint64_t free_bytes;
    char     name[128];
    char     arch[64];    /* host: the widest instruction set this library will use */
} ds4_device_info;

/* Fills up to `capacity` entries (each with `size` set by the caller) and sets *count to the number there are. With room for
 * some and none there, DS4_E_DEVICE and the reason. */
DS4_API ds4_status ds4_devices(ds4_device_info *devices /* [capacity] */, uint32_t capacity, uint32_t *count,
                               ds4_error *error);

/* ---- the simulated device ------------------------------------------------------------------ */

/* Calls that a simulated device can make fail. */
enum {
    DS4_SIM_CALL_NONE = 0,
    DS4_SIM_CALL_ALLOCATE = 1,
    DS4_SIM_CALL_COPY = 2,      /* in, out, within */
    DS4_SIM_CALL_PIN = 3,       /* rings, pinned memory */
    DS4_SIM_CALL_MAP = 4,       /* registering host memory */
    DS4_SIM_CALL_SEND = 5,      /* through a ring */
    DS4_SIM_CALL_WAIT = 6,      /* for a ring, or for the device */
    DS4_SIM_CALL_READ = 7,      /* from a file: EIO */
    DS4_SIM_CALL_MEMORY_INFO = 8, /* then free memory is 0 */
    DS4_SIM_CALL_DIRECT = 9,      /* a read past the page cache: refused, as by a file system without it */
    DS4_SIM_CALL_SHORT = 10,      /* a read from a file: only half of the bytes come */
    DS4_SIM_CALL_LOST = 11,       /* counted are all but those of files; from then on every one of them fails, and every op */
    DS4_SIM_CALL_READ_AT = 12,    /* `fail_at` is an offset in a file: reads that cover it fail with EIO */
    DS4_SIM_CALL_WRONG_AT = 13,   /* the same, but they bring another byte there than the file has */
    DS4_SIM_CALL_COUNT = 14
};

typedef struct ds4_simulation {
    uint32_t size;
    uint32_t kind;              /* DS4_DEVICE_DISCRETE or DS4_DEVICE_INTEGRATED */
    uint64_t vram_bytes;
    uint64_t used_bytes;        /* of those, by somebody else */
    uint64_t link_bytes_per_second;   /* copies between host and device */
    uint64_t mapped_bytes_per_second; /* kernels that read host memory */
    uint64_t disk_bytes_per_second;
    uint32_t link_ns;           /* of each transfer, before its first byte */
    uint32_t disk_ns;
    uint32_t fail_call;         /* DS4_SIM_CALL_* */
    uint32_t fail_count;        /* so many uses fail in a row; 0: all from the first on */
    uint64_t fail_at;           /* the first use that fails, from 1; of DS4_SIM_CALL_..._AT an offset */
    uint32_t device_count;      /* cards of this kind, each with memory of its own; 0: 1; at most DS4_SIM_MOST_DEVICES */
    uint32_t read_wait_us;      /* so much longer does each read from a file take, by the clock and not in the ledger */
} ds4_simulation;
enum { DS4_SIM_MOST_DEVICES = 16 };

/* What the next devices that the library opens are. DS4_E_UNSUPPORTED in libraries of real devices. */
DS4_API ds4_status ds4_simulate(const ds4_simulation *machine, ds4_error *error);

/* ---- telemetry ----------------------------------------------------------------------------- */

/* A block of atomic 64-bit words, alive until closed, that the other calls write while they run. */
enum {
    DS4_WORD_CANCEL = 0,      /* set to non-zero by the caller: stop soon; the caller clears it */
    DS4_WORD_PHASE = 1,       /* DS4_PHASE_* */
    DS4_WORD_BYTES_DONE = 2,
    DS4_WORD_BYTES_TOTAL = 3,
    DS4_WORD_LAYER = 4,       /* layer being evaluated */
    DS4_WORD_LAYER_COUNT = 5,
    DS4_WORD_TOKENS_DONE = 6, /* tokens evaluated since the model was opened */
    DS4_WORD_EVALS = 7,       /* ds4_eval calls that succeeded */

    /* Counters since the model was opened. lookups = device hits + host hits + hits in flight + misses. A lookup is one
     * expert of one layer in one evaluation, however many of its tokens chose it. */
    DS4_WORD_EXPERT_LOOKUPS = 8,
    DS4_WORD_EXPERT_DEVICE_HITS = 9,    /* in device memory (on a host: in the cache) */
    DS4_WORD_EXPERT_HOST_HITS = 10,     /* in host memory, read by kernels over the bus */
    DS4_WORD_EXPERT_IN_FLIGHT_HITS = 11, /* asked for before and on its way */
    DS4_WORD_EXPERT_MISSES = 12,
    DS4_WORD_EXPERT_EVICTIONS = 13,
    DS4_WORD_EXPERT_PROMOTIONS = 14,    /* from host to device memory */
    DS4_WORD_EXPERT_DEMOTIONS = 15,     /* the ones that made room for them */
    DS4_WORD_EXPERT_TRANSIT = 16,       /* reads that kept no place; a batch that is cut may repeat some */
    DS4_WORD_BUS_READ_BYTES = 17,       /* of experts in host memory, once for each evaluation that used them */
    DS4_WORD_LAYER_LOADS = 18,          /* layers of which a batch needed nearly all experts */
    DS4_WORD_FILE_READS = 19,
    DS4_WORD_FILE_READ_BYTES = 20,
    DS4_WORD_FILE_READ_NS = 21,         /* summed over the threads that read */
    DS4_WORD_FILE_DIRECT_BYTES = 22,    /* of those, past the page cache */
    DS4_WORD_FILE_SHORT_READS = 23,
    DS4_WORD_FILE_RETRIES = 24,
    DS4_WORD_UPLOAD_BYTES = 25,         /* into device memory, of weights */
    DS4_WORD_UPLOAD_WAIT_NS = 26,       /* the evaluation stood still for them */
    DS4_WORD_PAGE_LOADS = 27,
    DS4_WORD_PAGE_HITS = 28,
    DS4_WORD_PAGE_PREFETCHED = 29,      /* of the hits, loaded ahead of time */
    DS4_WORD_PAGE_LATE = 30,            /* still on their way when they were needed */
    DS4_WORD_PAGE_BYTES = 31,

    /* Gauges. */
    DS4_WORD_EXPERT_SLOTS = 32,         /* places for experts in device memory */
    DS4_WORD_EXPERT_SLOTS_USED = 33,
    DS4_WORD_EXPERT_HOST_PLACES = 34,
    DS4_WORD_EXPERT_HOST_USED = 35,

    /* Counters again. */
    DS4_WORD_EXPERT_SEEDED = 36,        /* by ds4_seed_experts */
    DS4_WORD_EXPERT_FORESEEN = 37,      /* fetched before the step, because its tokens alone decide: hits in flight later */

    DS4_WORD_FILE_DIRECT_REFUSED = 38,  /* files that the system would not read past its page cache, though that was wanted */
    DS4_WORD_LOAD_STEP = 39,             /* DS4_STEP_*: what ds4_model_open is about; after a failure, what failed */

    /* The ledger of a simulated device. */
    DS4_WORD_SIM_TO_DEVICE_BYTES = 40,
    DS4_WORD_SIM_FROM_DEVICE_BYTES = 41,
    DS4_WORD_SIM_MAPPED_READ_BYTES = 42, /* kernels read host memory */
    DS4_WORD_SIM_DISK_BYTES = 43,
    DS4_WORD_SIM_ALLOCATIONS = 44,       /* alive */
    DS4_WORD_SIM_ALLOCATED_BYTES = 45,   /* alive */
    DS4_WORD_SIM_PEAK_BYTES = 46,
    DS4_WORD_SIM_PINNED_BYTES = 47,      /* alive: rings, pinned memory and mappings */
    DS4_WORD_SIM_CALLS = 48,             /* that could have been made to fail */
    DS4_WORD_SIM_NS = 49,                /* what the transfers would have taken, one after another */

    /* Counters again. */
    DS4_WORD_EXPERT_EVICTED_BYTES = 50,
    DS4_WORD_EXPERT_HOST_ADMISSIONS = 51,     /* experts that got a place in the host's memory */
    DS4_WORD_EXPERT_HOST_ADMITTED_BYTES = 52,
    DS4_WORD_LAYER_LOAD_BYTES = 53,           /* read for LAYER_LOADS */
    DS4_WORD_FILE_ERRORS = 54,                /* reads that brought nothing in the end */
    DS4_WORD_UPLOADS = 55,                    /* copies of which UPLOAD_BYTES are the bytes */
    DS4_WORD_PIN_WAIT_NS = 56,                /* for pinned buffers to be free; summed over threads */
    /* A gauge: least free memory of the device that was seen after loading and after opening a session. 0: nobody knows. */
    DS4_WORD_DEVICE_LEAST_FREE_BYTES = 57,

    DS4_WORD_COUNT = 64                  /* the rest is reserved and zero */
};
enum { DS4_PHASE_IDLE = 0, DS4_PHASE_LOAD = 1, DS4_PHASE_EVAL = 2 };
/* Steps of a load that can fail by themselves, so that another plan may do without one of them. */
enum {
    DS4_STEP_OTHER = 0,
    DS4_STEP_WEIGHTS = 1,   /* device memory for weights that stay, and their way into it */
    DS4_STEP_RING = 2,      /* the pinned buffers through which they go */
    DS4_STEP_MAP = 3,       /* pinning the file's mapping */
    DS4_STEP_PIN = 4,       /* pinned memory for weights that stay with the host */
    DS4_STEP_READERS = 5,   /* the pinned buffers of those who read missing weights */
    DS4_STEP_PAGES = 6,     /* the slots of paging */
    DS4_STEP_SLOTS = 7,     /* the slots and the transit area of experts, and what goes into them */
    DS4_STEP_HOST_TIER = 8  /* pinned host memory for experts, and their way from there into slots */
};

typedef struct ds4_telemetry ds4_telemetry;
DS4_API ds4_status ds4_telemetry_open(ds4_telemetry **telemetry, ds4_error *error);
DS4_API uint64_t  *ds4_telemetry_words(ds4_telemetry *telemetry); /* [DS4_WORD_COUNT], valid until closed */
DS4_API void       ds4_telemetry_close(ds4_telemetry *telemetry);

/* ---- model --------------------------------------------------------------------------------- */

/* What a tensor is. Numbers are stable; docs/architecture.md lists the GGUF names. */
enum {
    DS4_ROLE_TOKEN_EMBEDDING = 0,
    DS4_ROLE_OUTPUT = 1,
    DS4_ROLE_OUTPUT_NORM = 2,
    DS4_ROLE_OUTPUT_HC_FN = 3,
    DS4_ROLE_OUTPUT_HC_BASE = 4,
    DS4_ROLE_OUTPUT_HC_SCALE = 5,
    /* per layer */
    DS4_ROLE_HC_ATTN_FN = 16,
    DS4_ROLE_HC_ATTN_BASE = 17,
    DS4_ROLE_HC_ATTN_SCALE = 18,
    DS4_ROLE_HC_FFN_FN = 19,
    DS4_ROLE_HC_FFN_BASE = 20,
    DS4_ROLE_HC_FFN_SCALE = 21,
    DS4_ROLE_ATTN_NORM = 22,
    DS4_ROLE_ATTN_Q_A = 23,
    DS4_ROLE_ATTN_Q_A_NORM = 24,
    DS4_ROLE_ATTN_Q_B = 25,
    DS4_ROLE_ATTN_KV = 26,
    DS4_ROLE_ATTN_KV_A_NORM = 27,
    DS4_ROLE_ATTN_SINKS = 28,
    DS4_ROLE_ATTN_OUTPUT_A = 29,
    DS4_ROLE_ATTN_OUTPUT_B = 30,
    DS4_ROLE_COMPRESSOR_KV = 31,
    DS4_ROLE_COMPRESSOR_GATE = 32,
    DS4_ROLE_COMPRESSOR_APE = 33,
    DS4_ROLE_COMPRESSOR_NORM = 34,
    DS4_ROLE_INDEXER_Q_B = 35,
    DS4_ROLE_INDEXER_PROJ = 36,
    DS4_ROLE_INDEXER_COMPRESSOR_KV = 37,
    DS4_ROLE_INDEXER_COMPRESSOR_GATE = 38,
    DS4_ROLE_INDEXER_COMPRESSOR_APE = 39,
    DS4_ROLE_INDEXER_COMPRESSOR_NORM = 40,
    DS4_ROLE_FFN_NORM = 41,
    DS4_ROLE_ROUTER = 42,
    DS4_ROLE_ROUTER_BIAS = 43,
    DS4_ROLE_ROUTER_HASH = 44,
    DS4_ROLE_EXPERT_GATE = 45,
    DS4_ROLE_EXPERT_UP = 46,
    DS4_ROLE_EXPERT_DOWN = 47,
    DS4_ROLE_SHARED_GATE = 48,
    DS4_ROLE_SHARED_UP = 49,
    DS4_ROLE_SHARED_DOWN = 50
};

typedef struct ds4_tensor {
    uint32_t size;
    uint32_t role;      /* DS4_ROLE_* */
    int32_t  layer;     /* -1 for tensors outside the layers */
    uint32_t type;      /* ggml type id */
    uint32_t file;      /* index into ds4_model_args.paths */
    uint32_t dim_count; /* 1..4 */
    uint64_t dims[4];   /* fastest first, unused ones 1 */
    uint64_t offset;    /* bytes from the start of the file */
    uint64_t bytes;     /* exactly what type and dims need */
} ds4_tensor;

/* Hyper-parameters. Names follow the metadata keys. */
typedef struct ds4_shape {
    uint32_t     size;
    uint32_t     layer_count;
    uint32_t     embedding;            /* hidden size E */
    uint32_t     vocab;
    uint32_t     head_count;
    uint32_t     head_dim;             /* D: key length = value length */
    uint32_t     rope_dims;            /* R: the last R of a head are rotated */
    uint32_t     q_rank;
    uint32_t     output_groups;
    uint32_t     output_rank;          /* per group */
    uint32_t     window;               /* raw rows a query sees, its own included */
    uint32_t     indexer_heads;
    uint32_t     indexer_dim;
    uint32_t     indexer_top_k;
    uint32_t     expert_count;
    uint32_t     expert_used;
    uint32_t     expert_shared;
    uint32_t     expert_width;
    uint32_t     hash_layers;          /* the first hash_layers layers route by token id */
    uint32_t     hc_count;             /* residual streams */
    uint32_t     sinkhorn_iterations;
    uint32_t     normalise_weights;    /* 1: the chosen experts' weights sum to 1 before scaling */
    uint32_t     round_trips;          /* 1: KV rows pass FP8, indexer values FP4, as the model was trained */
    float        rms_epsilon;
    float        hc_epsilon;
    float        rope_base;            /* layers without compression */
    float        compress_rope_base;   /* layers with compression, with YaRN below */
    float        yarn_factor;
    float        yarn_beta_fast;
    float        yarn_beta_slow;
    float        expert_scale;
    uint32_t     reserved;
    uint64_t     yarn_original_context;
    const uint32_t *compress_ratio;    /* [layer_count] 0, 4 or another window length */
    const float    *clamp_routed;      /* [layer_count] SwiGLU limit of routed experts */
    const float    *clamp_shared;      /* [layer_count] */
} ds4_shape;

enum { DS4_ARITHMETIC_FAST = 0, DS4_ARITHMETIC_EXACT = 1 };
/* DIRECT: read, past the page cache where the file system can do that. MMAP with a GPU backend: what goes into device memory is
 * copied from the file's mapping, piece by piece, without any pinned buffer; READ: through a ring of pinned buffers. */
enum { DS4_SOURCE_MMAP = 0, DS4_SOURCE_READ = 1, DS4_SOURCE_DIRECT = 2 };
enum { DS4_POLICY_LRU = 0, DS4_POLICY_LFRU = 1 };

typedef struct ds4_load_plan {
    uint32_t size;
    uint32_t device;       /* index from ds4_devices */
    uint32_t thread_count; /* 0: as many as the process may use */
    uint32_t arithmetic;   /* EXACT: float32 throughout, slower; FAST: 8-bit activations against quantised weights */
    uint32_t source;       /* how weights reach memory */
    uint32_t warm;         /* 1: touch every weight page before the call returns */
    uint32_t layer_first;  /* the slice of layers this model evaluates, inclusive */
    uint32_t layer_last;
    uint32_t has_embedding; /* 1: tokens come in; 0: hidden states come in */
    uint32_t has_head;      /* 1: logits go out */
    uint32_t instruction_set; /* host backends: DS4_ISA_*; AUTO takes the widest the processor has */
    uint32_t placement;    /* DS4_PLACE_*: GPU backends */
    uint32_t upload_threads; /* readers that fill the pinned ring; 0: as many as help */
    uint32_t upload_slots;   /* buffers of the ring; 0: 4 */
    uint64_t upload_slot_bytes; /* 0: 64 MiB */
    uint32_t check_tensors;  /* 1: look through the file for values that are no numbers, and compare all copies with it */
    uint32_t lock_weights;   /* 1: weights in host memory may not be swapped out; ds4_model_info says whether the system let us */
    uint64_t expert_slot_bytes;    /* MAPPED, STREAM: device memory for copies of experts */
    uint64_t expert_transit_bytes; /* STREAM: device memory for experts that are used once and given up; at least one token's */
    uint64_t expert_host_bytes;    /* STREAM: pinned host memory for experts that device memory has no place for */
    uint64_t device_weight_bytes;  /* GPU backends: of the weights that are not routed experts at most so many go into device
                                      memory; the others stay in the file's mapping, pinned. 0: all */
    uint32_t expert_policy;  /* DS4_POLICY_*: which expert leaves its slot */
    uint32_t read_threads;   /* STREAM, paging: readers of missing weights; 0: as many as help */
    uint32_t page_slots;     /* 0: off. Else the weights of layers that are not routed experts take turns in so many slots */
    uint32_t pin_copies;     /* 1: what stays in host memory is read into pinned memory instead of pinning the file's mapping */
    uint32_t drop_read_pages; /* 1: the system need not keep what was uploaded in its page cache */
    uint32_t leave_slots;     /* MAPPED: 1: slots stay empty until ds4_seed_experts; 0: experts of every layer alike fill them */
} ds4_load_plan;
/* AUTO on a host backend leaves weights where `source` puts them; GPU backends want one of the others.
 * RESIDENT: everything is copied into device memory. MAPPED_EXPERTS: everything but the routed experts is; those stay in the
 * file's mapping, pinned, and kernels read them over the bus, except for those that have a slot. STREAM_EXPERTS, all backends:
 * routed experts are read from the file when they are needed, and kept as long as there is room. On failure nothing of the
 * device is kept. */
enum { DS4_PLACE_AUTO = 0, DS4_PLACE_RESIDENT = 1, DS4_PLACE_MAPPED_EXPERTS = 2, DS4_PLACE_STREAM_EXPERTS = 3 };
enum { DS4_ISA_AUTO = 0, DS4_ISA_PLAIN = 1, DS4_ISA_AVX2 = 2, DS4_ISA_AVX512 = 3 };

typedef struct ds4_model_args {
    uint32_t             size;
    uint32_t             path_count;
    uint32_t             tensor_count;
    uint32_t             reserved;
    const char *const   *paths;        /* [path_count] the GGUF files */
    const uint64_t      *path_bytes;   /* [path_count] sizes the tensor table was checked against */
    const ds4_tensor    *tensors;      /* [tensor_count] all tensors of the slice */
    const ds4_shape     *shape;
    const ds4_load_plan *plan;
    ds4_telemetry       *telemetry;    /* outlives the model */
} ds4_model_args;

typedef struct ds4_model ds4_model;
typedef struct ds4_session ds4_session;

/* Maps (or reads) the weights and builds the graph. Reports bytes through the telemetry block. */
DS4_API ds4_status ds4_model_open(const ds4_model_args *args, ds4_model **model, ds4_error *error);
DS4_API void       ds4_model_close(ds4_model *model); /* after all its sessions; NULL is allowed */

typedef struct ds4_model_info {
    uint32_t size;
    uint32_t thread_count;
    uint32_t instruction_set;  /* DS4_ISA_* in use */
    uint32_t reserved;
    uint64_t weight_bytes;     /* of the slice */
    uint64_t mapped_bytes;     /* of those, reached through a file mapping */
    uint64_t device_bytes;     /* of those, in the memory of a GPU */
    uint64_t locked_bytes;     /* host memory that may not be swapped out, as lock_weights asked */
} ds4_model_info;
DS4_API ds4_status ds4_model_describe(ds4_model *model, ds4_model_info *info, ds4_error *error);

/* A routed expert, and how much it was wanted. */
typedef struct ds4_expert {
    uint32_t size;
    uint32_t layer;   /* of the model, in the slice */
    uint32_t expert;
    uint32_t is_kept; /* out: 1: it has a slot, or a place in pinned host memory */
    uint64_t uses;    /* out: evaluations that wanted it since the model was opened */
} ds4_expert;

/* Reads experts into free slots, then into free places of host memory; the first ones matter most. Those for which none is free
 * are left out, and nobody is evicted. MAPPED: slots that are still free then are filled with experts of every layer alike.
 * *seeded is how many of them got a place: 0 where experts have no places of their own. Reports bytes through the telemetry
 * block. When a read fails, or the cancel word is set, what had arrived stays. */
DS4_API ds4_status ds4_seed_experts(ds4_model *model, const ds4_expert *experts /* [count] */, uint32_t count,
                                    uint32_t *seeded, ds4_error *error);

/* The experts that have places, in the order of their value to the policy, then the others that were wanted, the most wanted
 * first. Fills up to `capacity` entries (each with `size` set by the caller) and sets *count to the number there are. */
DS4_API ds4_status ds4_list_experts(ds4_model *model, ds4_expert *experts /* [capacity] */, uint32_t capacity,
                                    uint32_t *count, ds4_error *error);

/* ---- session: one timeline ------------------------------------------------------------------ */

typedef struct ds4_session_args {
    uint32_t size;
    uint32_t prefill_chunk;    /* most tokens of one ds4_eval; also how far back ds4_rewind reaches for free */
    uint64_t context;          /* most positions */
    uint32_t checkpoint_count; /* how many ds4_checkpoint states are kept; the oldest goes first */
    uint32_t reserved;
} ds4_session_args;

DS4_API ds4_status ds4_session_open(ds4_model *model, const ds4_session_args *args, ds4_session **session,
                                    ds4_error *error);
DS4_API void       ds4_session_close(ds4_session *session);

typedef struct ds4_session_sizes {
    uint32_t size;
    uint32_t reserved;
    uint64_t kv_bytes;        /* windows, compressed rows, indexer rows, compressor inputs, at full context */
    uint64_t workspace_bytes; /* activations of one chunk */
    uint64_t checkpoint_bytes; /* of one checkpoint */
    uint64_t scratch_bytes;    /* intermediates of the backend's kernels */
} ds4_session_sizes;
DS4_API ds4_status ds4_session_measure(ds4_session *session, ds4_session_sizes *sizes, ds4_error *error);

/* Values that a caller may ask to see while they are computed: what each layer did, for comparison with a
 * reference and for traces of expert choices. One record: ds4_tap_record, then `value_count` floats. */
enum {
    DS4_TAP_HIDDEN = 1 << 0,         /* streams after a layer [hc, E] */
    DS4_TAP_ATTN_OUT = 1 << 1,       /* attention block output before the hc post step [E] */
    DS4_TAP_FFN_OUT = 1 << 2,        /* [E] */
    DS4_TAP_EXPERTS = 1 << 3,        /* chosen ids, then their weights [2 * used] */
    DS4_TAP_COMPRESSED_ROW = 1 << 4, /* a compressed KV row as stored [D]; position = its row index */
    DS4_TAP_INDEXER_SCORES = 1 << 5, /* scores of all visible rows */
    DS4_TAP_INDEXER_ROWS = 1 << 6    /* selected row indices, ascending */
};
typedef struct ds4_tap_record {
    uint32_t kind;        /* one DS4_TAP_* bit */
    uint32_t layer;
    uint64_t position;
    uint32_t value_count; /* floats that follow */
    uint32_t reserved;
} ds4_tap_record;

typedef struct ds4_eval_args {
    uint32_t       size;
    uint32_t       token_count;      /* 1..prefill_chunk */
    const int32_t *tokens;           /* [token_count]; needed by slices without embedding too: hash layers route by id */
    uint64_t       position;         /* absolute index of tokens[0]; must be the session's position */
    const float   *hidden_in;        /* [token_count, hc, E]; only for slices without embedding */
    float         *hidden_out;       /* [token_count, hc, E] or NULL: streams after the last layer of the slice */
    float         *logits;           /* [logits_rows, vocab] or NULL: all logits of the last logits_rows tokens */
    uint32_t       logits_rows;      /* 0..token_count */
    uint32_t       candidate_count;  /* 0..vocab: best tokens of the last row; 0 with logits_rows 0 skips the head */
    float         *candidate_logit;  /* [candidate_count], descending; ties: lower id first */
    int32_t       *candidate_id;     /* [candidate_count] */
    uint32_t       tap_mask;         /* DS4_TAP_* bits; 0: none */
    uint32_t       reserved;
    void          *tap;              /* [tap_bytes], 8-byte aligned: records one after another, each padded to 8 bytes */
    uint64_t       tap_bytes;
} ds4_eval_args;

typedef struct ds4_eval_result {
    uint32_t size;
    uint32_t candidate_count; /* filled */
    uint64_t position;        /* of the session after the call */
    uint64_t tap_bytes;       /* needed by all records; more than args.tap_bytes means that the last ones are missing */
} ds4_eval_result;

/* Evaluates tokens at the session's position and moves it. Chunking never changes a value: any split of the
 * same tokens gives the same bits. On any failure the session stands where it stood. */
DS4_API ds4_status ds4_eval(ds4_session *session, const ds4_eval_args *args, ds4_eval_result *result,
                            ds4_error *error);

/* Remembers the present position, so that ds4_rewind can come back to it exactly. */
DS4_API ds4_status ds4_checkpoint(ds4_session *session, ds4_error *error);

/* Goes back to the latest state at or before `position` that can be had exactly: any of the last prefill_chunk
 * positions, or a checkpoint, or 0. *reached says which; the caller evaluates the rest again. */
DS4_API ds4_status ds4_rewind(ds4_session *session, uint64_t position, uint64_t *reached, ds4_error *error);

/* ---- the lock file --------------------------------------------------------------------------- */

typedef struct ds4_lock ds4_lock;
/* Opens `path` (mode 0600 if new), takes an exclusive advisory lock without waiting and writes the pid.
 * DS4_E_BUSY: held by another process; *holder_pid is what the file says, 0 if nothing. The file is never removed. */
DS4_API ds4_status ds4_lock_acquire(const char *path, ds4_lock **lock, uint64_t *holder_pid, ds4_error *error);
DS4_API void       ds4_lock_release(ds4_lock *lock);

#ifdef __cplusplus
}
#endif
#endif
