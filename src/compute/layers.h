/* compute/layers.h - the operations of models, as one table. Model files compute only through it,
 * and each device has a table of its own. The CPU's is lks__layers_cpu (src/compute/cpu).
 *
 * All matrices are row-major, [rows, …] for `rows` = B * T tokens; lengths count elements.
 * Activations and their gradients (lks__act *) have the element type of the device; parameters,
 * their gradients, statistics of rows and work space are float32.
 * An operation reads and writes only what its arguments name. It returns no status: after an error
 * of the device its results are NaN, and the device's own check reports the error.
 *
 * Arrays (float *, double *, int32_t *, uint64_t *), also those that a struct points to, are memory
 * of the device. The operation reads and writes them when its turn on the compute queue comes.
 * Structs are memory of the host. They, and the structs that they point to, are read before the
 * call returns. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/beat.h"
#include "base/status.h"
#include "compute/dropout.h"

/* Where layers run. Opaque to models; each device has its own (the CPU: compute/cpu/exec.h). */
typedef struct lks__exec lks__exec;

/* An element of a matrix of activations or of their gradients. The device determines its type and
 * size: the question act_bytes returns the size. So code for all devices neither reads one nor does
 * arithmetic with these pointers; it uses lks__act_at(). */
typedef struct lks__act lks__act;

/* Bytes per element; `bf16`: products round their operands to bfloat16. */
typedef size_t lks__act_bytes_fn(bool bf16);

/* The address of element i, for elements of `bytes` each. */
static inline lks__act *lks__act_at(const lks__act *x, size_t i, size_t bytes)
{
    return (lks__act *)((uintptr_t)x + i * bytes);
}

/* --- memory ---------------------------------------------------------------------------------- */

typedef void lks__clear_fn(const lks__exec *ex, float *x, size_t n); /* x = 0 */
typedef void lks__accumulate_fn(const lks__exec *ex, float *y, const float *x,
                                size_t n);                                          /* y += x */
typedef void lks__copy_fn(const lks__exec *ex, float *y, const float *x, size_t n); /* y = x */
/* *first = index of the first non-finite x[i]; n if all are finite. */
typedef void lks__first_not_finite_fn(const lks__exec *ex, uint64_t *first, const float *x,
                                      size_t n);
/* The same four for activations. */
typedef void lks__act_clear_fn(const lks__exec *ex, lks__act *x, size_t n);
typedef void lks__act_accumulate_fn(const lks__exec *ex, lks__act *y, const lks__act *x, size_t n);
typedef void lks__act_copy_fn(const lks__exec *ex, lks__act *y, const lks__act *x, size_t n);
typedef void lks__act_first_not_finite_fn(const lks__exec *ex, uint64_t *first, const lks__act *x,
                                          size_t n);

/* --- products -------------------------------------------------------------------------------- */

/* Operations on a product's output y, after its bias has been added. */
typedef enum lks__epilogue_kind {
    LKS__EPILOGUE_NONE,
    LKS__EPILOGUE_GELU,      /* out = gelu(y) */
    LKS__EPILOGUE_GELU_BWD,  /* y = y * gelu'(in) */
    LKS__EPILOGUE_GELU_TANH, /* the same two with GPT-2's tanh form of gelu */
    LKS__EPILOGUE_GELU_TANH_BWD,
    LKS__EPILOGUE_RELU2,     /* out = relu(y)^2 */
    LKS__EPILOGUE_RELU2_BWD, /* y = y * 2 relu(in) */
    LKS__EPILOGUE_RESIDUAL,  /* y = in + dropout(y) */
    LKS__EPILOGUE_BRANCH,    /* out = in + scale * y; a device needn't store y */
} lks__epilogue_kind;

/* Matrices have the product's shape and leading dimension, vectors one element per column. Fields
 * that the kind doesn't mention stay NULL; bias, drop: NULL if there is none. */
typedef struct lks__epilogue {
    lks__epilogue_kind kind;
    const float *bias;        /* vector, added first */
    const lks__act *in;       /* matrix: residual, or values before the activation */
    const float *scale;       /* vector */
    lks__act *out;            /* matrix: second output */
    const lks__dropout *drop; /* its mask counts the elements of y, leading dimension included */
} lks__epilogue;

/* y[rows, width] = gelu(x), or relu(x)^2, in the form of `kind` (GELU, GELU_TANH, RELU2): the bits
 * that a product's epilogue writes to its second output. */
typedef void lks__activation_fwd_fn(const lks__exec *ex, lks__epilogue_kind kind, lks__act *y,
                                    const lks__act *x, size_t rows, size_t width);

