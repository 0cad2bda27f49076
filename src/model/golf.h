/* model/golf.h - internal to the golf family: shared by golf.c and golf_block.c. */
#ifndef LKS_MODEL_GOLF_H
#define LKS_MODEL_GOLF_H

#include "layers/mirror.h"
#include "model/head.h"
#include "model/model.h"

/* Arena offsets of the tensors of one block. */
struct lks__golf_tensors {
    size_t attn_scale, mlp_scale, mix, gain, wq, wk, wv, wo, fc, fc2;
};

/* What forward keeps of a block for backward; all [rows, …]. KV: width of the key heads, H: of the
 * MLP. Values that follow from these by element or by row (norms, mixed inputs, rotated heads,
 * relu²) are computed again. That costs less than keeping them: later layers would have pushed them
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
    const lks__layers *layers; /* of the device, and their exec */
    const lks__exec *ex;
    size_t max_rows, C, KV, H, hs;
    size_t n_enc; /* layers in the U-net's first half */
    struct lks__golf_tensors *lt;
    struct lks__golf_acts *la;
    size_t emb, head_w, skip_weights; /* head_w is emb if they are tied */
    lks__mirror rotary;               /* cosines, followed by sines: */
    const float *cosine, *sine;       /* [block_size, hs / 2] */
    float *x0, *x0_rms;               /* the normed embedding */
    float *final_rms;
    lks__head head;
    /* Work space. Each comment gives the use in forward | in backward. Each is [rows, C], except
     * wide, and norm, which has room for a projection. Rotated heads and their gradients reuse a
     * layer's x_mid and out while those are unused. */
    float *dx;   /* mixed input of a layer | gradient of the residual stream */
    float *dx0;  /* the final norm's output | gradient of x0 */
    float *norm; /* output of a norm, or of a branch before its scale | gradient of a norm, queries,
                    or gradient of a projection without its scale */
    float *wide; /* [rows, max(H, C + 2 KV)] relu² | relu², gradients of the MLP and of q, k and v;
                    in between the head's logits */
    float *partial; /* gradients of vectors, for each block of rows */
    void *arena;    /* used within one pass; the next one overwrites it */
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
/* m->dx: on entry the gradient of the block's output, on return that of the previous block's. */
void lks__golf_block_backward(const struct lks__golf_pass *p, int layer);

#endif
