/* kernels/attention.h - causal multi-head attention in blocks with an online softmax.
 *
 * Forward after Dao et al., FlashAttention (2022): no T x T matrix is ever kept; backward makes
 * the probabilities again from the row's log-sum-exp. Tasks are (b, head, block of rows) forward
 * and (b, key/value head) backward: borders depend on shapes alone. */
#ifndef LKS_KERNELS_ATTENTION_H
#define LKS_KERNELS_ATTENTION_H

#include "kernels/exec.h"

typedef struct lks__attention_shape {
    size_t B, T;
    size_t NH;  /* heads */
    size_t hs;  /* head size; C = NH * hs */
    size_t NKV; /* key/value heads, a divisor of NH; 0: NH of them */
} lks__attention_shape;

/* Queries [B,T,NH,hs] with ldq floats from one token to the next; keys and values [B,T,NKV,hs] with
 * ldkv. Query head h reads key/value head h / (NH / NKV) (Ainslie et al., GQA, 2023). */
typedef struct lks__attention_in {
    const float *q, *k, *v;
    size_t ldq, ldkv;
} lks__attention_in;

/* The same of their gradients. */
typedef struct lks__attention_grads {
    float *dq, *dk, *dv;
    size_t ldq, ldkv;
} lks__attention_grads;

/* Scores are q.k / sqrt(hs). Dropout acts on the probabilities (element ((b*NH + h)*T + i)*T + j of
 * `drop`'s mask), as scaled_dot_product_attention(dropout_p) does.
 *
 * out [B,T,C]; lse [B,NH,T] out: log-sum-exp of each row, for backward; may be NULL. */
void lks__attention_fwd(const lks__exec *ex, const lks__attention_shape *shape, float *out,
                        float *lse, const lks__attention_in *in, const lks__dropout *drop);

/* The gradients are overwritten. dout, out [B,T,C]. */
void lks__attention_bwd(const lks__exec *ex, const lks__attention_shape *shape,
                        const lks__attention_grads *grads, const float *dout,
                        const lks__attention_in *in, const float *out, const float *lse,
                        const lks__dropout *drop);

/* Views of qkv [B,T,3C]: q, k, v of a token side by side, heads side by side within each (nanoGPT's
 * c_attn). */
lks__attention_in lks__attention_packed(const lks__attention_shape *shape, const float *qkv);
lks__attention_grads lks__attention_packed_grads(const lks__attention_shape *shape, float *dqkv);

/* To be called once before the two above: ERR_CONFIG for an empty shape, for an NKV that doesn't
 * divide NH, and for more scores than a dropout mask can number (2^34), which also bounds T so that
 * a thread's scratch holds a row of it. */
lks_status lks__attention_check(const lks__attention_shape *shape);

#endif
