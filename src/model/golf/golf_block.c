/* model/golf/golf_block.c - one transformer block of parameter-golf's train_gpt.py, both ways. */
#include <string.h>

#include "model/golf/golf.h"

static lks__attention_shape attention_shape(const lks__pass *p)
{
    const struct lks__golf *m = p->m;
    return (lks__attention_shape){(size_t)p->mb->B, (size_t)p->mb->T, (size_t)m->f.c.n_head, m->hs,
                                  (size_t)m->f.c.n_kv_head};
}

static bool recomputes(const struct lks__golf *m)
{
    return m->f.recompute >= LKS__RECOMPUTE_ROWS;
}

/* The activation's own memory if it is kept for backward, else `work`. */
static lks__act *kept_or(lks__act *kept, lks__act *work)
{
    return kept != NULL ? kept : work;
}

static lks__attention_in attention_in(const struct lks__golf *m, int l, const lks__golf_heads *h)
{
    return (lks__attention_in){h->q, h->k, lks__golf_acts_of(m, l)->v, m->f.C, m->KV};
}

/* `k`: where rotated keys are, unless they are kept. */
static lks__golf_heads heads_of(const lks__pass *p, int l, lks__act *k)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    return (lks__golf_heads){.rows = p->rows,
                             .T = (size_t)p->mb->T,
                             .n_head = (size_t)m->f.c.n_head,
                             .n_kv_head = (size_t)m->f.c.n_kv_head,
                             .hs = m->hs,
                             .cosine = m->cosine + lks__pass_at(p) * (m->hs / 2),
                             .sine = m->sine + lks__pass_at(p) * (m->hs / 2),
                             .gain = p->params + lks__golf_tensors_of(m, l)->gain,
                             .q_raw = a->q_raw,
                             .k_raw = a->k_raw,
                             .q = a->q,
                             .k = kept_or(a->k, k),
                             .q_rms = a->q_rms,
                             .k_rms = a->k_rms};
}

/* Layer n_enc + i also reads the output of layer n_enc - 1 - i. */
static size_t skip_row(const struct lks__golf *m, int l)
{
    size_t i = (size_t)l - m->n_enc;
    return (size_t)l >= m->n_enc && i < m->n_enc ? i : SIZE_MAX;
}

/* `x`: where the layer's mixed input is, unless it is kept. */
static lks__golf_entry entry_of(const lks__pass *p, int l, lks__act *x)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    size_t i = skip_row(m, l);
    lks__golf_entry e = {.prev = lks__golf_input(m, l),
                         .x0 = m->f.x0,
                         .mix = p->params + lks__golf_tensors_of(m, l)->mix,
                         .x = kept_or(a->x, x),
                         .norm = a->norm1,
                         .rms = a->rms};
    if (i != SIZE_MAX) {
        e.skip = lks__golf_acts_of(m, (int)(m->n_enc - 1 - i))->out;
        e.skip_weight = p->params + m->t.skip_weights + i * m->f.C;
    }
    return e;
}

/* --- forward --------------------------------------------------------------------------------- */

static void attention_forward(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_tensors *t = lks__golf_tensors_of(m, l);
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    const float *w = p->params;
    const size_t rows = p->rows, C = m->f.C, KV = m->KV;
    lks__linear_fwd_fn *linear = lks__pass_linear(p, m->f.layers);

    const lks__golf_entry entry = entry_of(p, l, a->out); /* not in use yet */
    m->f.layers->golf_entry_fwd(m->f.ex, &entry, rows, C);
    linear(m->f.ex, a->q_raw, C, a->norm1, w + t->wq, rows, C, C, NULL);
    linear(m->f.ex, a->k_raw, KV, a->norm1, w + t->wk, rows, KV, C, NULL);
    linear(m->f.ex, a->v, KV, a->norm1, w + t->wv, rows, KV, C, NULL);
    const lks__golf_heads heads = heads_of(p, l, m->wide);
    m->f.layers->golf_heads_fwd(m->f.ex, &heads);
    const lks__attention_shape shape = attention_shape(p);
    const lks__attention_in in = attention_in(m, l, &heads);
    lks__pass_attention(p, l, &shape, a->att, a->lse, &in, NULL);
    const lks__epilogue branch = {LKS__EPILOGUE_BRANCH, .out = a->x_mid, .in = entry.x,
                                  .scale = w + t->attn_scale};
    linear(m->f.ex, m->norm, C, a->att, w + t->wo, rows, C, C, &branch);
}

