/* kernels/exec.h - where layers run: a table of kernels and the threads of this rank. */
#ifndef LKS_KERNELS_EXEC_H
#define LKS_KERNELS_EXEC_H

#include <stdbool.h>

#include "base/pool.h"
#include "kernels/kernels.h"

typedef struct lks__exec {
    const lks__kernels *k;
    lks__pool *pool;
    bool bf16; /* matrix products: operands and results are bfloat16 values, held in floats */
} lks__exec;

/* To be called on what becomes an operand of a product, once it is final and in the cache. */
static inline void lks__operand(const lks__exec *ex, float *x, size_t n)
{
    if (ex->bf16)
        ex->k->round_bf16(x, x, n);
}

/* Scratch that each thread of the pool needs for the layers of this folder. */
enum { LKS__EXEC_SCRATCH_BYTES = 1 << 20 };

#endif
