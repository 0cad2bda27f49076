/* compute/cuda/attention/attention.h - definitions that the attention kernels in float32 and in
 * bfloat16 share. */
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
    bool wide;         /* rows can be moved by fours, and with operands in bfloat16 by eights */
};

/* The part of a call that one block computes. */
struct lks_place {
    size_t b, h;    /* sequence; head of the queries, or of keys and values */
    unsigned t0;    /* first token of its tile */
    unsigned piece; /* first of the pieces of the head of which it makes the output */
};

/* Blocks with the most work begin first: `last_first` if those are the tiles at the end. */
static __device__ inline lks_place lks_place_of(const lks_attention &a, size_t heads, int pieces,
                                                bool last_first)
{
    const size_t tiles = (a.shape.T + LKS_TILE - 1) / LKS_TILE, all = a.shape.B * heads;
    const size_t parts = (a.shape.hs + LKS_TILE * pieces - 1) / (LKS_TILE * pieces);
    const size_t task = blockIdx.x / parts, tile = task / all;
    lks_place p;
    p.b = task % all / heads;
    p.h = task % heads;
    p.t0 = (unsigned)(last_first ? tiles - 1 - tile : tile) * LKS_TILE;
    p.piece = (unsigned)(blockIdx.x % parts) * pieces;
    return p;
}

/* The launches with operands in bfloat16. */
void lks_attention_fwd_bf16(cudaStream_t stream, const lks_attention &a);
void lks_attention_bwd_keys_bf16(cudaStream_t stream, const lks_attention &a);
void lks_attention_bwd_queries_bf16(cudaStream_t stream, const lks_attention &a);

/* True for heads of 64 elements in bfloat16 that can be moved by eights, without dropout: their
 * launches, and a.delta, use separate kernels (attention_64.cu). */
bool lks_attention_is_64(const lks_attention &a);
void lks_attention_delta_64(cudaStream_t stream, const lks_attention &a);

#endif
