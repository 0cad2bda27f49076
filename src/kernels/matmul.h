/* kernels/matmul.h - the three products of a linear layer, cut in tiles over a rank's threads.
 *
 * Tile borders depend on the shape alone, and each tile is one call of the single-thread GEMM over
 * the whole inner dimension, so that a row's bits depend neither on threads nor on its neighbours'
 * schedule. */
#ifndef LKS_KERNELS_MATMUL_H
#define LKS_KERNELS_MATMUL_H

#include "kernels/exec.h"

/* Called for each finished tile of the output, rows [r0, r1), columns [c0, c1), while it is still
 * in the cache. Tiles don't overlap. NULL: nothing to do. */
typedef void lks__epilogue_fn(const lks__exec *ex, const void *ctx, size_t r0, size_t r1, size_t c0,
                              size_t c1);
typedef struct lks__epilogue {
    lks__epilogue_fn *fn;
    const void *ctx;
} lks__epilogue;

/* y[rows, out] (leading dimension ldy) = x[rows, in] w[out, in]^T. */
void lks__linear_fwd(const lks__exec *ex, float *y, size_t ldy, const float *x, const float *w,
                     size_t rows, size_t out, size_t in, lks__epilogue epilogue);

/* dx[rows, in] = dy[rows, out] (leading dimension lddy) w[out, in]. */
void lks__linear_bwd_x(const lks__exec *ex, float *dx, const float *dy, size_t lddy, const float *w,
                       size_t rows, size_t out, size_t in, lks__epilogue epilogue);

/* The same, added to what stands in dx. */
void lks__linear_bwd_x_add(const lks__exec *ex, float *dx, const float *dy, size_t lddy,
                           const float *w, size_t rows, size_t out, size_t in);

/* dw[out, in] += dy^T x: the rows' sum is added to what stands there, which is how micro-batches
 * accumulate. db[out] += column sums of dy (NULL: no bias). */
void lks__linear_bwd_w(const lks__exec *ex, float *dw, float *db, const float *dy, size_t lddy,
                       const float *x, size_t rows, size_t out, size_t in);

#endif