/* y[rows, out] (leading dimension ldy) = x[rows, in] w[out, in]^T; epilogue: NULL for none. */
typedef void lks__linear_fwd_fn(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                                const float *w, size_t rows, size_t out, size_t in,
                                const lks__epilogue *epilogue);

/* The same for passes over new tokens only: a row's bits don't depend on the other rows or their
 * number. */
typedef lks__linear_fwd_fn lks__linear_rows_fwd_fn;

/* dx[rows, in] = dy[rows, out] (leading dimension lddy) w[out, in]. */
typedef void lks__linear_bwd_x_fn(const lks__exec *ex, lks__act *dx, const lks__act *dy,
                                  size_t lddy, const float *w, size_t rows, size_t out, size_t in,
                                  const lks__epilogue *epilogue);

/* The same, but added to dx. */
typedef void lks__linear_bwd_x_add_fn(const lks__exec *ex, lks__act *dx, const lks__act *dy,
                                      size_t lddy, const float *w, size_t rows, size_t out,
                                      size_t in);

/* A gradient of parameters (dw, db, dgain, …) is added to the previous contents, so that
 * micro-batches accumulate. With `fresh` a matrix's gradient, dw, replaces them. NULL if the
 * parameter is frozen or doesn't exist: the operation skips the work for it. */

/* dw[out, in] += dy^T x, summed over rows; db[out] += column sums of dy. */
typedef void lks__linear_bwd_w_fn(const lks__exec *ex, float *dw, float *db, const lks__act *dy,
                                  size_t lddy, const lks__act *x, size_t rows, size_t out,
                                  size_t in, bool fresh);

/* The most that a model and its updates require of operations. */
typedef struct lks__work_use {
    size_t rows; /* per pass */
    size_t n_heads;
    size_t columns;    /* per gradient that is summed over rows */
    size_t params;     /* floats */
    size_t factors[2]; /* floats of the largest first and second factor that products round */
    bool bf16;         /* products round their factors */
} lks__work_use;
/* The most bytes of memory that the device's operations allocate for themselves. */
typedef size_t lks__work_bytes_fn(const lks__work_use *use);

/* --- causal multi-head attention -------------------------------------------------------------- */

typedef struct lks__attention_shape {
    size_t B, T;
    size_t NH;  /* heads */
    size_t hs;  /* head size; C = NH * hs */
    size_t NKV; /* number of key/value heads, a divisor of NH; 0: NH */
} lks__attention_shape;

/* Queries [B,T,NH,hs], ldq elements per token; keys and values [B,T,NKV,hs], ldkv elements per
 * token. Query head h reads key/value head h / (NH / NKV) (Ainslie et al., GQA, 2023). */
typedef struct lks__attention_in {
    const lks__act *q, *k, *v;
    size_t ldq, ldkv;
} lks__attention_in;

/* The gradients of these, with the same layout. */
typedef struct lks__attention_grads {
    lks__act *dq, *dk, *dv;
    size_t ldq, ldkv;
} lks__attention_grads;

/* Scores are q.k / sqrt(hs). Dropout acts on the probabilities (element ((b*NH + h)*T + i)*T + j of
 * `drop`'s mask), as in scaled_dot_product_attention(dropout_p).
 *
 * out [B,T,C]; lse [B,NH,T] out: log-sum-exp of each row, for backward; may be NULL. */
typedef void lks__attention_fwd_fn(const lks__exec *ex, const lks__attention_shape *shape,
                                   lks__act *out, float *lse, const lks__attention_in *in,
                                   const lks__dropout *drop);

/* The gradients are overwritten. dout, out [B,T,C]. */
typedef void lks__attention_bwd_fn(const lks__exec *ex, const lks__attention_shape *shape,
                                   const lks__attention_grads *grads, const lks__act *dout,
                                   const lks__attention_in *in, const lks__act *out,
                                   const float *lse, const lks__dropout *drop);

/* Keys and values of the earlier tokens: [B, NKV, T, hs] each, of which the first `at` positions
 * are filled. */
typedef struct lks__attention_cache {
    lks__act *k, *v;
    size_t T, at;
} lks__attention_cache;

/* Attention of `shape->T` new tokens of each sequence, at positions from `at` on. Stores their keys
 * and values in the cache; each token reads the cache up to itself. out [B, T, C]; a token's bits
 * don't depend on the number of new tokens. No dropout. */
typedef void lks__attention_cached_fwd_fn(const lks__exec *ex, const lks__attention_shape *shape,
                                          lks__act *out, const lks__attention_cache *cache,
                                          const lks__attention_in *in);

