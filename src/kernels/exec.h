/* kernels/exec.h - where layers run: a table of kernels and the threads of this rank. */
#ifndef LKS_KERNELS_EXEC_H
#define LKS_KERNELS_EXEC_H

#include "base/pool.h"
#include "kernels/kernels.h"

typedef struct lks__exec {
    const lks__kernels *k;
    lks__pool *pool;
} lks__exec;

/* Scratch that each thread of the pool needs for the layers of this folder. */
enum { LKS__EXEC_SCRATCH_BYTES = 1 << 20 };

#endif
