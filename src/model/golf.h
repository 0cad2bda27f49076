/* model/golf.h - inside the golf family: what golf.c and golf_block.c share. */
#ifndef LKS_MODEL_GOLF_H
#define LKS_MODEL_GOLF_H

#include "model/head.h"
#include "model/model.h"

/* Arena offsets of one block's tensors. */
struct lks__golf_tensors {
    size_t attn_scale, mlp_scale, mix, gain, wq, wk, wv, wo, fc, fc2;
};

/* What forward keeps of a block for backward; all [rows, …]. KV: the width of the key heads, H: of
 * the MLP. */
struct lks__golf_acts {
    float *in;             /* C: with the skip on it; the previous block's out where there's none */
    float *x, *norm, *rms; /* C: mixed with x0, normed */
    float *q_raw, *q, *q_rms;     /* C; rms [rows, NH] */
    float *k_raw, *k, *k_rms, *v; /* KV */
    float *att, *lse;             /* C; [B, NH, T] */
    float *proj;                  /* C: of attention, before its scale */
    float *x_mid;                 /* C: after attention */
    float *norm2, *rms2;
    float *fc, *relu2; /* H: before and after the activation */
    float *proj2;      /* C: of the MLP, before its scale */
    float *out;        /* C */
};

struct lks__golf {
    lks__model_config c;
    const lks__table *table;
    const lks__exec *ex;
    size_t max_rows, C, KV, H, hs;
    size_t n_enc; /* layers of the U-net's first half */
    struct lks__golf_tensors *lt;
    struct lks__golf_acts *la;
    size_t emb, head_w, skip_weights; /* head_w is emb where tied */
    float *cosine, *sine;             /* [block_size, hs / 2] */
    float *x0, *x0_rms;               /* normed embedding */
    float *final, *final_rms;
    lks__head head;
    float *dx, *dx0;       /* gradient of the residual stream, and of x0 */
    float **dskip;         /* [n_enc] of the first half's outputs, by way of the skips */
    float *d_wide;         /* [rows, max(H, C + 2 KV)] */
    float *d_row, *d_row2; /* [rows, C] */
    float *partial;        /* vectors' gradients, block of rows by block of rows */
    void *arena;
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