/* Views of qkv [B,T,3C]: a token's q, k, v are consecutive, and so are the heads within each
 * (nanoGPT's c_attn); act_bytes: per element. */
lks__attention_in lks__attention_packed(const lks__attention_shape *shape, const lks__act *qkv,
                                        size_t act_bytes);
lks__attention_grads lks__attention_packed_grads(const lks__attention_shape *shape, lks__act *dqkv,
                                                 size_t act_bytes);

#define LKS__ATTENTION_MAX_SCORES LKS__DROPOUT_MOST
enum { LKS__ATTENTION_MAX_T = 1 << 17 }; /* its square is LKS__ATTENTION_MAX_SCORES */

/* Call it once before the two above. ERR_CONFIG for an empty shape, for an NKV that doesn't divide
 * NH, and for more scores than a dropout mask can number. */
lks_status lks__attention_check(const lks__attention_shape *shape);

/* --- embedding, norms, dropout: gpt2 --------------------------------------------------------- */

/* x[rows, C] = dropout(wte[token] + wpe[position]); rows are B sequences of T. */
typedef void lks__embedding_fwd_fn(const lks__exec *ex, lks__act *x, const int32_t *tokens,
                                   const float *wte, const float *wpe, size_t rows, size_t T,
                                   size_t C, const lks__dropout *drop);
/* dwte, dwpe += gradient; rows are added in order for every element. */
typedef void lks__embedding_bwd_fn(const lks__exec *ex, float *dwte, float *dwpe,
                                   const lks__act *dx, const int32_t *tokens, size_t rows, size_t T,
                                   size_t C);

typedef void lks__layernorm_rows_fwd_fn(const lks__exec *ex, lks__act *y, float *mean, float *rstd,
                                        const lks__act *x, const float *gain, const float *bias,
                                        size_t rows, size_t C);
/* dx, dgain, dbias += gradient. `partial` is work space. */
typedef void lks__layernorm_rows_bwd_fn(const lks__exec *ex, lks__act *dx, float *dgain,
                                        float *dbias, const lks__act *dy, const lks__act *x,
                                        const float *gain, const float *mean, const float *rstd,
                                        size_t rows, size_t C, float *partial);
/* Floats of that `partial`. */
typedef size_t lks__layernorm_partial_floats_fn(size_t rows, size_t C);

typedef void lks__dropout_rows_fn(const lks__exec *ex, lks__act *y, const lks__act *x, size_t rows,
                                  size_t C, const lks__dropout *drop);

/* --- golf ------------------------------------------------------------------------------------ */

/* Floats of `partial`, which is work space, for the most demanding operation below. */
typedef size_t lks__golf_partial_floats_fn(size_t rows, size_t C, size_t n_heads);

/* x[rows, C] = rmsnorm(tok_emb[token]). */
typedef void lks__golf_embed_fwd_fn(const lks__exec *ex, lks__act *x, float *rms,
                                    const int32_t *tokens, const float *emb, size_t rows, size_t C);
/* demb += gradient (not NULL); rows are added in order for every element. d_row [rows, C] is
 * scratch. */
typedef void lks__golf_embed_bwd_fn(const lks__exec *ex, float *demb, lks__act *d_row,
                                    const lks__act *dx, const int32_t *tokens, const float *emb,
                                    const float *rms, size_t rows, size_t C);

typedef void lks__golf_norm_fwd_fn(const lks__exec *ex, lks__act *y, float *rms, const lks__act *x,
                                   size_t rows, size_t C);
/* dx = gradient (overwritten). */
typedef void lks__golf_norm_bwd_fn(const lks__exec *ex, lks__act *dx, const lks__act *dy,
                                   const lks__act *x, const float *rms, size_t rows, size_t C);

/* The input of a block: in = prev + skip_weight * skip (or prev itself if skip is NULL), x = mix[0]
 * * in + mix[1] * x0, norm = rmsnorm(x). */
typedef struct lks__golf_entry {
    const lks__act *prev, *skip, *x0;
    const float *mix, *skip_weight; /* mix [2, C] */
    lks__act *x, *norm;
    float *rms;
} lks__golf_entry;
typedef void lks__golf_entry_fwd_fn(const lks__exec *ex, const lks__golf_entry *e, size_t rows,
                                    size_t C);
/* dx: on entry the gradient of x without the part from its norm, on return the gradient of prev.
 * dnorm: gradient of norm. dx0, dmix, dskip_weight += gradient. dskip is overwritten, and so is
 * e->x if there is a skip. */
