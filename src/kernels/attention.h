/* kernels/attention.h - causal multi-head attention in blocks with an online softmax.
 *
 * Forward after Dao et al., FlashAttention (2022): no T x T matrix is ever kept; backward makes
 * the probabilities again from the row's log-sum-exp. Tasks are (b, head, block of rows) forward
 * and (b, head) backward: borders depend on shapes alone. */
#ifndef LKS_KERNELS_ATTENTION_H
#define LKS_KERNELS_ATTENTION_H

#include "kernels/exec.h"

typedef struct lks__attention_shape {
    size_t B, T;
    size_t NH;      /* heads */
    size_t hs;      /* head size; C = NH * hs */
} lks__attention_shape;

/* Scores are q.k / sqrt(hs). Dropout acts on the probabilities (element ((b*NH + h)*T + i)*T + j of
 * `drop`'s mask), as scaled_dot_product_attention(dropout_p) does.
 *
 * qkv [B,T,3C]: q, k, v of a token side by side, heads side by side within each (nanoGPT's c_attn)
 * out [B,T,C]; lse [B,NH,T] out: log-sum-exp of each row, for backward; may be NULL. */
void lks__attention_fwd(const lks__exec *ex, const lks__attention_shape *shape, float *out,
                        float *lse, const float *qkv, const lks__dropout *drop);

/* dqkv [B,T,3C] is overwritten. dout, out [B,T,C]. */
void lks__attention_bwd(const lks__exec *ex, const lks__attention_shape *shape, float *dqkv,
                        const float *dout, const float *qkv, const float *out, const float *lse,
                        const lks__dropout *drop);

/* To be called once before the two above: ERR_CONFIG for an empty shape and for more scores than a
 * dropout mask can number (2^34), which also bounds T so that a thread's scratch holds a row of it.
 */
lks_status lks__attention_check(const lks__attention_shape *shape);

#endif
