/* kernels/layers.h - layers/layers.h on the CPU: the kernels of a table, cut over the threads of a
 * rank.
 *
 * Products: tile borders depend on the shape alone, and each tile is one call of the single-thread
 * GEMM over the whole inner dimension, so that a row's bits depend neither on threads nor on its
 * neighbours' schedule. An epilogue is applied to each tile once, while it is still in the cache.
 *
 * Attention after Dao et al., FlashAttention (2022): no T x T matrix is ever kept; backward makes
 * the probabilities again from the row's log-sum-exp. Tasks are (b, head, block of rows) forward
 * and (b, key/value head) backward: borders depend on shapes alone.
 *
 * Rows: an operation reads and writes a row's neighbours while they are in the first cache;
 * gradients of vectors go through `partial`, which holds each block of rows' sums, added in order.
 */
#ifndef LKS_KERNELS_LAYERS_H
#define LKS_KERNELS_LAYERS_H

#include "kernels/exec.h"
#include "layers/layers.h"

#define X(name) lks__##name##_fn lks__##name;
LKS__LAYER_MAP(X)
#undef X

#endif
