/* compute/cpu/exec.h - the CPU's execution context of layers: a table of kernels and the threads of
 * this rank. */
#pragma once

#include <stdbool.h>

#include "base/pool.h"
#include "compute/cpu/kernels.h"

typedef struct lks__exec lks__exec;

struct lks__exec {
    const lks__kernels *k;
    lks__pool *pool;
    bool bf16; /* matrix products round their operands to bfloat16; all other operations are float32
                */
};

/* Scratch per thread of the pool: for the layers of this folder, for the GEMM, and the total. */
enum {
    LKS__LAYER_SCRATCH_BYTES = 1 << 20,
    LKS__EXEC_SCRATCH_BYTES = LKS__LAYER_SCRATCH_BYTES + LKS__GEMM_WORK_BYTES,
};

/* The exec's GEMM; called in a task of its pool, on `thread`. */
static inline void lks__gemm(const lks__exec *ex, int thread, char ta, char tb, size_t m, size_t n,
                             size_t k, float alpha, const float *a, size_t lda, const float *b,
                             size_t ldb, float beta, float *c, size_t ldc)
{
    if (ex->bf16)
        ex->k->gemm_bf16(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc,
                         (char *)lks__pool_scratch(ex->pool, thread) + LKS__LAYER_SCRATCH_BYTES);
    else
        ex->k->gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static inline const lks__tiles *lks__exec_tiles(const lks__exec *ex)
{
    return ex->bf16 ? ex->k->gemm_bf16_tiles : &lks__gemm_tiles;
}
