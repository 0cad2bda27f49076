/* model/golf/golf.h - inside the golf family (parameter-golf's train_gpt.py): its tensors and
 * activations, and the functions that its files share. */
#pragma once

#include "compute/mirror.h"
#include "model/frame.h"

/* Field of the offset, name, shape, initial values, kind; in the order of the script's state_dict.
 * C: width, V: vocab_size, KV: width of the key heads, H: of the MLP, S: the U-net's skips. A
 * single layer has no skip, but the script's state_dict still contains skip weights, with no row.
 */
#define LKS__GOLF_FIRST(X)                                                                         \
    X(skip_weights, "skip_weights", (S, C), ONE, SCALAR)                                           \
    X(emb, "tok_emb.weight", (V, C), EMBED, EMBED)
#define LKS__GOLF_LAYER(X)                                                                         \
    X(attn_scale, "attn_scale", (C, 0), ONE, SCALAR)                                               \
    X(mlp_scale, "mlp_scale", (C, 0), ONE, SCALAR)                                                 \
    X(mix, "resid_mix", (2, C), MIX, SCALAR)                                                       \
    X(gain, "attn.q_gain", (NH, 0), GAIN, SCALAR)                                                  \
    X(wq, "attn.c_q.weight", (C, C), LINEAR, MATRIX)                                               \
    X(wk, "attn.c_k.weight", (KV, C), LINEAR, MATRIX)                                              \
    X(wv, "attn.c_v.weight", (KV, C), LINEAR, MATRIX)                                              \
    X(wo, "attn.proj.weight", (C, C), ZEROED, MATRIX)                                              \
    X(fc, "mlp.fc.weight", (H, C), LINEAR, MATRIX)                                                 \
    X(fc2, "mlp.proj.weight", (C, H), ZEROED, MATRIX)
#define LKS__GOLF_LAST(X) X(head, "lm_head.weight", (V, C), ZEROED, HEAD) /* if it isn't tied */

/* The activations that a layer's forward stores for backward: field, type, elements per row, the
 * module whose output it is, the level of --recompute from which it is recomputed, and its work
 * space then. On a CPU recomputing rows costs less than keeping them: later layers would have
 * pushed them out of the caches anyway. */
#define LKS__GOLF_ACTIVATIONS(X)                                                                   \
    X(x, ACTS, C, NULL, ROWS, &varies)   /* the mixed input */                                     \
    X(rms, FLOATS, 1, NULL, BLOCK, NULL) /* of x */                                                \
    X(norm1, ACTS, C, NULL, ROWS, &m->norm)                                                        \
    X(q_raw, ACTS, C, "attn.c_q", BLOCK, NULL)                                                     \
    X(q_rms, FLOATS, NH, NULL, BLOCK, NULL)                                                        \
    X(q, ACTS, C, NULL, ROWS, &m->norm) /* normed and rotated */                                   \
    X(k_raw, ACTS, KV, "attn.c_k", BLOCK, NULL)                                                    \
    X(k_rms, FLOATS, NKV, NULL, BLOCK, NULL)                                                       \
    X(k, ACTS, KV, NULL, ROWS, &varies)                                                            \
    X(v, ACTS, KV, "attn.c_v", BLOCK, NULL)                                                        \
    X(att, ACTS, C, "attn", BLOCK, NULL)                                                           \
    X(lse, FLOATS, NH, NULL, BLOCK, NULL) /* [B, NH, T] */                                         \
    X(x_mid, ACTS, C, "attn.proj", BLOCK, NULL)                                                    \
    X(rms2, FLOATS, 1, NULL, BLOCK, NULL)                                                          \
    X(norm2, ACTS, C, NULL, ROWS, &m->norm)                                                        \
    X(fc, ACTS, H, "mlp.fc", BLOCK, NULL) /* before the activation */                              \
    X(relu2, ACTS, H, NULL, ROWS, &m->wide)                                                        \
    X(out, ACTS, C, "mlp.proj", NEVER, NULL)

/* Arena offsets; SIZE_MAX: the model has no such tensor. */
struct lks__golf_once {
    LKS__GOLF_FIRST(LKS__TENSOR_FIELD)
    LKS__GOLF_LAST(LKS__TENSOR_FIELD)
};

struct lks__golf_tensors {
    LKS__GOLF_LAYER(LKS__TENSOR_FIELD)
};

struct lks__golf_acts {
    LKS__GOLF_ACTIVATIONS(LKS__ACTIVATION_FIELD)
};

struct lks__golf {
    lks__model f;
    struct lks__golf_once t;
    size_t KV, H, hs;
    size_t n_enc;               /* layers of the U-net's first half */
    lks__mirror rotary;         /* cosines, followed by sines: */
    const float *cosine, *sine; /* [block_size, hs / 2] */
    float *x0_rms, *final_rms;
    /* Work space. Each comment gives the use in forward | in backward, without kept activations
     * (--recompute=none). Each is [rows, C], except wide, and norm, which has room for product.
     * Forward's x is in the layer's out until that is computed. In backward, a layer's x_mid, att
     * and out become work space after their last read. Between two layers of backward only dx and
     * dx0 are in use, so a layer's forward can run there again. */
    lks__act *dx;   /* – | gradient of the residual stream */
    lks__act *dx0;  /* the final norm's output (y) | gradient of x0 */
    lks__act *norm; /* a norm's output, queries, or a branch's output before its scale | the head's
                     * gradient (dy), a norm's output, its gradient, or queries */
    float *product; /* – | a projection's gradient without its scale: in norm's memory */
    lks__act *wide; /* [rows, max(H, C + 2 KV)] keys, relu² | relu², gradients of the MLP, of q, k
                     * and v; between the two the head's logits */
    float *partial; /* partial gradients of vectors, per block of rows */
};

static inline const struct lks__golf_tensors *lks__golf_tensors_of(const struct lks__golf *m, int l)
{
    return (const struct lks__golf_tensors *)m->f.lt + l;
}

static inline const struct lks__golf_acts *lks__golf_acts_of(const struct lks__golf *m, int l)
{
    return (const struct lks__golf_acts *)m->f.la + l;
}

/* The input of layer `l`; for l == n_layer, the last layer's output. */
static inline const lks__act *lks__golf_input(const struct lks__golf *m, int l)
{
    return l == 0 ? m->f.x0 : lks__golf_acts_of(m, l - 1)->out;
}

/* See struct lks__model_ops. m->dx: on entry the gradient of the block's output, on return the
 * gradient of the previous block's output. */
void lks__golf_block_forward(const lks__pass *p, int layer);
void lks__golf_block_backward(const lks__pass *p, int layer);

/* Use the same random numbers as train_gpt.py's GPT(...), in the same order. */
uint64_t lks__init_golf(const lks__model_config *config, const lks__table *table, lks__mt *g,
                        float *params);

lks_status lks__table_golf(const lks__model_config *config, lks__table *table);

/* Layers of the U-net's first half, whose outputs are handed to the second half; the second half
 * has as many layers or one more. */
size_t lks__golf_encoders(const lks__model_config *config);
