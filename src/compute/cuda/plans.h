/* cuda/plans.h - one matrix product of stored operands: its shape, and the call that queues it. */
#ifndef LKS_COMPUTE_CUDA_PLANS_H
#define LKS_COMPUTE_CUDA_PLANS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "compute/cuda/cuda.h"

/* Everything that a plan depends on. Fill it with zeros first, because it is compared as bytes. */
typedef struct lks__cuda_key {
    size_t m, n, k, lda, ldb, ldc;
    size_t count, stride_a, stride_b, stride_c; /* 0: one product, without strides */
    char ta, tb;
    bool bf16, half;    /* operands, and the result, are bfloat16, else float32 */
    uint16_t bias;      /* 1: a vector is added to each row; it and the result are bfloat16 */
    uint16_t alignment; /* bytes: divides the address of every row; 16, or an element */
} lks__cuda_key;

/* Matrices and factors of a product. */
typedef struct lks__cuda_factors {
    float alpha, beta;
    const void *a, *b, *add;
    void *out;
    const uint16_t *bias; /* if the key has one */
} lks__cuda_factors;

/* out = alpha * op(a) op(b) + beta * add + bias, for each of key->count products. The key is
 * complete except for its alignment. Its matrices are stored in its types. */
void lks__cuda_multiply(const lks__exec *ex, lks__cuda_key *key, const lks__cuda_factors *of);

/* `bytes` of device memory for the rounded operand 0 or 1 of a product. NULL: the device has
 * failed. */
void *lks__cuda_operand(const lks__exec *ex, int operand, size_t bytes);

/* The bfloat16 copy of *p, which is in a block that contains a product's parameters. The whole
 * block is rounded on demand if it has been written. NULL: it is in no block, or the device has
 * failed. */
const uint16_t *lks__cuda_rounded(const lks__exec *ex, const float *p);

#ifdef __cplusplus
}
#endif

#endif