static void mlp_forward(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_tensors *t = lks__golf_tensors_of(m, l);
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    const float *w = p->params;
    const size_t rows = p->rows, C = m->f.C, H = m->H;
    lks__linear_fwd_fn *linear = lks__pass_linear(p, m->f.layers);

    m->f.layers->golf_norm_fwd(m->f.ex, a->norm2, a->rms2, a->x_mid, rows, C);
    const lks__epilogue relu2 = {LKS__EPILOGUE_RELU2, .out = a->relu2};
    linear(m->f.ex, a->fc, H, a->norm2, w + t->fc, rows, H, C, p->recompute ? NULL : &relu2);
    if (p->recompute)
        return;
    const lks__epilogue branch = {LKS__EPILOGUE_BRANCH, .out = a->out, .in = a->x_mid,
                                  .scale = w + t->mlp_scale};
    linear(m->f.ex, m->norm, C, a->relu2, w + t->fc2, rows, C, H, &branch);
}

void lks__golf_block_forward(const lks__pass *p, int l)
{
    attention_forward(p, l);
    mlp_forward(p, l);
}

/* --- backward -------------------------------------------------------------------------------- */

/* The gradient of a tensor of layer `l`; NULL if it isn't needed. */
static float *grad_of(const lks__pass *p, int l, size_t offset)
{
    const struct lks__golf *m = p->m;
    return lks__grad_at(p, m->f.table->n_groups - 2 - l, offset); /* in the order of backward */
}

static float *skip_grad(const lks__pass *p, size_t row)
{
    const struct lks__golf *m = p->m;
    float *g = lks__grad_at(p, m->f.table->n_groups - 1, m->t.skip_weights);
    return g == NULL || row == SIZE_MAX ? NULL : g + row * m->f.C;
}

/* Whether backward in layer `l` must reach its entry; the next two: q, k and v, and the attention
 * half. */
static bool needs_entry(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    return l > m->f.lowest || grad_of(p, l, lks__golf_tensors_of(m, l)->mix) != NULL ||
           skip_grad(p, skip_row(m, l)) != NULL;
}

static bool needs_heads(const lks__pass *p, int l)
{
    const struct lks__golf_tensors *t = lks__golf_tensors_of(p->m, l);
    return needs_entry(p, l) || grad_of(p, l, t->gain) != NULL || grad_of(p, l, t->wq) != NULL ||
           grad_of(p, l, t->wk) != NULL || grad_of(p, l, t->wv) != NULL;
}

static bool needs_attention(const lks__pass *p, int l)
{
    const struct lks__golf_tensors *t = lks__golf_tensors_of(p->m, l);
    return needs_heads(p, l) || grad_of(p, l, t->attn_scale) != NULL ||
           grad_of(p, l, t->wo) != NULL;
}

/* Compute the gradient of a matrix w[out, C] that multiplies a norm's output x, if it is needed. */
static void matrix_grad(const lks__pass *p, int l, size_t w, const lks__act *dy, const lks__act *x,
                        size_t out)
{
    const struct lks__golf *m = p->m;
    float *dw = grad_of(p, l, w);
    if (dw != NULL)
        m->f.layers->linear_bwd_w(m->f.ex, dw, NULL, dy, out, x, p->rows, out, m->f.C,
                                  p->bw->fresh);
}

/* Gradients of a branch's projection w[C, in] and of its scale, from the gradient m->dx of x +
 * scale * (input w^T): the product's gradient is dx^T input, scaled row by row. */
static void projection_backward(const lks__pass *p, int l, size_t w, size_t scale,
                                const lks__act *input, size_t in)
{
    const struct lks__golf *m = p->m;
    float *dw = grad_of(p, l, w), *dscale = grad_of(p, l, scale);
    if (dw == NULL && dscale == NULL)
        return;
    m->f.layers->linear_bwd_w(m->f.ex, m->product, NULL, m->dx, m->f.C, input, p->rows, m->f.C, in,
                              true);
    const lks__golf_scaled s = {.dw = dw,
                                .dscale = dscale,
                                .product = m->product,
                                .w = p->params + w,
                                .scale = p->params + scale,
                                .fresh = p->bw->fresh};
    m->f.layers->golf_scaled_bwd(m->f.ex, &s, m->f.C, in);
}

/* Buffer for the skip's gradient of the output of layer `l` of the first half. It reuses the output
 * of the layer at the other end of the skip, which is no longer needed. */
static lks__act *dskip_of(const struct lks__golf *m, int l)
{
    return lks__golf_acts_of(m, (int)(2 * m->n_enc) - 1 - l)->out;
}

/* m->dx remains the gradient of x_mid, without the part from x_mid's norm, which is stored in
 * m->norm. */
