/* model/gpt2/gpt2_block.c - a transformer block of the gpt2 family, forward and backward. */
#include "model/gpt2/gpt2.h"

#include <stddef.h>

/* --- dropout --------------------------------------------------------------------------------- */

lks__dropout lks__gpt2_dropout(const lks__pass *p, int layer, int place)
{
    const struct lks__gpt2 *m = p->m;
    lks__dropout d = {0};
    d.scale = 1.0f;
    if (p->bw == NULL || m->f.c.dropout == 0.0f)
        return d;
    d.key = lks__philox_key_of(p->bw->seed);
    d.step = p->bw->step;
    d.vm = p->bw->vm;
    d.site = (uint32_t)(layer * 8 + place);
    d.threshold = (uint32_t)((double)m->f.c.dropout * 4294967296.0);
    d.scale = (float)(1.0 / (1.0 - (double)m->f.c.dropout));
    return d;
}

const lks__act *lks__gpt2_dropped(const lks__pass *p, const lks__act *d, const lks__dropout *drop)
{
    if (drop->threshold == 0)
        return d;
    const struct lks__gpt2 *m = p->m;
    m->f.layers->dropout_rows(m->f.ex, m->d_drop, d, p->rows, m->f.C, drop);
    return m->d_drop;
}

/* --- the block ------------------------------------------------------------------------------- */

static lks__attention_shape attention_shape(const lks__pass *p)
{
    const lks__model_config *c = &((const struct lks__gpt2 *)p->m)->f.c;
    lks__attention_shape s = {(size_t)p->mb->B, (size_t)p->mb->T, (size_t)c->n_head,
                              (size_t)(c->n_embd / c->n_head), 0};
    return s;
}

static lks__epilogue_kind gelu_of(const struct lks__gpt2 *m)
{
    return m->f.c.gelu_tanh ? LKS__EPILOGUE_GELU_TANH : LKS__EPILOGUE_GELU;
}

/* The outputs of both norms: computed in forward and, with --recompute, again in backward. */
static void norm1_forward(const lks__pass *p, int l)
{
    const struct lks__gpt2 *m = p->m;
    const struct lks__gpt2_tensors *t = lks__gpt2_tensors_of(m, l);
    const struct lks__gpt2_acts *a = lks__gpt2_acts_of(m, l);
    m->f.layers->layernorm_rows_fwd(m->f.ex, a->ln1, a->mean1, a->rstd1, lks__gpt2_input(m, l),
                                    p->params + t->ln1w, lks__gpt2_at(p->params, t->ln1b), p->rows,
                                    m->f.C);
}

static void norm2_forward(const lks__pass *p, int l)
{
    const struct lks__gpt2 *m = p->m;
    const struct lks__gpt2_tensors *t = lks__gpt2_tensors_of(m, l);
    const struct lks__gpt2_acts *a = lks__gpt2_acts_of(m, l);
    m->f.layers->layernorm_rows_fwd(m->f.ex, a->ln2, a->mean2, a->rstd2, a->x_mid,
                                    p->params + t->ln2w, lks__gpt2_at(p->params, t->ln2b), p->rows,
                                    m->f.C);
}

void lks__gpt2_block_forward(const lks__pass *p, int l)
{
    const struct lks__gpt2 *m = p->m;
    const lks__layers *layers = m->f.layers;
    const lks__exec *ex = m->f.ex;
    const struct lks__gpt2_tensors *t = lks__gpt2_tensors_of(m, l);
    const struct lks__gpt2_acts *a = lks__gpt2_acts_of(m, l);
    const lks__act *x = lks__gpt2_input(m, l);
    const float *w = p->params;
    const size_t rows = p->rows, C = m->f.C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = lks__gpt2_dropout(p, l, LKS__DROP_ATTENTION);
    const lks__dropout drop_proj = lks__gpt2_dropout(p, l, LKS__DROP_PROJECTION);
    const lks__dropout drop_mlp = lks__gpt2_dropout(p, l, LKS__DROP_MLP);
    lks__linear_fwd_fn *linear = lks__pass_linear(p, layers);

    norm1_forward(p, l);
    const lks__epilogue qkv = {.bias = lks__gpt2_at(w, t->qkvb)};
    linear(ex, a->qkv, 3 * C, a->ln1, w + t->qkvw, rows, 3 * C, C, &qkv);
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv, m->f.act_bytes);
    lks__pass_attention(p, l, &shape, a->att, a->lse, &in, &drop_att);
    const lks__epilogue proj = {LKS__EPILOGUE_RESIDUAL, .bias = lks__gpt2_at(w, t->projb), .in = x,
                                .drop = &drop_proj};
    linear(ex, a->x_mid, C, a->att, w + t->projw, rows, C, C, &proj);

    norm2_forward(p, l);
    const lks__epilogue fc = {p->recompute ? LKS__EPILOGUE_NONE : gelu_of(m),
                              .bias = lks__gpt2_at(w, t->fcb), .out = a->gelu};
    linear(ex, a->fc, 4 * C, a->ln2, w + t->fcw, rows, 4 * C, C, &fc);
    if (p->recompute)
        return;
    const lks__epilogue fc2 = {LKS__EPILOGUE_RESIDUAL, .bias = lks__gpt2_at(w, t->fc2b),
                               .in = a->x_mid, .drop = &drop_mlp};
    linear(ex, a->out, C, a->gelu, w + t->fc2w, rows, C, 4 * C, &fc2);
}

