/* model/gpt2/gpt2.h - inside the gpt2 family (nanoGPT's model.py): its tensors and activations, and
 * the functions that its files share. */
#pragma once

#include "model/frame.h"

/* Field of the offset, name, shape, initial values, true if it exists without biases. Tensors with
 * two dimensions decay. (The head shares wte.) C: width, T: block_size, V: vocab_size. */
#define LKS__GPT2_FIRST(X)                                                                         \
    X(wte, "transformer.wte.weight", (V, C), TIED, true)                                           \
    X(wpe, "transformer.wpe.weight", (T, C), NORMAL, true)
#define LKS__GPT2_LAYER(X)                                                                         \
    X(ln1w, "ln_1.weight", (C, 0), ONE, true)                                                      \
    X(ln1b, "ln_1.bias", (C, 0), ZERO, false)                                                      \
    X(qkvw, "attn.c_attn.weight", (3 * C, C), NORMAL, true)                                        \
    X(qkvb, "attn.c_attn.bias", (3 * C, 0), ZERO, false)                                           \
    X(projw, "attn.c_proj.weight", (C, C), RESIDUAL, true)                                         \
    X(projb, "attn.c_proj.bias", (C, 0), ZERO, false)                                              \
    X(ln2w, "ln_2.weight", (C, 0), ONE, true)                                                      \
    X(ln2b, "ln_2.bias", (C, 0), ZERO, false)                                                      \
    X(fcw, "mlp.c_fc.weight", (4 * C, C), NORMAL, true)                                            \
    X(fcb, "mlp.c_fc.bias", (4 * C, 0), ZERO, false)                                               \
    X(fc2w, "mlp.c_proj.weight", (C, 4 * C), RESIDUAL, true)                                       \
    X(fc2b, "mlp.c_proj.bias", (C, 0), ZERO, false)
#define LKS__GPT2_LAST(X)                                                                          \
    X(lnfw, "transformer.ln_f.weight", (C, 0), ONE, true)                                          \
    X(lnfb, "transformer.ln_f.bias", (C, 0), ZERO, false)

/* The activations that a layer's forward stores for backward: field, type, elements per row, the
 * module whose output it is, the level of --recompute from which it is recomputed, and the work
 * space for that. */
#define LKS__GPT2_ACTIVATIONS(X)                                                                   \
    X(ln1, ACTS, C, "ln_1", ROWS, &m->d_drop)                                                      \
    X(mean1, FLOATS, 1, NULL, BLOCK, NULL)                                                         \
    X(rstd1, FLOATS, 1, NULL, BLOCK, NULL)                                                         \
    X(qkv, ACTS, 3 * C, "attn.c_attn", BLOCK, NULL)                                                \
    X(att, ACTS, C, "attn", BLOCK, NULL)                                                           \
    X(lse, FLOATS, NH, NULL, BLOCK, NULL) /* [B, NH, T] */                                         \
    X(x_mid, ACTS, C, "attn.c_proj", BLOCK, NULL)                                                  \
    X(ln2, ACTS, C, "ln_2", ROWS, &m->f.dy)                                                        \
    X(mean2, FLOATS, 1, NULL, BLOCK, NULL)                                                         \
    X(rstd2, FLOATS, 1, NULL, BLOCK, NULL)                                                         \
    X(fc, ACTS, 4 * C, "mlp.c_fc", BLOCK, NULL)        /* before the activation */                 \
    X(gelu, ACTS, 4 * C, "mlp.gelu", ROWS, &m->d_wide) /* ... and after it */                      \
    X(out, ACTS, C, "mlp.c_proj", NEVER, NULL)

/* Arena offsets; SIZE_MAX: not in this model (biases off). */
struct lks__gpt2_once {
    LKS__GPT2_FIRST(LKS__TENSOR_FIELD)
    LKS__GPT2_LAST(LKS__TENSOR_FIELD)
};

struct lks__gpt2_tensors {
    LKS__GPT2_LAYER(LKS__TENSOR_FIELD)
};

struct lks__gpt2_acts {
    LKS__GPT2_ACTIVATIONS(LKS__ACTIVATION_FIELD)
};

struct lks__gpt2 {
    lks__model f;
    struct lks__gpt2_once t;
    float *meanf, *rstdf;
    /* Work space of backward. Forward also stores the activations that --recompute recomputes
     * here. */
    lks__act *dx;      /* gradient of the residual stream */
    lks__act *d_drop;  /* dx with a dropout mask applied */
    lks__act *d_wide;  /* [rows, 4C] */
    float *ln_partial; /* LayerNorm's weight gradients, per block */
};

static inline const struct lks__gpt2_tensors *lks__gpt2_tensors_of(const struct lks__gpt2 *m, int l)
{
    return (const struct lks__gpt2_tensors *)m->f.lt + l;
}

static inline const struct lks__gpt2_acts *lks__gpt2_acts_of(const struct lks__gpt2 *m, int l)
{
    return (const struct lks__gpt2_acts *)m->f.la + l;
}

/* The input of layer `l`; for l == n_layer, the last layer's output. */
static inline const lks__act *lks__gpt2_input(const struct lks__gpt2 *m, int l)
{
    return l == 0 ? m->f.x0 : lks__gpt2_acts_of(m, l - 1)->out;
}

/* The bias at a table's offset; NULL if the model has none. */
static inline const float *lks__gpt2_at(const float *params, size_t offset)
{
    return offset == SIZE_MAX ? NULL : params + offset;
}

/* Dropout places within a layer; the embedding's place is that of a layer L. */
enum {
    LKS__DROP_ATTENTION,
    LKS__DROP_PROJECTION,
    LKS__DROP_MLP,
    LKS__DROP_EMBEDDING = LKS__DROP_ATTENTION
};

/* The mask of a place in `layer`; no mask (threshold 0) in an evaluation. */
lks__dropout lks__gpt2_dropout(const lks__pass *p, int layer, int place);

/* `d` [rows, C] with the mask applied, in m->d_drop; or `d` itself if nothing is dropped. */
const lks__act *lks__gpt2_dropped(const lks__pass *p, const lks__act *d, const lks__dropout *drop);

/* See struct lks__model_ops. m->dx: on entry the gradient of the block's output, on return the
 * gradient of its input. */
void lks__gpt2_block_forward(const lks__pass *p, int layer);
void lks__gpt2_block_backward(const lks__pass *p, int layer);

uint64_t lks__init_gpt2(const lks__model_config *config, const lks__table *table, lks__mt *g,
                        float *params);
