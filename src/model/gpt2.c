#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/sys.h"
#include "base/trace.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "model/carve.h"
#include "model/head.h"
#include "model/init.h"
#include "model/rows.h"

/* Dropout places within a layer; the embedding's stands where layer L would be. */
enum { DROP_ATTENTION, DROP_PROJECTION, DROP_MLP, DROP_EMBEDDING = DROP_ATTENTION };

/* Arena offsets of one layer's tensors; SIZE_MAX: not there (biases off). */
struct layer_tensors {
    size_t ln1w, ln1b, qkvw, qkvb, projw, projb, ln2w, ln2b, fcw, fcb, fc2w, fc2b;
};

/* What forward keeps of a layer for backward; all [rows, …]. */
struct layer_acts {
    float *x; /* C: input of the layer */
    float *ln1, *mean1, *rstd1;
    float *qkv;       /* 3C */
    float *att, *lse; /* C; [B, NH, T] */
    float *x_mid;     /* C: after attention */
    float *ln2, *mean2, *rstd2;
    float *fc, *gelu; /* 4C: before and after the activation */
};

struct gpt2 {
    lks__model_config c;
    const lks__table *table;
    const lks__exec *ex;
    size_t max_rows;
    struct layer_tensors *lt;
    struct layer_acts *la;
    size_t wte, wpe, lnfw, lnfb;
    float *x_out; /* output of the last layer */
    float *lnf, *meanf, *rstdf;
    lks__head head;
    float *dx;             /* gradient of the residual stream */
    float *d_drop;         /* dx with a dropout mask on it, or rounded */
    float *d_wide, *d_row; /* [rows, 4C] and [rows, C] */
    float *ln_partial;     /* LayerNorm's weight gradients, block by block */
    void *arena;
    size_t arena_bytes;
};

/* --- memory ---------------------------------------------------------------------------------- */

static void carve_all(struct gpt2 *m, lks__carver *v)
{
    const size_t rows = m->max_rows, C = (size_t)m->c.n_embd, V = (size_t)m->c.vocab_size;
    for (int l = 0; l < m->c.n_layer; l++) {
        struct layer_acts *a = &m->la[l];
        a->x = lks__carve(v, rows * C);
        a->ln1 = lks__carve(v, rows * C);
        a->mean1 = lks__carve(v, rows);
        a->rstd1 = lks__carve(v, rows);
        a->qkv = lks__carve(v, rows * 3 * C);
        a->att = lks__carve(v, rows * C);
        a->lse = lks__carve(v, rows * (size_t)m->c.n_head);
        a->x_mid = lks__carve(v, rows * C);
        a->ln2 = lks__carve(v, rows * C);
        a->mean2 = lks__carve(v, rows);
        a->rstd2 = lks__carve(v, rows);
        a->fc = lks__carve(v, rows * 4 * C);
        a->gelu = lks__carve(v, rows * 4 * C);
    }
    m->x_out = lks__carve(v, rows * C);
    m->lnf = lks__carve(v, rows * C);
    m->meanf = lks__carve(v, rows);
    m->rstdf = lks__carve(v, rows);
    m->dx = lks__carve(v, rows * C);
    m->d_drop = lks__carve(v, rows * C);
    m->d_wide = lks__carve(v, rows * 4 * C);
    m->d_row = lks__carve(v, rows * C);
    m->ln_partial = lks__carve(v, lks__layernorm_partial_floats(rows, C));
    size_t chunk = lks__head_chunk_rows(rows, V);
    m->head.chunk_rows = chunk;
    m->head.ld = lks__round_up(V, 16);
    m->head.logits = lks__carve(v, chunk * m->head.ld);
    m->head.row_loss = (double *)(void *)lks__carve(v, 2 * rows);
}

