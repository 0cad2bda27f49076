/* model/golf.h - inside the golf family: what golf.c and golf_block.c share. */
#ifndef LKS_MODEL_GOLF_H
#define LKS_MODEL_GOLF_H

#include "layers/mirror.h"
#include "model/head.h"
#include "model/model.h"

/* Arena offsets of one block's tensors. */
struct lks__golf_tensors {
    size_t attn_scale, mlp_scale, mix, gain, wq, wk, wv, wo, fc, fc2;
};

/* What forward keeps of a block for backward; all [rows, …]. KV: the width of the key heads, H: of
 * the MLP. What follows from these by element or by row (norms, mixed inputs, rotated heads, relu²)
 * is computed again: that costs less than the memory, which later layers' values would have pushed
 * out of the caches anyway. */
struct lks__golf_acts {
    float *rms;               /* of the mixed input */
    float *q_raw, *q_rms;     /* C; [rows, NH] */
    float *k_raw, *k_rms, *v; /* KV */
    float *att, *lse;         /* C; [B, NH, T] */
    float *x_mid, *rms2;      /* C: after attention */
    float *fc;                /* H: before the activation */
    float *out;               /* C */
};

struct lks__golf {
    lks__model_config c;
    const lks__table *table;
    lks__device *device;
    const lks__layers *layers; /* the device's, and what they take */
    const lks__exec *ex;
    size_t max_rows, C, KV, H, hs;
    size_t n_enc; /* layers of the U-net's first half */
    struct lks__golf_tensors *lt;
    struct lks__golf_acts *la;
    size_t emb, head_w, skip_weights; /* head_w is emb where tied */
    lks__mirror rotary;               /* cosines, and sines behind them: */
    const float *cosine, *sine;       /* [block_size, hs / 2] */
    float *x0, *x0_rms;               /* normed embedding */
    float *final_rms;
    lks__head head;
    /* Work space, in forward | in backward; each [rows, C] but for wide, and norm, which has place
     * for a projection. Before a layer has x_mid and out, and once it has been done with them,
     * rotated heads and gradients lie there. */
    float *dx;   /* mixed input of a layer | gradient of the residual stream */
    float *dx0;  /* the final norm's output | gradient of x0 */
    float *norm; /* a norm's output, or a branch's before its scale | a norm's, its gradient,
                  * queries, or a projection's gradient without its scale */
    float *wide; /* [rows, max(H, C + 2 KV)] relu² | relu², gradients of the MLP, of q, k and v;
                  * between the two the head's logits */
    float *partial; /* vectors' gradients, block of rows by block of rows */
    void *arena;    /* for one pass: nothing in it is kept for the next */
    size_t arena_bytes;
};

/* One pass through the model: what forward and backward share. */
struct lks__golf_pass {
    struct lks__golf *m;
    const float *params;
    const lks__micro_batch *mb;
    const lks__backward *bw; /* NULL: evaluation */
    size_t rows;
};

void lks__golf_block_forward(const struct lks__golf_pass *p, int layer);
/* m->dx: gradient of the block's output in, of the previous one's out. */
void lks__golf_block_backward(const struct lks__golf_pass *p, int layer);

#endif
