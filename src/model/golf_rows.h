/* model/golf_rows.h - what the golf family does row by row, cut over a rank's threads. Each
 * operation reads and writes a row's neighbours while they are in the first cache; gradients of
 * vectors go through `partial`, which holds each block of rows' sums, added in order. */
#ifndef LKS_MODEL_GOLF_ROWS_H
#define LKS_MODEL_GOLF_ROWS_H

#include <stdint.h>

#include "kernels/exec.h"

/* Floats of `partial` for the widest operation below. */
size_t lks__golf_partial_floats(size_t rows, size_t C, size_t n_heads);

/* x[rows, C] = rmsnorm(tok_emb[token]). */
void lks__golf_embed_fwd(const lks__exec *ex, float *x, float *rms, const int32_t *tokens,
                         const float *emb, size_t rows, size_t C);
/* demb += ; rows in order for every element. d_row [rows, C] is scratch. */
void lks__golf_embed_bwd(const lks__exec *ex, float *demb, float *d_row, const float *dx,
                         const int32_t *tokens, const float *emb, const float *rms, size_t rows,
                         size_t C);

void lks__golf_norm_fwd(const lks__exec *ex, float *y, float *rms, const float *x, size_t rows,
                        size_t C);
/* dx = gradient (overwritten). */
void lks__golf_norm_bwd(const lks__exec *ex, float *dx, const float *dy, const float *x,
                        const float *rms, size_t rows, size_t C);

/* What comes into a block: in = prev + skip_weight * skip (or prev itself where skip is NULL),
 * x = mix[0] * in + mix[1] * x0, norm = rmsnorm(x). */
typedef struct lks__golf_entry {
    const float *prev, *skip, *x0, *mix, *skip_weight; /* mix [2, C] */
    float *x, *norm, *rms;
} lks__golf_entry;
void lks__golf_entry_fwd(const lks__exec *ex, const lks__golf_entry *e, size_t rows, size_t C);
/* dx: gradient of x without its norm in, of prev out. dnorm: of norm. dx0, dmix, dskip_weight +=;
 * dskip is overwritten, and so is e->x where there is a skip. */
void lks__golf_entry_bwd(const lks__exec *ex, const lks__golf_entry *e, float *dx, float *dx0,
                         float *dmix, float *dskip, float *dskip_weight, const float *dnorm,
                         size_t rows, size_t C, float *partial);

/* relu(x)², [rows, H]. */
void lks__golf_relu2_fwd(const lks__exec *ex, float *y, const float *x, size_t rows, size_t H);

/* Back through out = x + scale * y to y: dy = dx * scale. Before that, where given, dx += the
 * gradient dnorm of the RMSNorm of normed, or dx += add. */
typedef struct lks__golf_branch {
    float *dx, *dy;
    const float *scale;
    const float *dnorm, *normed, *rms; /* or NULL */
    const float *add;                  /* or NULL */
} lks__golf_branch;
void lks__golf_branch_bwd(const lks__exec *ex, const lks__golf_branch *b, size_t rows, size_t C);

/* Gradients of w[C, in] and scale[C] in y = scale * (input w^T), from product = dy^T input: dw +=
 * scale * product and dscale += the sum of w * product, row by row. So the scale's gradient needs
 * no copy of input w^T. */
typedef struct lks__golf_scaled {
    float *dw, *dscale;
    const float *product, *w, *scale;
} lks__golf_scaled;
void lks__golf_scaled_bwd(const lks__exec *ex, const lks__golf_scaled *s, size_t C, size_t in);

/* Queries and keys: norm, rotary position, and the queries' gain; raw [rows, heads * hs] in. */
typedef struct lks__golf_heads {
    size_t rows, T, n_head, n_kv_head, hs;
    const float *cosine, *sine; /* [T, hs / 2] */
    const float *gain;          /* [n_head] */
    const float *q_raw, *k_raw;
    float *q, *k, *q_rms, *k_rms; /* rms [rows, heads] */
} lks__golf_heads;
void lks__golf_heads_fwd(const lks__exec *ex, const lks__golf_heads *h);
/* dq, dk: gradients of q, k in, of q_raw, k_raw out; dgain +=. */
void lks__golf_heads_bwd(const lks__exec *ex, const lks__golf_heads *h, float *dq, float *dk,
                         float *dgain, float *partial);

#endif
