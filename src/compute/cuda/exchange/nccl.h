/* compute/cuda/exchange/nccl.h - the interface of the module lockstep_nccl.so to
 * exchange/exchange.c. Only the module is linked to NCCL, so that one GPU needs no NCCL. It uses
 * nothing of the program. */
#ifndef LKS_COMPUTE_CUDA_EXCHANGE_NCCL_H
#define LKS_COMPUTE_CUDA_EXCHANGE_NCCL_H

#include "base/system/module.h"
#include "compute/exchange.h"

#define LKS__NCCL_MODULE_FILE "lockstep_nccl.so"

enum { LKS__NCCL_MODULE_VERSION = 2 }; /* increase it with every change below, or in exchange.h */

/* `why` receives NCCL's call and its message. */
typedef struct lks__nccl_module {
    int version;
    void (*about)(char *text, size_t bytes); /* "NCCL 2.28.9" */
    bool (*id)(lks__exchange_id *id, char *why, size_t why_bytes);
    /* Begin to join, on the GPU that is set; NULL: it failed. */
    void *(*join)(int rank, int n_ranks, const lks__exchange_id *id, char *why, size_t why_bytes);
    /* 1: all begun calls have put their work on its stream, or are done; 0: not yet, so nothing
     * else may be begun; -1: the ranks' communication has failed. */
    int (*state)(void *peers, char *why, size_t why_bytes);
    /* Begin to put a list on the stream. */
    bool (*move)(void *peers, void *stream, const lks__move *list, size_t n, char *why,
                 size_t why_bytes);
    bool (*finalize)(void *peers, char *why, size_t why_bytes); /* begin to leave in order */
    void (*destroy)(void *peers);                               /* after that */
    void (*abort)(void *peers); /* leave at once: ends work on streams; never fails */
} lks__nccl_module;

#endif
