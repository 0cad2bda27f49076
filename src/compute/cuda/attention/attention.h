/* compute/cuda/attention/attention.h - definitions that the files of attention share. */
#ifndef LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_H
#define LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_H

#include "compute/cuda/common/rows.h"
#include "compute/cuda/cuda.h"

#include <math.h>

/* A block works on 64 queries or keys of a head, and on 64 elements of it at once. */
static const int LKS_TILE = 64;

/* Arguments of all kernels of a call. Matrices have elements E: see rows.h. */
struct lks_attention {
    lks__attention_shape shape; /* NKV is set */
    lks__attention_in in;
    lks__attention_grads grads;
    lks__act *out; /* forward */
    float *lse;
    const lks__act *f_out, *dout; /* backward */
    const float *f_lse;
    float *delta;      /* backward: [B,NH,T], sums of dout * out */
    lks__dropout drop; /* threshold 0: none */
    float scale;       /* 1 / sqrt(hs) */
    size_t group, c;   /* query heads of a key/value head; NH * hs */
    bool halves;       /* E is lks_half, else float */
    bool together;     /* the GPU has the instructions of warpgroup.h */
    bool wide;         /* rows can be moved by fours, and in bfloat16 by eights */
};

/* The arguments without those of forward or backward. */
lks_attention lks_attention_of(const lks__exec *ex, const lks__attention_shape *shape,
                               const lks__attention_in *in, const lks__dropout *drop);

/* The scores that dropout keeps, of a query with four keys from j on: bit n for key j + n. row:
 * (b * NH + h) * T + i for query i of head h of sequence b. */
static __device__ inline uint32_t lks_kept(const lks_attention &a, size_t row, unsigned j)
{
    const uint64_t e = row * a.shape.T + j;
    const unsigned skip = (unsigned)e % 4; /* words of the first call */
    uint32_t kept = 0;
#pragma unroll 1
    for (unsigned calls = 0; calls <= (skip > 0); calls++) {
        const uint4 words = lks_dropout_words(a.drop, (uint32_t)(e / 4) + calls);
#pragma unroll
        for (int n = 0; n < 4; n++)
            kept |= (uint32_t)(lks_word(words, n) >= a.drop.threshold) << (4 * calls + n);
    }
    return kept >> skip & 15;
}

/* Dropout's factor of the score that bit n stands for. */
static __device__ inline float lks_factor(const lks_attention &a, uint32_t kept, int n)
{
    return (kept >> n & 1) != 0 ? a.drop.scale : 0.0f;
}

/* attention_64.cu, a faster path on tensor cores: true for heads of 64 elements in bfloat16 that
 * can be moved by eights. Then call its launches. */
bool lks_attention_is_64(const lks_attention &a);
void lks_attention_fwd_64(cudaStream_t stream, const lks_attention &a);
void lks_attention_delta_64(cudaStream_t stream, const lks_attention &a);
void lks_attention_bwd_keys_64(cudaStream_t stream, const lks_attention &a);
void lks_attention_bwd_queries_64(cudaStream_t stream, const lks_attention &a);

#endif
