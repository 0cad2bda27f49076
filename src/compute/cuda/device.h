/* cuda/device.h - the device's state: for device.c, memory.c, gpu.c, plans.c and exchange.c, which
 * share the failure of NVIDIA's calls. */
#ifndef LKS_COMPUTE_CUDA_DEVICE_H
#define LKS_COMPUTE_CUDA_DEVICE_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "compute/cuda/cuda.h"
#include "compute/cuda/module.h"

/* Marks are events. An event is used again for a later mark of its queue, which stands for the
 * earlier one, too. */
enum { LKS__CUDA_EVENTS = 64 };

/* Copies between the device and host memory that CUDA doesn't know go through pinned memory, piece
 * by piece. The host's part of a piece is a call that the queue makes when its turn comes. */
enum { LKS__CUDA_PIECE = 4 << 20, LKS__CUDA_CALLS = 256 };

typedef struct lks__cuda_call {
    void *dst;
    const void *src;
    size_t bytes;
} lks__cuda_call;

typedef struct lks__cuda_queue {
    cudaStream_t stream;
    cudaEvent_t events[LKS__CUDA_EVENTS];
    uint64_t made, passed; /* marks */
    void *pinned;          /* of LKS__CUDA_PIECE bytes; NULL until it is needed */
    lks__cuda_call *calls; /* LKS__CUDA_CALLS of them, used in turn */
    uint64_t called;
    lks__mark half; /* after it, the half of `calls` whose turn comes next can be used again */
} lks__cuda_queue;

/* Memory that grows when it is too small, which happens only in the first step. */
typedef struct lks__cuda_space {
    void *at;
    size_t bytes;
} lks__cuda_space;

/* A block that alloc() returned. */
typedef struct lks__cuda_block {
    struct lks__cuda_block *next;
    float *at;
    size_t bytes;
    uint16_t *rounded; /* all of it as bfloat16; NULL: no product has needed it */
    bool stale;        /* it has been written since */
} lks__cuda_block;

/* A list of moves that was put on a queue (exchange.c). */
typedef struct lks__cuda_moves {
    struct lks__cuda_moves *next; /* the list queued after it */
    cudaEvent_t begun, ended;     /* all earlier work is done; the list is done, too */
    uint64_t after;               /* the queue's last mark before it */
    bool whole;                   /* `ended` has been put on the queue */
} lks__cuda_moves;

typedef struct lks__cuda_plans lks__cuda_plans;

typedef struct lks__cuda {
    lks__device device; /* first; its ex points to this struct */
    lks__cuda_fail *fail;
    int gpu;
    lks__cuda_gpu about;
    lks__cuda_queue queues[LKS__QUEUES];
    cudaStream_t set_up; /* zeros of new memory: waits for nothing else */
    lks__cuda_space work, operands[2];
    lks__cuda_block *blocks;
    lks__cuda_plans *plans;
    lks__device_counts counts;
    bool bf16;      /* operands of products, and activations as they are stored */
    bool rehearses; /* nothing is queued: compute/device.h */
    char kind[240]; /* the facts on which algorithms depend: GPU and version of cuBLASLt */
    lks__cuda_wait *wait;
    lks__cuda_load_nccl *load_nccl;
    const lks__nccl_module *nccl; /* NULL until it is asked for */
    void *peers;                  /* of its join(); NULL: none, or no longer */
    int n_ranks;                  /* that joined */
    /* Lists that may not be done, the oldest first; and some whose events can be used again. */
    lks__cuda_moves *moves, *spare_moves;
    char failure[600]; /* the first one's sentence; "": none */
} lks__cuda;

static inline lks__cuda *lks__cuda_of(const lks__exec *ex)
{
    return (lks__cuda *)(uintptr_t)ex;
}

/* Record the first failure; later ones follow from it. */
void lks__cuda_record(lks__cuda *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The status for the recorded failure. Waits until nothing is queued, because the caller may now
 * free the memory that queued work uses. */
lks_status lks__cuda_failure(lks__cuda *c);

/* True if the call succeeded. If not, the device has failed, and its message names the call. */
bool lks__cuda_check(lks__cuda *c, cudaError_t error, const char *call);
bool lks__cuda_check_product(lks__cuda *c, cublasStatus_t status, const char *call);

/* Nothing more is queued after a failure. */
static inline bool lks__cuda_failed(const lks__cuda *c)
{
    return c->failure[0] != '\0';
}

/* exchange.c: other ranks' GPUs. */
extern const struct lks__exchange_ops lks__cuda_exchange;
void lks__cuda_check_peers(lks__cuda *c); /* records a failure of NCCL */
void lks__cuda_cut(lks__cuda *c);         /* ends queued work at once */
void lks__cuda_leave(lks__cuda *c);       /* with all others; at once after a failure */
void lks__cuda_moves_close(lks__cuda *c); /* nothing is queued */

/* As module.h's functions. */
bool lks__cuda_look(int gpu, lks__cuda_gpu *out, char *why, size_t why_bytes);
lks_status lks__cuda_open(int gpu, const lks__layers *layers, lks__cuda_fail *fail,
                          lks__cuda_wait *wait, lks__cuda_load_nccl *load_nccl,
                          lks__device **device_p);

/* memory.c. As in lks__device_ops. */
lks_status lks__cuda_alloc(lks__device *device, size_t bytes, void **p);
void lks__cuda_release(lks__device *device, void *p, size_t bytes);
lks_status lks__cuda_alloc_staging(lks__device *device, size_t bytes, void **p);
void lks__cuda_release_staging(lks__device *device, void *p, size_t bytes);
lks_status lks__cuda_memory(lks__device *device, size_t *left, size_t *all);
void lks__cuda_memory_close(lks__cuda *c); /* nothing is queued */

/* gpu.c: compute fingerprint, parts[0] and kind. False: the device has failed. */
bool lks__cuda_find_fingerprint(lks__cuda *c);

/* plans.c: the handle, and work space. False: the device has failed. */
bool lks__cuda_plans_open(lks__cuda *c);
void lks__cuda_plans_close(lks__cuda *c); /* nothing is queued */
/* As in lks__device_ops. */
void lks__cuda_rehearse(lks__device *device, const char *table, bool complete);
lks_status lks__cuda_perform(lks__device *device);
const char *lks__cuda_algorithms(lks__device *device);
void lks__cuda_choose_freely(lks__device *device, bool on);

#define LKS__CUDA_CALL(c, call, ...)    lks__cuda_check((c), call(__VA_ARGS__), #call)
#define LKS__CUDA_PRODUCT(c, call, ...) lks__cuda_check_product((c), call(__VA_ARGS__), #call)

#endif