/* A product's gradients of its matrix and its bias, if they are needed. */
static void linear_grads(const lks__pass *p, int l, size_t w, size_t bias, const lks__act *dy,
                         const lks__act *x, size_t out, size_t in)
{
    const struct lks__gpt2 *m = p->m;
    const int group = m->f.c.n_layer - l;
    float *dw = lks__grad_at(p, group, w), *db = lks__grad_at(p, group, bias);
    if (dw != NULL || db != NULL)
        m->f.layers->linear_bwd_w(m->f.ex, dw, db, dy, out, x, p->rows, out, in, p->bw->fresh);
}

/* A LayerNorm's gradients of its weight and bias; and m->dx += the gradient of its input. */
static void norm_backward(const lks__pass *p, int l, size_t w, size_t bias, const lks__act *dy,
                          const lks__act *x, const float *mean, const float *rstd)
{
    const struct lks__gpt2 *m = p->m;
    const int group = m->f.c.n_layer - l;
    m->f.layers->layernorm_rows_bwd(m->f.ex, m->dx, lks__grad_at(p, group, w),
                                    lks__grad_at(p, group, bias), dy, x, p->params + w, mean, rstd,
                                    p->rows, m->f.C, m->ln_partial);
}

#define CONTINUES_BELOW(field) lks__continues_below(p, l, offsetof(struct lks__gpt2_tensors, field))

static void gpt2_attention_backward(const lks__pass *p, int l)
{
    const struct lks__gpt2 *m = p->m;
    const lks__layers *layers = m->f.layers;
    const struct lks__gpt2_tensors *t = lks__gpt2_tensors_of(m, l);
    const struct lks__gpt2_acts *a = lks__gpt2_acts_of(m, l);
    lks__act *d_row = m->f.dy;
    const size_t rows = p->rows, C = m->f.C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = lks__gpt2_dropout(p, l, LKS__DROP_ATTENTION);
    const lks__dropout drop_proj = lks__gpt2_dropout(p, l, LKS__DROP_PROJECTION);
    const bool recompute = m->f.recompute >= LKS__RECOMPUTE_ROWS;

    const lks__act *d = lks__gpt2_dropped(p, m->dx, &drop_proj);
    linear_grads(p, l, t->projw, t->projb, d, a->att, C, C);
    if (!CONTINUES_BELOW(projw))
        return;
    layers->linear_bwd_x(m->f.ex, d_row, d, C, p->params + t->projw, rows, C, C, NULL);
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv, m->f.act_bytes);
    const lks__attention_grads grads =
        lks__attention_packed_grads(&shape, m->d_wide, m->f.act_bytes);
    layers->attention_bwd(m->f.ex, &shape, &grads, d_row, &in, a->att, a->lse, &drop_att);
    if (recompute)
        norm1_forward(p, l);
    linear_grads(p, l, t->qkvw, t->qkvb, m->d_wide, a->ln1, 3 * C, C);
    if (!CONTINUES_BELOW(qkvw))
        return;
    layers->linear_bwd_x(m->f.ex, d_row, m->d_wide, 3 * C, p->params + t->qkvw, rows, 3 * C, C,
                         NULL);
    norm_backward(p, l, t->ln1w, t->ln1b, d_row, lks__gpt2_input(m, l), a->mean1, a->rstd1);
}

void lks__gpt2_block_backward(const lks__pass *p, int l)
{
    const struct lks__gpt2 *m = p->m;
    const lks__layers *layers = m->f.layers;
    const struct lks__gpt2_tensors *t = lks__gpt2_tensors_of(m, l);
    const struct lks__gpt2_acts *a = lks__gpt2_acts_of(m, l);
    lks__act *d_row = m->f.dy; /* its contents have been used */
    const size_t rows = p->rows, C = m->f.C;
    const lks__dropout drop_mlp = lks__gpt2_dropout(p, l, LKS__DROP_MLP);
    const bool recompute = m->f.recompute >= LKS__RECOMPUTE_ROWS;

    const lks__act *d = lks__gpt2_dropped(p, m->dx, &drop_mlp);
    if (recompute)
        layers->activation_fwd(m->f.ex, gelu_of(m), a->gelu, a->fc, rows, 4 * C);
    linear_grads(p, l, t->fc2w, t->fc2b, d, a->gelu, C, 4 * C);
    if (!CONTINUES_BELOW(fc2w))
        return;
    const lks__epilogue gelu_bwd = {
        m->f.c.gelu_tanh ? LKS__EPILOGUE_GELU_TANH_BWD : LKS__EPILOGUE_GELU_BWD, .in = a->fc};
    layers->linear_bwd_x(m->f.ex, m->d_wide, d, C, p->params + t->fc2w, rows, C, 4 * C, &gelu_bwd);
    if (recompute)
        norm2_forward(p, l);
    linear_grads(p, l, t->fcw, t->fcb, m->d_wide, a->ln2, 4 * C, C);
    if (!CONTINUES_BELOW(fcw))
        return;
    layers->linear_bwd_x(m->f.ex, d_row, m->d_wide, 4 * C, p->params + t->fcw, rows, 4 * C, C,
                         NULL);
    norm_backward(p, l, t->ln2w, t->ln2b, d_row, a->x_mid, a->mean2, a->rstd2);
    if (CONTINUES_BELOW(ln2w))
        gpt2_attention_backward(p, l);
}