typedef void lks__golf_entry_bwd_fn(const lks__exec *ex, const lks__golf_entry *e, lks__act *dx,
                                    lks__act *dx0, float *dmix, lks__act *dskip,
                                    float *dskip_weight, const lks__act *dnorm, size_t rows,
                                    size_t C, float *partial);

/* Backward from out = x + scale * y to y: dy = dx * scale. Before that, if given, dx += the
 * gradient of the RMSNorm of normed, whose output has gradient dnorm, or dx += add. */
typedef struct lks__golf_branch {
    lks__act *dx, *dy;
    const float *scale;
    const lks__act *dnorm, *normed; /* or NULL */
    const float *rms;
    const lks__act *add; /* or NULL */
} lks__golf_branch;
typedef void lks__golf_branch_bwd_fn(const lks__exec *ex, const lks__golf_branch *b, size_t rows,
                                     size_t C);

/* Gradients of w[C, in] and scale[C] in y = scale * (input w^T), from product = dy^T input. dw +=
 * scale * product; dscale += the sum of w * product, row by row. So the scale's gradient needs no
 * copy of input w^T. */
typedef struct lks__golf_scaled {
    float *dw, *dscale;
    const float *product, *w, *scale;
    bool fresh;
} lks__golf_scaled;
typedef void lks__golf_scaled_bwd_fn(const lks__exec *ex, const lks__golf_scaled *s, size_t C,
                                     size_t in);

/* Queries and keys: norm, rotary position, and the gain of queries; raw [rows, heads * hs] in. */
typedef struct lks__golf_heads {
    size_t rows, T, n_head, n_kv_head, hs;
    const float *cosine, *sine; /* [T, hs / 2] */
    const float *gain;          /* [n_head] */
    const lks__act *q_raw, *k_raw;
    lks__act *q, *k;
    float *q_rms, *k_rms; /* [rows, heads] */
} lks__golf_heads;
typedef void lks__golf_heads_fwd_fn(const lks__exec *ex, const lks__golf_heads *h);
/* dq, dk: on entry gradients of q, k; on return of q_raw, k_raw. dgain += gradient. */
typedef void lks__golf_heads_bwd_fn(const lks__exec *ex, const lks__golf_heads *h, lks__act *dq,
                                    lks__act *dk, float *dgain, float *partial);

/* --- the head -------------------------------------------------------------------------------- */

typedef struct lks__xent {
    size_t rows, V, ld; /* logits [rows, V] with leading dimension ld */
    float scale;        /* of the gradient */
    float softcap;      /* logits are cap * tanh(logit / cap); 0: unchanged */
    bool grad;          /* replace the logits by their gradient */
} lks__xent;

/* row_loss[rows] out: each row's cross-entropy. */
typedef void lks__xent_rows_fn(const lks__exec *ex, const lks__xent *xent, lks__act *logits,
                               const int32_t *targets, double *row_loss);
/* loss: the mean of row_loss[rows], summed in an order that depends only on `rows`. */
typedef void lks__mean_loss_fn(const lks__exec *ex, float *loss, const double *row_loss,
                               size_t rows);
/* Bytes of the logits that the head sums in one product, counted as float32 (model/head.h). The
 * division into products changes bits of the gradient, so it depends only on the kind of device. */
typedef size_t lks__head_bytes_fn(void);
/* y[n] = cap * tanh(logits / cap), or the logits unchanged if the cap is 0. If activations are
 * floats, y and logits may be the same memory. */
typedef void lks__cap_logits_fn(const lks__exec *ex, float *y, const lks__act *logits, size_t n,
                                float cap);

/* --- updates of parameters ------------------------------------------------------------------- */

/* An update processes a list of pieces, which need not be adjacent. Their pointers are to memory of
 * the device; the lists are read before the call returns. The arenas pad each tensor with zeros to
 * a multiple of 16 elements: the padding may be updated, too, and stays zero. A longer list takes
 * several calls, which changes no bit. */
enum { LKS__UPDATE_PIECES = 64 };

/* y = a * y + b * x, or y = 0 for a piece without an x. */
typedef struct lks__blend {
    float a, b;
    size_t n_pieces;
    struct {
        float *y;
        const float *x; /* or NULL */
        size_t n;
    } piece[LKS__UPDATE_PIECES];
} lks__blend;
typedef void lks__update_blend_fn(const lks__exec *ex, const lks__blend *blend);

