#include "model/gpt2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/trace.h"
#include "model/carve.h"
#include "model/init.h"

/* --- memory ---------------------------------------------------------------------------------- */

static void carve_all(struct lks__gpt2 *m, lks__carver *v)
{
    const size_t rows = m->max_rows, C = (size_t)m->c.n_embd, V = (size_t)m->c.vocab_size;
    for (int l = 0; l < m->c.n_layer; l++) {
        struct lks__gpt2_acts *a = &m->la[l];
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
    m->ln_partial = lks__carve(v, m->layers->layernorm_partial_floats(rows, C));
    size_t chunk = lks__head_chunk_rows(rows, V);
    m->head.chunk_rows = chunk;
    m->head.ld = lks__round_up(V, 16);
    m->head.logits = lks__carve(v, chunk * m->head.ld);
    m->head.row_loss = (double *)(void *)lks__carve(v, 2 * rows);
}

static lks_status measure(struct lks__gpt2 *m, const lks__model_config *c, int batch)
{
    uint64_t rows, floats, bytes;
    /* far more than is needed for a row, so that no sum in carve_all() can overflow */
    uint64_t per_row = 32ull * (uint64_t)(c->n_layer + 2) * (uint64_t)c->n_embd +
                       (uint64_t)c->vocab_size + (uint64_t)c->n_layer * (uint64_t)c->n_head;
    if (!lks__mul((uint64_t)batch, (uint64_t)c->block_size, &rows) ||
        !lks__mul(rows, per_row, &floats) || !lks__mul(floats, sizeof(float), &bytes) ||
        bytes > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG,
                         "batch_size = %d of block_size = %d is more than memory can address",
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

static lks_status gpt2_activation_bytes(const lks__model_config *config, int batch,
                                        const lks__layers *layers, size_t *bytes_p)
{
    struct lks__gpt2 m = {.layers = layers};
    lks_status st = measure(&m, config, batch);
    free(m.la);
    free(m.lt);
    if (st == LKS_OK)
        *bytes_p = m.arena_bytes;
    return st;
}

static void find_tensors(struct lks__gpt2 *m)
{
    const lks__table *table = m->table;
    for (int l = 0; l < m->c.n_layer; l++) {
        m->lt[l] = (struct lks__gpt2_tensors){
            .ln1w = lks__table_offset(table, "transformer.h.%d.ln_1.weight", l),
            .ln1b = lks__table_offset(table, "transformer.h.%d.ln_1.bias", l),
            .qkvw = lks__table_offset(table, "transformer.h.%d.attn.c_attn.weight", l),
            .qkvb = lks__table_offset(table, "transformer.h.%d.attn.c_attn.bias", l),
            .projw = lks__table_offset(table, "transformer.h.%d.attn.c_proj.weight", l),
            .projb = lks__table_offset(table, "transformer.h.%d.attn.c_proj.bias", l),
            .ln2w = lks__table_offset(table, "transformer.h.%d.ln_2.weight", l),
            .ln2b = lks__table_offset(table, "transformer.h.%d.ln_2.bias", l),
            .fcw = lks__table_offset(table, "transformer.h.%d.mlp.c_fc.weight", l),
            .fcb = lks__table_offset(table, "transformer.h.%d.mlp.c_fc.bias", l),
            .fc2w = lks__table_offset(table, "transformer.h.%d.mlp.c_proj.weight", l),
            .fc2b = lks__table_offset(table, "transformer.h.%d.mlp.c_proj.bias", l),
        };
    }
    m->wte = lks__table_offset(table, "transformer.wte.weight");
    m->wpe = lks__table_offset(table, "transformer.wpe.weight");
    m->lnfw = lks__table_offset(table, "transformer.ln_f.weight");
    m->lnfb = lks__table_offset(table, "transformer.ln_f.bias");
}

static void gpt2_close(void *state);

static lks_status gpt2_open(const lks__model_config *config, const lks__table *table, int batch,
                            lks__device *device, void **model_p)
{
    lks__attention_shape shape = {(size_t)batch, (size_t)config->block_size, (size_t)config->n_head,
                                  (size_t)(config->n_embd / config->n_head), 0};
    LKS__TRY(lks__attention_check(&shape));
    struct lks__gpt2 *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the model");
    m->table = table;
    m->device = device;
    m->layers = device->layers;
    m->ex = device->ex;
    lks_status st = measure(m, config, batch);
    if (st != LKS_OK)
        goto fail;
    st = lks__activations_open(device, m->arena_bytes, batch, config->block_size, &m->arena);
    if (st != LKS_OK)
        goto fail;
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
    struct lks__gpt2 *m = state;
    if (m->arena != NULL)
        m->device->ops->release(m->device, m->arena, m->arena_bytes);
    free(m->la);
    free(m->lt);
    free(m);
}

/* --- forward and backward -------------------------------------------------------------------- */

static void beat(const struct lks__gpt2_pass *p)
{
    if (p->bw != NULL && p->bw->beat != NULL)
        p->bw->beat(p->bw->beat_ctx);
}

static void done(const struct lks__gpt2_pass *p, int group)
{
    beat(p);
    p->bw->done(p->bw->done_ctx, group);
}

/* From tokens to the output of the final LayerNorm. */
static void forward(const struct lks__gpt2_pass *p)
{
    struct lks__gpt2 *m = p->m;
    lks__trace_begin(LKS__SPAN_FORWARD, -1);
    const lks__dropout drop = lks__gpt2_dropout(p, m->c.n_layer, LKS__DROP_EMBEDDING);
    m->layers->embedding_fwd(m->ex, m->la[0].x, p->mb->tokens, p->params + m->wte,
                             p->params + m->wpe, p->rows, (size_t)p->mb->T, p->C, &drop);
    for (int l = 0; l < m->c.n_layer; l++) {
        lks__trace_begin(LKS__SPAN_FORWARD_LAYER, l);
        lks__gpt2_block_forward(p, l, l + 1 < m->c.n_layer ? m->la[l + 1].x : m->x_out);
        lks__trace_end();
        beat(p);
    }
    m->layers->layernorm_rows_fwd(m->ex, m->lnf, m->meanf, m->rstdf, m->x_out, p->params + m->lnfw,
                                  lks__gpt2_at(p->params, m->lnfb), p->rows, p->C);
    lks__trace_end();
}

/* From the gradient of the final LayerNorm's output (in m->d_row) back to the embeddings. */
static void backward(const struct lks__gpt2_pass *p)
{
    struct lks__gpt2 *m = p->m;
    float *g = lks__backward_grads(p->bw, 0);
    lks__trace_begin(LKS__SPAN_BACKWARD, -1);
    m->layers->clear(m->ex, m->dx, p->rows * p->C);
    m->layers->layernorm_rows_bwd(m->ex, m->dx, g + m->lnfw, lks__gpt2_at_grad(g, m->lnfb),
                                  m->d_row, m->x_out, p->params + m->lnfw, m->meanf, m->rstdf,
                                  p->rows, p->C, m->ln_partial);
    done(p, 0);
    for (int l = m->c.n_layer - 1; l >= 0; l--) {
        lks__trace_begin(LKS__SPAN_BACKWARD_LAYER, l);
        lks__gpt2_block_backward(p, l);
        lks__trace_end();
        done(p, m->c.n_layer - l);
    }
    const lks__dropout drop = lks__gpt2_dropout(p, m->c.n_layer, LKS__DROP_EMBEDDING);
    g = lks__backward_grads(p->bw, m->c.n_layer + 1);
    m->layers->embedding_bwd(m->ex, g + m->wte, g + m->wpe, lks__gpt2_dropped(p, m->dx, &drop),
                             p->mb->tokens, p->rows, (size_t)p->mb->T, p->C);
    done(p, m->c.n_layer + 1);
    lks__trace_end();
}

/* --- the functions of model.h ---------------------------------------------------------------- */

static struct lks__gpt2_pass pass_of(struct lks__gpt2 *m, const float *params,
                                     const lks__micro_batch *mb, const lks__backward *bw)
{
    struct lks__gpt2_pass p = {
        m, params, mb, bw, (size_t)mb->B * (size_t)mb->T, (size_t)m->c.n_embd};
    return p;
}

static void gpt2_train(void *state, const float *params, const lks__micro_batch *mb,
                       const lks__backward *bw, float *loss)
{
    struct lks__gpt2 *m = state;
    struct lks__gpt2_pass p = pass_of(m, params, mb, bw);
    forward(&p);
    float *g = lks__backward_grads(bw, m->c.n_layer + 1);
    lks__head_loss(m->layers, m->ex, &m->head, loss, m->d_row, g + m->wte, m->lnf, params + m->wte,
                   mb->targets, p.rows, (size_t)m->c.vocab_size, p.C);
    backward(&p);
}

static void gpt2_loss(void *state, const float *params, const lks__micro_batch *mb, float *loss)
{
    struct lks__gpt2 *m = state;
    struct lks__gpt2_pass p = pass_of(m, params, mb, NULL);
    forward(&p);
    lks__head_loss(m->layers, m->ex, &m->head, loss, NULL, NULL, m->lnf, params + m->wte,
                   mb->targets, p.rows, (size_t)m->c.vocab_size, p.C);
}

static void gpt2_forward(void *state, const float *params, const lks__micro_batch *mb,
                         const lks__backward *bw)
{
    struct lks__gpt2_pass p = pass_of(state, params, mb, bw);
    forward(&p);
}

static bool gpt2_activation(const void *state, int i, lks__activation *a)
{
    const struct lks__gpt2 *m = state;
    enum { A_LAYER = 8 };
    const int l = (i - 1) / A_LAYER, n_layer = m->c.n_layer;
    const size_t C = (size_t)m->c.n_embd;
    if (i == 0 || l >= n_layer) {
        *a = (lks__activation){.x = i == 0 ? m->la[0].x : m->lnf, .width = C};
        snprintf(a->module, sizeof a->module, "transformer.%s", i == 0 ? "wte" : "ln_f");
        return i <= n_layer * A_LAYER + 1;
    }
    const struct lks__gpt2_acts *la = &m->la[l];
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
    struct lks__gpt2 *m = state;
    lks__micro_batch mb = {tokens, NULL, 1, T};
    struct lks__gpt2_pass p = pass_of(m, params, &mb, NULL);
    forward(&p);
    const size_t V = (size_t)m->c.vocab_size;
    m->layers->linear_fwd(m->ex, logits, V, m->lnf + (p.rows - 1) * p.C, params + m->wte, 1, V, p.C,
                          NULL);
}

/* 6 N + 12 L C T; N excludes the position embedding, as in nanoGPT's estimate_mfu. */
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
