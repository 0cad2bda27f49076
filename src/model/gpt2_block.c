/* model/gpt2_block.c - a transformer block of the gpt2 family, forward and backward. */
#include "model/gpt2.h"

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "model/rows.h"

/* --- fused tile epilogues -------------------------------------------------------------------- */

struct tile_ctx {
    float *y; /* the product */
    size_t ld;
    const float *bias; /* or NULL */
    float *out;        /* second output: gelu(y), or residual + y */
    const float *in;   /* residual, or pre-activation */
    const lks__dropout *drop;
};

static void tile_bias(const lks__exec *ex, const struct tile_ctx *t, size_t r0, size_t r1,
                      size_t c0, size_t c1)
{
    if (t->bias != NULL)
        ex->k->add_bias(t->y + r0 * t->ld + c0, t->ld, t->bias + c0, r1 - r0, c1 - c0);
}

static void epilogue_bias(const lks__exec *ex, const void *ctx, size_t r0, size_t r1, size_t c0,
                          size_t c1)
{
    tile_bias(ex, ctx, r0, r1, c0, c1);
}

static void epilogue_bias_gelu(const lks__exec *ex, const void *ctx, size_t r0, size_t r1,
                               size_t c0, size_t c1)
{
    const struct tile_ctx *t = ctx;
    tile_bias(ex, t, r0, r1, c0, c1);
    for (size_t r = r0; r < r1; r++)
        ex->k->gelu_erf_fwd(t->out + r * t->ld + c0, t->y + r * t->ld + c0, c1 - c0);
}

/* out = residual + dropout(y + bias); y may be out. */
static void epilogue_bias_dropout_residual(const lks__exec *ex, const void *ctx, size_t r0,
                                           size_t r1, size_t c0, size_t c1)
{
    const struct tile_ctx *t = ctx;
    tile_bias(ex, t, r0, r1, c0, c1);
    for (size_t r = r0; r < r1; r++) {
        float *y = t->y + r * t->ld + c0;
        if (t->drop->threshold != 0)
            ex->k->dropout(y, y, c1 - c0, r * t->ld + c0, t->drop);
        ex->k->add(y, t->in + r * t->ld + c0, c1 - c0);
    }
}

static void epilogue_gelu_bwd(const lks__exec *ex, const void *ctx, size_t r0, size_t r1, size_t c0,
                              size_t c1)
{
    const struct tile_ctx *t = ctx;
    for (size_t r = r0; r < r1; r++) {
        float *y = t->y + r * t->ld + c0;
        ex->k->gelu_erf_bwd(y, y, t->in + r * t->ld + c0, c1 - c0);
    }
}

/* --- dropout --------------------------------------------------------------------------------- */

lks__dropout lks__gpt2_dropout(const struct lks__gpt2_pass *p, int layer, int place)
{
    lks__dropout d = {0};
    d.scale = 1.0f;
    if (p->bw == NULL || p->m->c.dropout == 0.0f)
        return d;
    d.key = lks__philox_key_of(p->bw->seed);
    d.step = p->bw->step;
    d.vm = p->bw->vm;
    d.site = (uint32_t)(layer * 8 + place);
    d.threshold = (uint32_t)((double)p->m->c.dropout * 4294967296.0);
    d.scale = (float)(1.0 / (1.0 - (double)p->m->c.dropout));
    return d;
}

const float *lks__gpt2_dropped(const struct lks__gpt2_pass *p, const float *d,
                               const lks__dropout *drop)
{
    if (drop->threshold == 0)
        return d;
    lks__dropout_rows(p->m->ex, p->m->d_drop, d, p->rows, p->C, drop);
    return p->m->d_drop;
}

/* --- the block ------------------------------------------------------------------------------- */

static lks__attention_shape attention_shape(const struct lks__gpt2_pass *p)
{
    lks__attention_shape s = {(size_t)p->mb->B, (size_t)p->mb->T, (size_t)p->m->c.n_head,
                              (size_t)(p->m->c.n_embd / p->m->c.n_head), 0};
    return s;
}