static void mlp_backward(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_tensors *t = lks__golf_tensors_of(m, l);
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    const float *w = p->params;
    const size_t rows = p->rows, C = m->f.C, H = m->H;

    const lks__golf_branch branch = {.dx = m->dx,
                                     .dy = a->out,
                                     .scale = w + t->mlp_scale,
                                     .add = (size_t)l < m->n_enc ? dskip_of(m, l) : NULL};
    m->f.layers->golf_branch_bwd(m->f.ex, &branch, rows, C);
    if (recomputes(m))
        m->f.layers->activation_fwd(m->f.ex, LKS__EPILOGUE_RELU2, a->relu2, a->fc, rows, H);
    projection_backward(p, l, t->fc2, t->mlp_scale, a->relu2, H);
    if (!needs_attention(p, l) && grad_of(p, l, t->fc) == NULL)
        return;
    const lks__epilogue relu2_bwd = {LKS__EPILOGUE_RELU2_BWD, .in = a->fc};
    m->f.layers->linear_bwd_x(m->f.ex, m->wide, a->out, C, w + t->fc2, rows, C, H, &relu2_bwd);
    if (recomputes(m))
        m->f.layers->golf_norm_fwd(m->f.ex, a->norm2, a->rms2, a->x_mid, rows, C);
    matrix_grad(p, l, t->fc, m->wide, a->norm2, H);
    if (needs_attention(p, l))
        m->f.layers->linear_bwd_x(m->f.ex, m->norm, m->wide, H, w + t->fc, rows, H, C, NULL);
}

/* Stores the gradient of the mixed input's norm in the layer's att, and a recomputed mixed input in
 * its x_mid; both are no longer needed. */
static void attention_backward(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_tensors *t = lks__golf_tensors_of(m, l);
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    const float *w = p->params;
    const size_t rows = p->rows, C = m->f.C, KV = m->KV;
    lks__act *dq = m->wide, *dk = lks__act_at(dq, rows * C, m->f.act_bytes);
    lks__act *dv = lks__act_at(dk, rows * KV, m->f.act_bytes);

    const lks__golf_branch branch = {.dx = m->dx,
                                     .dy = a->out,
                                     .scale = w + t->attn_scale,
                                     .dnorm = m->norm,
                                     .normed = a->x_mid,
                                     .rms = a->rms2};
    m->f.layers->golf_branch_bwd(m->f.ex, &branch, rows, C);
    projection_backward(p, l, t->wo, t->attn_scale, a->att, C);
    if (!needs_heads(p, l))
        return;
    m->f.layers->linear_bwd_x(m->f.ex, a->x_mid, a->out, C, w + t->wo, rows, C, C, NULL);

    const lks__golf_heads heads = heads_of(p, l, a->out);
    if (recomputes(m))
        m->f.layers->golf_heads_fwd(m->f.ex, &heads);
    const lks__attention_shape shape = attention_shape(p);
    const lks__attention_in in = attention_in(m, l, &heads);
    const lks__attention_grads grads = {dq, dk, dv, C, KV};
    m->f.layers->attention_bwd(m->f.ex, &shape, &grads, a->x_mid, &in, a->att, a->lse, NULL);
    m->f.layers->golf_heads_bwd(m->f.ex, &heads, dq, dk, grad_of(p, l, t->gain), m->partial);
    const lks__golf_entry entry = entry_of(p, l, a->x_mid);
    if (recomputes(m))
        m->f.layers->golf_entry_fwd(m->f.ex, &entry, rows, C);
    matrix_grad(p, l, t->wq, dq, a->norm1, C);
    matrix_grad(p, l, t->wk, dk, a->norm1, KV);
    matrix_grad(p, l, t->wv, dv, a->norm1, KV);
    if (!needs_entry(p, l))
        return;
    m->f.layers->linear_bwd_x(m->f.ex, a->att, dq, C, w + t->wq, rows, C, C, NULL);
    m->f.layers->linear_bwd_x_add(m->f.ex, a->att, dk, KV, w + t->wk, rows, KV, C);
    m->f.layers->linear_bwd_x_add(m->f.ex, a->att, dv, KV, w + t->wv, rows, KV, C);
}

void lks__golf_block_backward(const lks__pass *p, int l)
{
    const struct lks__golf *m = p->m;
    const struct lks__golf_acts *a = lks__golf_acts_of(m, l);
    mlp_backward(p, l);
    if (!needs_attention(p, l))
        return;
    attention_backward(p, l);
    if (!needs_entry(p, l))
        return;
    const lks__golf_entry entry = entry_of(p, l, a->x_mid);
    size_t i = skip_row(m, l);
    lks__act *dskip = i == SIZE_MAX ? NULL : dskip_of(m, (int)(m->n_enc - 1 - i));
    m->f.layers->golf_entry_bwd(m->f.ex, &entry, m->dx, m->dx0,
                                grad_of(p, l, lks__golf_tensors_of(m, l)->mix), dskip,
                                skip_grad(p, i), a->att, p->rows, m->f.C, m->partial);
}
