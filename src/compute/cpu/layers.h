/* compute/cpu/layers.h - compute/layers.h on the CPU: kernels of a kernel table, with the work
 * divided among the threads of a rank.
 *
 * Products: tile borders depend only on the shape, and each tile is one call of the single-thread
 * GEMM over the whole inner dimension. So a row's bits depend neither on threads nor on other
 * tiles. An epilogue is applied to each tile once, while it is still in the cache.
 *
 * Attention follows Dao et al., FlashAttention (2022): no T x T matrix is kept; backward recomputes
 * the probabilities from the row's log-sum-exp. Tasks are (b, head, block of rows) forward and (b,
 * key/value head) backward: borders depend on shapes alone.
 *
 * Rows: an operation works on a row while it is in the first-level cache. Gradients of vectors go
 * through `partial`, which holds the sums of each block of rows; these are added in order. */
#pragma once

#include "compute/cpu/exec.h"
#include "compute/layers.h"

#define X(name) lks__##name##_fn lks__##name;
LKS__LAYER_MAP(X)
LKS__LAYER_QUESTION_MAP(X)
#undef X

/* The CPU's activations are floats. */
static inline float *lks__floats(const lks__act *x)
{
    return (float *)(uintptr_t)x;
}

static inline lks__act *lks__acts(const float *x)
{
    return (lks__act *)(uintptr_t)x;
}
