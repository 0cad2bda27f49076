/* model/gpt2.h - internal to the gpt2 family: shared by gpt2.c and gpt2_block.c. */
#ifndef LKS_MODEL_GPT2_H
#define LKS_MODEL_GPT2_H

#include "model/head.h"
#include "model/model.h"

/* Places of dropout within a layer; the embedding uses the numbers of a layer L. */
enum {
    LKS__DROP_ATTENTION,
    LKS__DROP_PROJECTION,
    LKS__DROP_MLP,
    LKS__DROP_EMBEDDING = LKS__DROP_ATTENTION
};

/* Arena offsets of one layer's tensors; SIZE_MAX: there is none (no biases). */
struct lks__gpt2_tensors {
    size_t ln1w, ln1b, qkvw, qkvb, projw, projb, ln2w, ln2b, fcw, fcb, fc2w, fc2b;
};

/* What forward keeps of a layer for backward; all [rows, …]. */
struct lks__gpt2_acts {
    float *x; /* C: input of the layer */
    float *ln1, *mean1, *rstd1;
    float *qkv;       /* 3C */
    float *att, *lse; /* C; [B, NH, T] */
    float *x_mid;     /* C: after attention */
    float *ln2, *mean2, *rstd2;
    float *fc, *gelu; /* 4C: before and after the activation */
};

struct lks__gpt2 {
    lks__model_config c;
    const lks__table *table;
    lks__device *device;
    const lks__layers *layers; /* of the device, and their exec */
    const lks__exec *ex;
    size_t max_rows;
    struct lks__gpt2_tensors *lt;
    struct lks__gpt2_acts *la;
    size_t wte, wpe, lnfw, lnfb;
    float *x_out; /* output of the last layer */
    float *lnf, *meanf, *rstdf;
    lks__head head;
    float *dx;             /* gradient of the residual stream */
    float *d_drop;         /* dx after a dropout mask, or rounded */
    float *d_wide, *d_row; /* [rows, 4C] and [rows, C] */
    float *ln_partial;     /* LayerNorm's weight gradients, for each block of rows */
    void *arena;
    size_t arena_bytes;
};

/* One pass through the model: what forward and backward share. */
struct lks__gpt2_pass {
    struct lks__gpt2 *m;
    const float *params;
    const lks__micro_batch *mb;
    const lks__backward *bw; /* NULL: evaluation */
    size_t rows, C;
};

/* The bias at a table offset; NULL if the model has none. */
static inline const float *lks__gpt2_at(const float *params, size_t offset)
{
    return offset == SIZE_MAX ? NULL : params + offset;
}

static inline float *lks__gpt2_at_grad(float *grads, size_t offset)
{
    return offset == SIZE_MAX ? NULL : grads + offset;
}

/* The mask of a place in `layer`; none (threshold 0) in an evaluation. */
lks__dropout lks__gpt2_dropout(const struct lks__gpt2_pass *p, int layer, int place);

/* `d` [rows, C] with the mask applied, in m->d_drop; `d` itself if nothing is dropped. */
const float *lks__gpt2_dropped(const struct lks__gpt2_pass *p, const float *d,
                               const lks__dropout *drop);

/* x_next: the block's output, [rows, C]. */
void lks__gpt2_block_forward(const struct lks__gpt2_pass *p, int layer, float *x_next);
/* m->dx: on entry the gradient of the block's output, on return that of its input. */
void lks__gpt2_block_backward(const struct lks__gpt2_pass *p, int layer);

#endif
