/* cuda/cuda.h - shared by the files of this folder: the device's exec, its work space, its
 * products, and the functions of its table of operations. */
#ifndef LKS_COMPUTE_CUDA_CUDA_H
#define LKS_COMPUTE_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "compute/exchange.h"
#include "compute/layers.h"

typedef struct CUstream_st *cudaStream_t; /* as the CUDA runtime declares it */

/* The compute queue's stream. */
cudaStream_t lks__cuda_stream(const lks__exec *ex);

/* `bytes` of device memory, 256-byte aligned, for one operation: its work on the compute stream may
 * use them until the next operation. Grows when it is too small, which happens only in the first
 * step. NULL: there is no memory, and the device has failed: launch nothing. */
void *lks__cuda_work(const lks__exec *ex, size_t bytes);

/* True if activations and their gradients are stored in bfloat16, and operands of products rounded
 * to it. If not, they are float32. */
bool lks__cuda_halves(const lks__exec *ex);

/* True if the GPU multiplies by four warps together (common/warpgroup.h). */
bool lks__cuda_together(const lks__exec *ex);

/* Call after queueing a write to memory that may hold parameters: products keep rounded copies of
 * parameters. */
void lks__cuda_written(const lks__exec *ex, const void *p, size_t bytes);

/* y = x as bfloat16, for `count` matrices [rows, width] at once: from one to the next it is
 * stride_x floats, and stride_y elements. */
typedef struct lks__cuda_rounding {
    uint16_t *y;
    const float *x;
    size_t rows, width, ldy, ldx;
    size_t count, stride_y, stride_x;
    const float *scale; /* a factor for each row; NULL: none */
} lks__cuda_rounding;
void lks__cuda_round(const lks__exec *ex, const lks__cuda_rounding *rounding);

/* Kind of a product's matrix, which determines its storage. */
typedef enum lks__cuda_kind {
    LKS__CUDA_FLOATS,
    LKS__CUDA_PARAMS, /* floats in memory that the device's alloc() gave */
    LKS__CUDA_ACTS,
} lks__cuda_kind;

/* c[m, n] = op(a) op(b) + beta * add, row-major: op is 'N' or 'T', op(a) is [m, k], and
 * op(b) [k, n]. beta 0 reads no `add`. With products in bfloat16 operands are rounded to it, unless
 * they are stored so; sums are float32, and c is rounded once, if it is stored in bfloat16. */
typedef struct lks__cuda_product {
    char ta, tb;
    size_t m, n, k;
    struct lks__cuda_factor {
        const void *at;
        size_t ld;
        lks__cuda_kind kind;
    } a, b;
    float beta;
    struct {
        void *at;
        size_t ld;
        lks__cuda_kind kind; /* no parameters */
    } c;
    const void *add; /* of the kind and shape of c; NULL: c itself */
    /* The next two only if all three matrices are stored in bfloat16. NULL: none. */
    const float *scale;   /* a factor for each stored row of b, before it is rounded */
    const uint16_t *bias; /* bfloat16, added to each row of c */
} lks__cuda_product;

/* Its bits depend only on the shape. It has separate work space: lks__cuda_work()'s memory is
 * unchanged. */
void lks__cuda_gemm(const lks__exec *ex, const lks__cuda_product *product);

/* `count` products of one shape at once, each d = alpha * op(a) op(b) + beta * c, row-major and
 * without gaps between rows; the matrices of the next one are `stride` floats on. c is d, or
 * another matrix. The bits of a product depend on its shape alone, and neither on `count` nor on
 * its place among them. */
typedef struct lks__cuda_batch {
    char ta, tb;
    size_t count, m, n, k;
    float alpha, beta;
    const float *a, *b, *c;
    float *d;
    size_t stride_a, stride_b, stride_d; /* stride_d: c's, too */
} lks__cuda_batch;
void lks__cuda_gemm_batch(const lks__exec *ex, const lks__cuda_batch *batch);

/* y[rows, width] (leading dimension ldy) = its epilogue of itself, in place (layers.h). */
void lks__cuda_epilogue(const lks__exec *ex, lks__act *y, size_t ldy, size_t rows, size_t width,
                        const lks__epilogue *epilogue);

/* sums[C] += column sums of x[rows, C] (leading dimension ld), in an order of the shape alone. */
void lks__cuda_column_sums(const lks__exec *ex, float *sums, const float *x, size_t ld, size_t rows,
                           size_t C);
/* The same of activations. */
void lks__cuda_act_sums(const lks__exec *ex, float *sums, const lks__act *x, size_t ld, size_t rows,
                        size_t C);

/* Count the next launch on the compute stream: bytes of device memory, each read or written once,
 * and floating-point operations. Each launch and each product has its count next to it; `lockstep
 * bench kernels` reads only these. */
void lks__cuda_count(const lks__exec *ex, double bytes, double flops);

/* Put the sum of a shard on the stream (compute/exchange.h). */
void lks__cuda_sum_shard(cudaStream_t stream, const lks__shard_sum *s);
/* Work space of lks__cuda_column_sums(). */
size_t lks__cuda_sums_bytes(size_t rows, size_t columns);
/* Work space of lks__cuda_embedding_bwd(). */
size_t lks__cuda_sort_bytes(size_t rows);

/* Called by LKS_LAUNCH: false in a rehearsal (compute/device.h), in which no kernel is queued. */
bool lks__cuda_launches(void);
/* Called by LKS_LAUNCH: the kernel of this name was put on a stream, or failed to be. */
void lks__cuda_launched(const char *kernel);

#define X(name) lks__##name##_fn lks__cuda_##name;
LKS__LAYER_MAP(X)
LKS__LAYER_QUESTION_MAP(X)
#undef X

#ifdef __cplusplus
}
#endif

#endif