/* torch.optim.AdamW's formula (Loshchilov and Hutter, 2019); without decay it is Adam's. */
typedef struct lks__adamw_list {
    double lr, beta1, beta2, eps, weight_decay;
    uint64_t t;  /* number of this update: 1, 2, … */
    double clip; /* factor that is first applied to the gradient */
    size_t n_pieces;
    struct {
        float *params, *exp_avg, *exp_avg_sq;
        const float *grads;
        size_t n;
    } piece[LKS__UPDATE_PIECES];
} lks__adamw_list;
typedef void lks__update_adamw_fn(const lks__exec *ex, const lks__adamw_list *list);

/* Muon (Jordan et al., 2024) as parameter-golf's train_gpt.py has it, for each matrix:
 *   momentum = m * momentum + g;  u = g + m * momentum;
 *   params -= lr * sqrt(max(1, rows / cols)) * newton_schulz(u).
 * newton_schulz(X): X is divided by its Frobenius norm + 1e-7; then, ns_steps times, with A the
 * Gram matrix over the shorter side,  X <- aX + (bA + cA²)X,  a, b, c = 3.4445, -4.7750, 2.0315.
 * The products are in the device's precision, all else is float32. */
typedef struct lks__muon_list {
    double lr, momentum;
    double clip; /* factor that is first applied to the gradient */
    int ns_steps;
    void *work; /* memory of the device, 64-byte aligned; its contents don't matter */
    size_t work_bytes;
    lks__beat beat;  /* after each iteration of a matrix. A device that computes later ignores it */
    size_t n_pieces; /* the most expensive ones first, if the device is to divide them evenly */
    struct {
        size_t rows, cols;
        float *params, *momentum;
        const float *grads;
    } piece[LKS__UPDATE_PIECES];
} lks__muon_list;
typedef void lks__update_muon_fn(const lks__exec *ex, const lks__muon_list *list);
/* Bytes of work memory for a matrix of this shape. A list needs the bytes of its largest matrix.
 * With a multiple of that, a device works on several matrices at once, which changes no bit. */
typedef size_t lks__update_muon_bytes_fn(const lks__exec *ex, size_t rows, size_t cols);

/* --- the table ------------------------------------------------------------------------------- */

/* Two lists make the table and the CPU's declarations: operations, and questions, which are
 * answered at once. */
#define LKS__LAYER_MAP(X)                                                                          \
    X(clear)                                                                                       \
    X(accumulate)                                                                                  \
    X(copy)                                                                                        \
    X(first_not_finite)                                                                            \
    X(act_clear)                                                                                   \
    X(act_accumulate)                                                                              \
    X(act_copy)                                                                                    \
    X(act_first_not_finite)                                                                        \
    X(linear_fwd)                                                                                  \
    X(linear_rows_fwd)                                                                             \
    X(linear_bwd_x)                                                                                \
    X(linear_bwd_x_add)                                                                            \
    X(linear_bwd_w)                                                                                \
    X(activation_fwd)                                                                              \
    X(attention_fwd)                                                                               \
    X(attention_bwd)                                                                               \
    X(attention_cached_fwd)                                                                        \
    X(embedding_fwd)                                                                               \
    X(embedding_bwd)                                                                               \
    X(layernorm_rows_fwd)                                                                          \
    X(layernorm_rows_bwd)                                                                          \
    X(dropout_rows)                                                                                \
    X(golf_embed_fwd)                                                                              \
    X(golf_embed_bwd)                                                                              \
    X(golf_norm_fwd)                                                                               \
    X(golf_norm_bwd)                                                                               \
    X(golf_entry_fwd)                                                                              \
    X(golf_entry_bwd)                                                                              \
    X(golf_branch_bwd)                                                                             \
    X(golf_scaled_bwd)                                                                             \
    X(golf_heads_fwd)                                                                              \
    X(golf_heads_bwd)                                                                              \
    X(xent_rows)                                                                                   \
    X(mean_loss)                                                                                   \
    X(cap_logits)                                                                                  \
    X(update_blend)                                                                                \
    X(update_adamw)                                                                                \
    X(update_muon)                                                                                 \
    X(update_muon_bytes)

#define LKS__LAYER_QUESTION_MAP(X)                                                                 \
    X(act_bytes)                                                                                   \
    X(work_bytes)                                                                                  \
    X(head_bytes)                                                                                  \
    X(layernorm_partial_floats)                                                                    \
    X(golf_partial_floats)

typedef struct lks__layers {
#define X(name) lks__##name##_fn *name;
    LKS__LAYER_MAP(X)
    LKS__LAYER_QUESTION_MAP(X)
#undef X
} lks__layers;

extern const lks__layers lks__layers_cpu;