void lks__gpt2_block_forward(const struct lks__gpt2_pass *p, int l, float *x_next)
{
    const lks__exec *ex = p->m->ex;
    const struct lks__gpt2_tensors *t = &p->m->lt[l];
    const struct lks__gpt2_acts *a = &p->m->la[l];
    const float *w = p->params;
    const size_t rows = p->rows, C = p->C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = lks__gpt2_dropout(p, l, LKS__DROP_ATTENTION);
    const lks__dropout drop_proj = lks__gpt2_dropout(p, l, LKS__DROP_PROJECTION);
    const lks__dropout drop_mlp = lks__gpt2_dropout(p, l, LKS__DROP_MLP);

    lks__layernorm_rows_fwd(ex, a->ln1, a->mean1, a->rstd1, a->x, w + t->ln1w,
                            lks__gpt2_at(w, t->ln1b), rows, C);
    struct tile_ctx qkv = {.y = a->qkv, .ld = 3 * C, .bias = lks__gpt2_at(w, t->qkvb)};
    lks__linear_fwd(ex, a->qkv, 3 * C, a->ln1, w + t->qkvw, rows, 3 * C, C,
                    (lks__epilogue){epilogue_bias, &qkv});
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv);
    lks__attention_fwd(ex, &shape, a->att, a->lse, &in, &drop_att);
    struct tile_ctx proj = {
        .y = a->x_mid, .ld = C, .bias = lks__gpt2_at(w, t->projb), .in = a->x, .drop = &drop_proj};
    lks__linear_fwd(ex, a->x_mid, C, a->att, w + t->projw, rows, C, C,
                    (lks__epilogue){epilogue_bias_dropout_residual, &proj});

    lks__layernorm_rows_fwd(ex, a->ln2, a->mean2, a->rstd2, a->x_mid, w + t->ln2w,
                            lks__gpt2_at(w, t->ln2b), rows, C);
    struct tile_ctx fc = {.y = a->fc, .ld = 4 * C, .bias = lks__gpt2_at(w, t->fcb), .out = a->gelu};
    lks__linear_fwd(ex, a->fc, 4 * C, a->ln2, w + t->fcw, rows, 4 * C, C,
                    (lks__epilogue){epilogue_bias_gelu, &fc});
    struct tile_ctx fc2 = {
        .y = x_next, .ld = C, .bias = lks__gpt2_at(w, t->fc2b), .in = a->x_mid, .drop = &drop_mlp};
    lks__linear_fwd(ex, x_next, C, a->gelu, w + t->fc2w, rows, C, 4 * C,
                    (lks__epilogue){epilogue_bias_dropout_residual, &fc2});
}

void lks__gpt2_block_backward(const struct lks__gpt2_pass *p, int l)
{
    struct lks__gpt2 *m = p->m;
    const lks__exec *ex = m->ex;
    const struct lks__gpt2_tensors *t = &m->lt[l];
    const struct lks__gpt2_acts *a = &m->la[l];
    const float *w = p->params;
    float *g = lks__backward_grads(p->bw, m->c.n_layer - l);
    const size_t rows = p->rows, C = p->C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = lks__gpt2_dropout(p, l, LKS__DROP_ATTENTION);
    const lks__dropout drop_proj = lks__gpt2_dropout(p, l, LKS__DROP_PROJECTION);
    const lks__dropout drop_mlp = lks__gpt2_dropout(p, l, LKS__DROP_MLP);
    const lks__epilogue none = {NULL, NULL};

    const float *d = lks__gpt2_dropped(p, m->dx, &drop_mlp);
    lks__linear_bwd_w(ex, g + t->fc2w, lks__gpt2_at_grad(g, t->fc2b), d, C, a->gelu, rows, C,
                      4 * C);
    struct tile_ctx act = {.y = m->d_wide, .ld = 4 * C, .in = a->fc};
    lks__linear_bwd_x(ex, m->d_wide, d, C, w + t->fc2w, rows, C, 4 * C,
                      (lks__epilogue){epilogue_gelu_bwd, &act});
    lks__linear_bwd_w(ex, g + t->fcw, lks__gpt2_at_grad(g, t->fcb), m->d_wide, 4 * C, a->ln2, rows,
                      4 * C, C);
    lks__linear_bwd_x(ex, m->d_row, m->d_wide, 4 * C, w + t->fcw, rows, 4 * C, C, none);
    lks__layernorm_rows_bwd(ex, m->dx, g + t->ln2w, lks__gpt2_at_grad(g, t->ln2b), m->d_row,
                            a->x_mid, w + t->ln2w, a->mean2, a->rstd2, rows, C, m->ln_partial);

    d = lks__gpt2_dropped(p, m->dx, &drop_proj);
    lks__linear_bwd_w(ex, g + t->projw, lks__gpt2_at_grad(g, t->projb), d, C, a->att, rows, C, C);
    lks__linear_bwd_x(ex, m->d_row, d, C, w + t->projw, rows, C, C, none);
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv);
    const lks__attention_grads grads = lks__attention_packed_grads(&shape, m->d_wide);
    lks__attention_bwd(ex, &shape, &grads, m->d_row, &in, a->att, a->lse, &drop_att);
    lks__linear_bwd_w(ex, g + t->qkvw, lks__gpt2_at_grad(g, t->qkvb), m->d_wide, 3 * C, a->ln1,
                      rows, 3 * C, C);
    lks__linear_bwd_x(ex, m->d_row, m->d_wide, 3 * C, w + t->qkvw, rows, 3 * C, C, none);
    lks__layernorm_rows_bwd(ex, m->dx, g + t->ln1w, lks__gpt2_at_grad(g, t->ln1b), m->d_row, a->x,
                            w + t->ln1w, a->mean1, a->rstd1, rows, C, m->ln_partial);
}