static lks_status measure(struct gpt2 *m, const lks__model_config *c, int batch)
{
    uint64_t rows, floats, bytes;
    /* far more than is needed per row, so that no sum in carve_all() can overflow */
    uint64_t per_row = 32ull * (uint64_t)(c->n_layer + 2) * (uint64_t)c->n_embd +
                       (uint64_t)c->vocab_size + (uint64_t)c->n_layer * (uint64_t)c->n_head;
    if (!lks__mul((uint64_t)batch, (uint64_t)c->block_size, &rows) ||
        !lks__mul(rows, per_row, &floats) || !lks__mul(floats, sizeof(float), &bytes) ||
        bytes > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG,
                         "batch_size = %d of block_size = %d is beyond what memory can address",
                         batch, c->block_size);
    m->c = *c;
    m->max_rows = (size_t)rows;
    m->la = calloc((size_t)c->n_layer, sizeof *m->la);
    m->lt = calloc((size_t)c->n_layer, sizeof *m->lt);
    if (m->la == NULL || m->lt == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d layers", c->n_layer);
    lks__carver v = {NULL, 0};
    carve_all(m, &v);
    m->arena_bytes = v.used;
    return LKS_OK;
}

static lks_status gpt2_activation_bytes(const lks__model_config *config, int batch, size_t *bytes_p)
{
    struct gpt2 m = {0};
    lks_status st = measure(&m, config, batch);
    free(m.la);
    free(m.lt);
    if (st == LKS_OK)
        *bytes_p = m.arena_bytes;
    return st;
}

static size_t offset_of(const struct gpt2 *m, int layer, const char *name)
{
    char full[64];
    if (layer >= 0)
        snprintf(full, sizeof full, "transformer.h.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "transformer.%s", name);
    const lks__tensor *t = lks__table_find(m->table, full);
    return t == NULL ? SIZE_MAX : t->offset;
}

static void find_tensors(struct gpt2 *m)
{
    for (int l = 0; l < m->c.n_layer; l++) {
        m->lt[l] = (struct layer_tensors){
            .ln1w = offset_of(m, l, "ln_1.weight"),
            .ln1b = offset_of(m, l, "ln_1.bias"),
            .qkvw = offset_of(m, l, "attn.c_attn.weight"),
            .qkvb = offset_of(m, l, "attn.c_attn.bias"),
            .projw = offset_of(m, l, "attn.c_proj.weight"),
            .projb = offset_of(m, l, "attn.c_proj.bias"),
            .ln2w = offset_of(m, l, "ln_2.weight"),
            .ln2b = offset_of(m, l, "ln_2.bias"),
            .fcw = offset_of(m, l, "mlp.c_fc.weight"),
            .fcb = offset_of(m, l, "mlp.c_fc.bias"),
            .fc2w = offset_of(m, l, "mlp.c_proj.weight"),
            .fc2b = offset_of(m, l, "mlp.c_proj.bias"),
        };
    }
    m->wte = offset_of(m, -1, "wte.weight");
    m->wpe = offset_of(m, -1, "wpe.weight");
    m->lnfw = offset_of(m, -1, "ln_f.weight");
    m->lnfb = offset_of(m, -1, "ln_f.bias");
}

static void gpt2_close(void *state);

static lks_status gpt2_open(const lks__model_config *config, const lks__table *table, int batch,
                            const lks__exec *ex, void **model_p)
{
    lks__attention_shape shape = {(size_t)batch, (size_t)config->block_size, (size_t)config->n_head,
                                  (size_t)(config->n_embd / config->n_head), 0};
    LKS__TRY(lks__attention_check(&shape));
    struct gpt2 *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the model");
    m->table = table;
    m->ex = ex;
    lks_status st = measure(m, config, batch);
    if (st != LKS_OK)
        goto fail;
    m->arena =
        lks__sys_mmap(m->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->arena == NULL) {
        st = lks__fail(LKS_ERR_NOMEM,
                       "no memory for %.1f MB of activations (batch_size %d, block_size %d): use a "
                       "smaller batch_size and more gradient_accumulation_steps",
                       (double)m->arena_bytes / 1e6, batch, config->block_size);
        goto fail;
    }
    lks__carver v = {m->arena, 0};
    carve_all(m, &v);
    find_tensors(m);
    *model_p = m;
    return LKS_OK;
fail:
    gpt2_close(m);
    return st;
}

static void gpt2_close(void *state)
{
    struct gpt2 *m = state;
    if (m->arena != NULL)
        lks__sys_munmap(m->arena, m->arena_bytes);
    free(m->la);
    free(m->lt);
    free(m);
}

/* --- fused tile epilogues -------------------------------------------------------------------- */

static const float *at(const float *params, size_t offset)
{
    return offset == SIZE_MAX ? NULL : params + offset;
}

static float *at_grad(float *grads, size_t offset)
{
    return offset == SIZE_MAX ? NULL : grads + offset;
}

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

/* --- forward --------------------------------------------------------------------------------- */

/* One pass through the model: what forward and backward share. */
struct pass {
    struct gpt2 *m;
    const float *params;
    const lks__micro_batch *mb;
    const lks__backward *bw; /* NULL: evaluation */
    size_t rows, C;
};

static lks__dropout dropout_of(const struct pass *p, int layer, int place)
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

static lks__attention_shape attention_shape(const struct pass *p)
{
    lks__attention_shape s = {(size_t)p->mb->B, (size_t)p->mb->T, (size_t)p->m->c.n_head,
                              (size_t)(p->m->c.n_embd / p->m->c.n_head), 0};
    return s;
}

static void beat(const struct pass *p)
{
    if (p->bw != NULL && p->bw->beat != NULL)
        p->bw->beat(p->bw->beat_ctx);
}

static void layer_forward(const struct pass *p, int l, float *x_next)
{
    const lks__exec *ex = p->m->ex;
    const struct layer_tensors *t = &p->m->lt[l];
    const struct layer_acts *a = &p->m->la[l];
    const float *w = p->params;
    const size_t rows = p->rows, C = p->C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = dropout_of(p, l, DROP_ATTENTION);
    const lks__dropout drop_proj = dropout_of(p, l, DROP_PROJECTION);
    const lks__dropout drop_mlp = dropout_of(p, l, DROP_MLP);

    lks__layernorm_rows_fwd(ex, a->ln1, a->mean1, a->rstd1, a->x, w + t->ln1w, at(w, t->ln1b), rows,
                            C);
    struct tile_ctx qkv = {.y = a->qkv, .ld = 3 * C, .bias = at(w, t->qkvb)};
    lks__linear_fwd(ex, a->qkv, 3 * C, a->ln1, w + t->qkvw, rows, 3 * C, C,
                    (lks__epilogue){epilogue_bias, &qkv});
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv);
    lks__attention_fwd(ex, &shape, a->att, a->lse, &in, &drop_att);
    struct tile_ctx proj = {
        .y = a->x_mid, .ld = C, .bias = at(w, t->projb), .in = a->x, .drop = &drop_proj};
    lks__linear_fwd(ex, a->x_mid, C, a->att, w + t->projw, rows, C, C,
                    (lks__epilogue){epilogue_bias_dropout_residual, &proj});

    lks__layernorm_rows_fwd(ex, a->ln2, a->mean2, a->rstd2, a->x_mid, w + t->ln2w, at(w, t->ln2b),
                            rows, C);
    struct tile_ctx fc = {.y = a->fc, .ld = 4 * C, .bias = at(w, t->fcb), .out = a->gelu};
    lks__linear_fwd(ex, a->fc, 4 * C, a->ln2, w + t->fcw, rows, 4 * C, C,
                    (lks__epilogue){epilogue_bias_gelu, &fc});
    struct tile_ctx fc2 = {
        .y = x_next, .ld = C, .bias = at(w, t->fc2b), .in = a->x_mid, .drop = &drop_mlp};
    lks__linear_fwd(ex, x_next, C, a->gelu, w + t->fc2w, rows, C, 4 * C,
                    (lks__epilogue){epilogue_bias_dropout_residual, &fc2});
}

/* Tokens to the final LayerNorm's output. */
static void forward(const struct pass *p)
{
    struct gpt2 *m = p->m;
    lks__trace_begin(LKS__SPAN_FORWARD, -1);
    const lks__dropout drop = dropout_of(p, m->c.n_layer, DROP_EMBEDDING);
    lks__embedding_fwd(m->ex, m->la[0].x, p->mb->tokens, p->params + m->wte, p->params + m->wpe,
                       p->rows, (size_t)p->mb->T, p->C, &drop);
    for (int l = 0; l < m->c.n_layer; l++) {
        lks__trace_begin(LKS__SPAN_FORWARD_LAYER, l);
        layer_forward(p, l, l + 1 < m->c.n_layer ? m->la[l + 1].x : m->x_out);
        lks__trace_end();
        beat(p);
    }
    lks__layernorm_rows_fwd(m->ex, m->lnf, m->meanf, m->rstdf, m->x_out, p->params + m->lnfw,
                            at(p->params, m->lnfb), p->rows, p->C);
    lks__trace_end();
}

/* --- backward -------------------------------------------------------------------------------- */

/* `d` with the mask on it, or `d` itself where nothing is dropped. */
static const float *dropped(const struct pass *p, const float *d, const lks__dropout *drop)
{
    if (drop->threshold == 0)
        return d;
    lks__dropout_rows(p->m->ex, p->m->d_drop, d, p->rows, p->C, drop);
    return p->m->d_drop;
}

/* m->dx: gradient of the layer's output in, of its input out. */
static void layer_backward(const struct pass *p, int l)
{
    struct gpt2 *m = p->m;
    const lks__exec *ex = m->ex;
    const struct layer_tensors *t = &m->lt[l];
    const struct layer_acts *a = &m->la[l];
    const float *w = p->params;
    float *g = lks__backward_grads(p->bw, m->c.n_layer - l);
    const size_t rows = p->rows, C = p->C;
    const lks__attention_shape shape = attention_shape(p);
    const lks__dropout drop_att = dropout_of(p, l, DROP_ATTENTION);
    const lks__dropout drop_proj = dropout_of(p, l, DROP_PROJECTION);
    const lks__dropout drop_mlp = dropout_of(p, l, DROP_MLP);
    const lks__epilogue none = {NULL, NULL};

    const float *d = dropped(p, m->dx, &drop_mlp);
    lks__linear_bwd_w(ex, g + t->fc2w, at_grad(g, t->fc2b), d, C, a->gelu, rows, C, 4 * C);
    struct tile_ctx act = {.y = m->d_wide, .ld = 4 * C, .in = a->fc};
    lks__linear_bwd_x(ex, m->d_wide, d, C, w + t->fc2w, rows, C, 4 * C,
                      (lks__epilogue){epilogue_gelu_bwd, &act});
    lks__linear_bwd_w(ex, g + t->fcw, at_grad(g, t->fcb), m->d_wide, 4 * C, a->ln2, rows, 4 * C, C);
    lks__linear_bwd_x(ex, m->d_row, m->d_wide, 4 * C, w + t->fcw, rows, 4 * C, C, none);
    lks__layernorm_rows_bwd(ex, m->dx, g + t->ln2w, at_grad(g, t->ln2b), m->d_row, a->x_mid,
                            w + t->ln2w, a->mean2, a->rstd2, rows, C, m->ln_partial);

    d = dropped(p, m->dx, &drop_proj);
    lks__linear_bwd_w(ex, g + t->projw, at_grad(g, t->projb), d, C, a->att, rows, C, C);
    lks__linear_bwd_x(ex, m->d_row, d, C, w + t->projw, rows, C, C, none);
    const lks__attention_in in = lks__attention_packed(&shape, a->qkv);
    const lks__attention_grads grads = lks__attention_packed_grads(&shape, m->d_wide);
    lks__attention_bwd(ex, &shape, &grads, m->d_row, &in, a->att, a->lse, &drop_att);
    lks__linear_bwd_w(ex, g + t->qkvw, at_grad(g, t->qkvb), m->d_wide, 3 * C, a->ln1, rows, 3 * C,
                      C);
    lks__linear_bwd_x(ex, m->d_row, m->d_wide, 3 * C, w + t->qkvw, rows, 3 * C, C, none);
    lks__layernorm_rows_bwd(ex, m->dx, g + t->ln1w, at_grad(g, t->ln1b), m->d_row, a->x,
                            w + t->ln1w, a->mean1, a->rstd1, rows, C, m->ln_partial);
}

static void done(const struct pass *p, int group)
{
    beat(p);
    p->bw->done(p->bw->done_ctx, group);
}

/* From the head's gradient of the final LayerNorm's output (m->d_row) back to the embeddings. */
static void backward(const struct pass *p)
{
    struct gpt2 *m = p->m;
    float *g = lks__backward_grads(p->bw, 0);
    lks__trace_begin(LKS__SPAN_BACKWARD, -1);
    memset(m->dx, 0, p->rows * p->C * sizeof(float));
    lks__layernorm_rows_bwd(m->ex, m->dx, g + m->lnfw, at_grad(g, m->lnfb), m->d_row, m->x_out,
                            p->params + m->lnfw, m->meanf, m->rstdf, p->rows, p->C, m->ln_partial);
    done(p, 0);
    for (int l = m->c.n_layer - 1; l >= 0; l--) {
        lks__trace_begin(LKS__SPAN_BACKWARD_LAYER, l);
        layer_backward(p, l);
        lks__trace_end();
        done(p, m->c.n_layer - l);
    }
    const lks__dropout drop = dropout_of(p, m->c.n_layer, DROP_EMBEDDING);
    g = lks__backward_grads(p->bw, m->c.n_layer + 1);
    lks__embedding_bwd(m->ex, g + m->wte, g + m->wpe, dropped(p, m->dx, &drop), p->mb->tokens,
                       p->rows, (size_t)p->mb->T, p->C);
    done(p, m->c.n_layer + 1);
    lks__trace_end();
}

/* --- what model.h asks for
 * ------------------------------------------------------------------------ */

static struct pass pass_of(struct gpt2 *m, const float *params, const lks__micro_batch *mb,
                           const lks__backward *bw)
{
    struct pass p = {m, params, mb, bw, (size_t)mb->B * (size_t)mb->T, (size_t)m->c.n_embd};
    return p;
}

static float gpt2_train(void *state, const float *params, const lks__micro_batch *mb,
                        const lks__backward *bw)
{
    struct gpt2 *m = state;
    struct pass p = pass_of(m, params, mb, bw);
    forward(&p);
    float *g = lks__backward_grads(bw, m->c.n_layer + 1);
    float loss = lks__head_loss(m->ex, &m->head, m->d_row, g + m->wte, m->lnf, params + m->wte,
                                mb->targets, p.rows, (size_t)m->c.vocab_size, p.C);
    backward(&p);
    return loss;
}

static float gpt2_loss(void *state, const float *params, const lks__micro_batch *mb)
{
    struct gpt2 *m = state;
    struct pass p = pass_of(m, params, mb, NULL);
    forward(&p);
    return lks__head_loss(m->ex, &m->head, NULL, NULL, m->lnf, params + m->wte, mb->targets, p.rows,
                          (size_t)m->c.vocab_size, p.C);
}

static void gpt2_forward(void *state, const float *params, const lks__micro_batch *mb,
                         const lks__backward *bw)
{
    struct pass p = pass_of(state, params, mb, bw);
    forward(&p);
}

static bool gpt2_activation(const void *state, int i, lks__activation *a)
{
    const struct gpt2 *m = state;
    enum { A_LAYER = 8 };
    const int l = (i - 1) / A_LAYER, n_layer = m->c.n_layer;
    const size_t C = (size_t)m->c.n_embd;
    if (i == 0 || l >= n_layer) {
        *a = (lks__activation){.x = i == 0 ? m->la[0].x : m->lnf, .width = C};
        snprintf(a->module, sizeof a->module, "transformer.%s", i == 0 ? "wte" : "ln_f");
        return i <= n_layer * A_LAYER + 1;
    }
    const struct layer_acts *la = &m->la[l];
    const struct {
        const char *name;
        const float *x;
        size_t width;
    } of_layer[A_LAYER] = {
        {"ln_1", la->ln1, C},
        {"attn.c_attn", la->qkv, 3 * C},
        {"attn", la->att, C},
        {"attn.c_proj", la->x_mid, C},
        {"ln_2", la->ln2, C},
        {"mlp.c_fc", la->fc, 4 * C},
        {"mlp.gelu", la->gelu, 4 * C},
        {"mlp.c_proj", l + 1 < n_layer ? m->la[l + 1].x : m->x_out, C},
    };
    const int k = (i - 1) % A_LAYER;
    *a = (lks__activation){.x = of_layer[k].x, .width = of_layer[k].width};
    snprintf(a->module, sizeof a->module, "transformer.h.%d.%s", l, of_layer[k].name);
    return true;
}

static void gpt2_logits(void *state, const float *params, const int32_t *tokens, int T,
                        float *logits)
{
    struct gpt2 *m = state;
    lks__micro_batch mb = {tokens, NULL, 1, T};
    struct pass p = pass_of(m, params, &mb, NULL);
    forward(&p);
    const size_t V = (size_t)m->c.vocab_size;
    lks__linear_fwd(m->ex, logits, V, m->lnf + (p.rows - 1) * p.C, params + m->wte, 1, V, p.C,
                    (lks__epilogue){NULL, NULL});
}

/* 6 N + 12 L C T, N without the position embedding, as in nanoGPT's estimate_mfu. */
static double gpt2_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    double n = (double)table->n_params - (double)c->block_size * c->n_embd;
    return 6.0 * n + 12.0 * c->n_layer * (double)c->n_embd * c->block_size;
}

const struct lks__model_ops lks__model_gpt2 = {
    .name = "gpt2",
    .table = lks__table_gpt2,
    .init = lks__init_gpt2,
    .activation_bytes = gpt2_activation_bytes,
    .open = gpt2_open,
    .close = gpt2_close,
    .train = gpt2_train,
    .loss = gpt2_loss,
    .forward = gpt2_forward,
    .activation = gpt2_activation,
    .logits = gpt2_logits,
    .flops_per_token = gpt2_flops_per_token,
};
