/* cuda/attention.h - what the kernels of attention in float32 and in bfloat16 share. */
#ifndef LKS_CUDA_ATTENTION_H
#define LKS_CUDA_ATTENTION_H

#include "device/cuda/cuda.h"
#include "device/cuda/rows.h"

#include <math.h>

/* A block works on 64 queries or keys of a head, and on 64 elements of it at once. */
static const int LKS_TILE = 64;

/* What all kernels of a call are given. */
struct lks_attention {
    lks__attention_shape shape; /* NKV is set */
    lks__attention_in in;
    lks__attention_grads grads;
    float *out, *lse;                  /* forward */
    const float *f_out, *f_lse, *dout; /* backward */
    float *delta;                      /* backward: [B,NH,T], sums of dout * out */
    lks__dropout drop;                 /* threshold 0: none */
    float scale;                       /* 1 / sqrt(hs) */
    size_t group, c;                   /* query heads of a key/value head; NH * hs */
    bool fours;                        /* all rows can be moved by fours */
};

/* What a block works on. */
struct lks_place {
    size_t b, h;    /* sequence; head of the queries, or of keys and values */
    unsigned t0;    /* first token of its tile */
    unsigned piece; /* first of the pieces of the head of which it makes the output */
};

/* Blocks that have most to do begin first: `last_first` if those are the tiles at the end. */
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

/* Put a->delta on the stream. */
void lks_attention_delta(const lks__exec *ex, const lks_attention &a);

/* Count a launch that makes `products` products of the scores below the diagonal, does `each` more
 * operations for a score, and moves so many float32 matrices of the queries' and of the keys' size.
 * Tiles that are read again come from the second-level cache. */
void lks_attention_count(const lks__exec *ex, const lks_attention &a, double products, double each,
                         double of_queries, double of_keys);

/* The operations with operands in bfloat16. */
void lks_attention_fwd_bf16(const lks__exec *ex, const lks_attention &a);
void lks_attention_bwd_bf16(const lks__exec *ex, const lks_attention &a);

#endif
