/* model/golf.c - parameter-golf's model (train_gpt.py): embedding, U-net, head, memory. The
 * blocks are in golf_block.c. */
#include "model/golf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/trace.h"
#include "model/carve.h"
#include "model/golf_table.h"

/* --- memory ---------------------------------------------------------------------------------- */

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void carve_block(struct lks__golf *m, lks__carver *v, size_t l)
{
    const size_t rows = m->max_rows, C = m->C, KV = m->KV, H = m->H;
    const size_t NH = (size_t)m->c.n_head, NKV = (size_t)m->c.n_kv_head;
    struct lks__golf_acts *a = &m->la[l];
    a->rms = lks__carve(v, rows);
    a->q_raw = lks__carve(v, rows * C);
    a->q_rms = lks__carve(v, rows * NH);
    a->k_raw = lks__carve(v, rows * KV);
    a->k_rms = lks__carve(v, rows * NKV);
    a->v = lks__carve(v, rows * KV);
    a->att = lks__carve(v, rows * C);
    a->lse = lks__carve(v, rows * NH);
    a->x_mid = lks__carve(v, rows * C);
    a->rms2 = lks__carve(v, rows);
    a->fc = lks__carve(v, rows * H);
    a->out = lks__carve(v, rows * C);
}

static void carve_all(struct lks__golf *m, lks__carver *v)
{
    const size_t rows = m->max_rows, C = m->C, V = (size_t)m->c.vocab_size;
    const size_t chunk = lks__head_chunk_rows(rows, V), ld = lks__round_up(V, 16);
    for (size_t l = 0; l < (size_t)m->c.n_layer; l++)
        carve_block(m, v, l);
    m->x0 = lks__carve(v, rows * C);
    m->x0_rms = lks__carve(v, rows);
    m->final_rms = lks__carve(v, rows);
    m->dx = lks__carve(v, rows * C);
    m->dx0 = lks__carve(v, rows * C);
    m->norm = lks__carve(v, C * max(rows, max(m->H, C)));
    m->wide = lks__carve(v, max(chunk * ld, rows * max(m->H, C + 2 * m->KV)));
    m->partial = lks__carve(v, m->layers->golf_partial_floats(rows, C, (size_t)m->c.n_head));
    m->head.chunk_rows = chunk;
    m->head.ld = ld;
    m->head.logits = m->wide;
    m->head.row_loss = (double *)(void *)lks__carve(v, 2 * rows);
    m->head.softcap = m->c.logit_softcap;
}

/* Number of floats in the table of cosines, or of sines. */
static size_t rotary_floats(const struct lks__golf *m)
{
    return (size_t)m->c.block_size * (m->hs / 2);
}

static lks_status measure(struct lks__golf *m, const lks__model_config *c, int batch)
{
    uint64_t rows, per_row, floats, bytes;
    /* far more than is needed for a row, so that no sum in carve_all() can overflow */
    if (!lks__mul((uint64_t)batch, (uint64_t)c->block_size, &rows) ||
        !lks__mul(32 * ((uint64_t)c->n_layer + 4), (uint64_t)c->mlp_mult + 1, &per_row) ||
        !lks__mul(per_row, (uint64_t)c->n_embd, &per_row) ||
        !lks__add(per_row, (uint64_t)c->vocab_size, &per_row) ||
        !lks__mul(rows + (uint64_t)c->n_embd, per_row, &floats) ||
        !lks__mul(floats, sizeof(float), &bytes) || bytes > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG,
                         "a batch of %d sequences of %d tokens is more than memory can address",
                         batch, c->block_size);
    m->c = *c;
    m->max_rows = (size_t)rows;
    m->C = (size_t)c->n_embd;
    m->hs = (size_t)(c->n_embd / c->n_head);
    m->KV = m->hs * (size_t)c->n_kv_head;
    m->H = m->C * (size_t)c->mlp_mult;
    m->n_enc = lks__golf_encoders(c);
    m->la = calloc((size_t)c->n_layer, sizeof *m->la);
    m->lt = calloc((size_t)c->n_layer, sizeof *m->lt);
    if (m->la == NULL || m->lt == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d layers", c->n_layer);
    lks__carver v = {NULL, 0};
    carve_all(m, &v);
    m->arena_bytes = v.used;
    return LKS_OK;
}

static void release(struct lks__golf *m)
{
    lks__mirror_close(&m->rotary);
    if (m->arena != NULL)
        m->device->ops->release(m->device, m->arena, m->arena_bytes);
    free(m->la);
    free(m->lt);
}

static lks_status golf_activation_bytes(const lks__model_config *config, int batch,
                                        const lks__layers *layers, size_t *bytes_p)
{
    struct lks__golf m = {.layers = layers};
    lks_status st = measure(&m, config, batch);
    if (st == LKS_OK)
        *bytes_p = m.arena_bytes + 2 * rotary_floats(&m) * sizeof(float);
    release(&m);
    return st;
}

static void find_tensors(struct lks__golf *m)
{
    const lks__table *table = m->table;
    for (int l = 0; l < m->c.n_layer; l++)
        m->lt[l] = (struct lks__golf_tensors){
            .attn_scale = lks__table_offset(table, "blocks.%d.attn_scale", l),
            .mlp_scale = lks__table_offset(table, "blocks.%d.mlp_scale", l),
            .mix = lks__table_offset(table, "blocks.%d.resid_mix", l),
            .gain = lks__table_offset(table, "blocks.%d.attn.q_gain", l),
            .wq = lks__table_offset(table, "blocks.%d.attn.c_q.weight", l),
            .wk = lks__table_offset(table, "blocks.%d.attn.c_k.weight", l),
            .wv = lks__table_offset(table, "blocks.%d.attn.c_v.weight", l),
            .wo = lks__table_offset(table, "blocks.%d.attn.proj.weight", l),
            .fc = lks__table_offset(table, "blocks.%d.mlp.fc.weight", l),
            .fc2 = lks__table_offset(table, "blocks.%d.mlp.proj.weight", l),
        };
    m->emb = lks__table_offset(table, "tok_emb.weight");
    m->head_w = m->c.tie_embeddings ? m->emb : lks__table_offset(table, "lm_head.weight");
    m->skip_weights = lks__table_offset(table, "skip_weights");
}

/* Rounded as in the script's Rotary: each frequency and each product to float. */
static lks_status make_rotary(struct lks__golf *m)
{
    const size_t half = m->hs / 2;
    LKS__TRY(lks__mirror_open(m->device, 2 * rotary_floats(m) * sizeof(float), &m->rotary));
    float *cosine = m->rotary.host, *sine = cosine + rotary_floats(m);
    for (size_t j = 0; j < half; j++) {
        float power = (float)pow((double)m->c.rope_base, (double)((float)(2 * j) / (float)m->hs));
        float frequency = 1.0f / power;
        for (size_t t = 0; t < (size_t)m->c.block_size; t++) {
            float angle = (float)t * frequency;
            cosine[t * half + j] = (float)cos((double)angle);
            sine[t * half + j] = (float)sin((double)angle);
        }
    }
    m->cosine = m->rotary.dev;
    m->sine = m->cosine + rotary_floats(m);
    lks__mirror_to_device(&m->rotary, LKS__QUEUE_COMPUTE, 0, m->rotary.bytes);
    return LKS_OK;
}

static void golf_close(void *state)
{
    release(state);
    free(state);
}

static lks_status golf_open(const lks__model_config *config, const lks__table *table, int batch,
                            lks__device *device, void **state_p)
{
    lks__attention_shape shape = {(size_t)batch, (size_t)config->block_size, (size_t)config->n_head,
                                  (size_t)(config->n_embd / config->n_head),
                                  (size_t)config->n_kv_head};
    LKS__TRY(lks__attention_check(&shape));
    struct lks__golf *m = calloc(1, sizeof *m);
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
    if (st == LKS_OK)
        st = make_rotary(m);
    if (st != LKS_OK)
        goto fail;
    lks__carver v = {m->arena, 0};
    carve_all(m, &v);
    find_tensors(m);
    *state_p = m;
    return LKS_OK;
fail:
    golf_close(m);
    return st;
}

/* --- forward and backward -------------------------------------------------------------------- */

static void beat(const struct lks__golf_pass *p)
{
    if (p->bw != NULL && p->bw->beat != NULL)
        p->bw->beat(p->bw->beat_ctx);
}

static void done(const struct lks__golf_pass *p, int group)
{
    beat(p);
    p->bw->done(p->bw->done_ctx, group);
}

/* From tokens to the output of the final norm. */
static void forward(const struct lks__golf_pass *p)
{
    struct lks__golf *m = p->m;
    lks__trace_begin(LKS__SPAN_FORWARD, -1);
    m->layers->golf_embed_fwd(m->ex, m->x0, m->x0_rms, p->mb->tokens, p->params + m->emb, p->rows,
                              m->C);
    for (int l = 0; l < m->c.n_layer; l++) {
        lks__trace_begin(LKS__SPAN_FORWARD_LAYER, l);
        lks__golf_block_forward(p, l);
        lks__trace_end();
        beat(p);
    }
    m->layers->golf_norm_fwd(m->ex, m->dx0, m->final_rms, m->la[m->c.n_layer - 1].out, p->rows,
                             m->C);
    lks__trace_end();
}

/* From the gradient of the final norm's output (in m->norm) back to the embedding. */
static void backward(const struct lks__golf_pass *p)
{
    struct lks__golf *m = p->m;
    const int n_layer = m->c.n_layer;
    int group = 0;
    lks__trace_begin(LKS__SPAN_BACKWARD, -1);
    if (!m->c.tie_embeddings)
        done(p, group++);
    m->layers->golf_norm_bwd(m->ex, m->dx, m->norm, m->la[n_layer - 1].out, m->final_rms, p->rows,
                             m->C);
    m->layers->clear(m->ex, m->dx0, p->rows * m->C);
    for (int l = n_layer - 1; l >= 0; l--) {
        lks__trace_begin(LKS__SPAN_BACKWARD_LAYER, l);
        lks__golf_block_backward(p, l);
        lks__trace_end();
        done(p, group++);
    }
    m->layers->accumulate(m->ex, m->dx, m->dx0, p->rows * m->C);
    m->layers->golf_embed_bwd(m->ex, lks__backward_grads(p->bw, group) + m->emb, m->norm, m->dx,
                              p->mb->tokens, p->params + m->emb, m->x0_rms, p->rows, m->C);
    done(p, group);
    lks__trace_end();
}

/* --- the functions of model.h ---------------------------------------------------------------- */

static struct lks__golf_pass pass_of(struct lks__golf *m, const float *params,
                                     const lks__micro_batch *mb, const lks__backward *bw)
{
    return (struct lks__golf_pass){m, params, mb, bw, (size_t)mb->B * (size_t)mb->T};
}

static void golf_train(void *state, const float *params, const lks__micro_batch *mb,
                       const lks__backward *bw, float *loss)
{
    struct lks__golf *m = state;
    struct lks__golf_pass p = pass_of(m, params, mb, bw);
    float *g = lks__backward_grads(bw, m->c.tie_embeddings ? m->table->n_groups - 1 : 0);
    forward(&p);
    lks__head_loss(m->layers, m->ex, &m->head, loss, m->norm, g + m->head_w, m->dx0,
                   params + m->head_w, mb->targets, p.rows, (size_t)m->c.vocab_size, m->C);
    backward(&p);
}

static void golf_loss(void *state, const float *params, const lks__micro_batch *mb, float *loss)
{
    struct lks__golf *m = state;
    struct lks__golf_pass p = pass_of(m, params, mb, NULL);
    forward(&p);
    lks__head_loss(m->layers, m->ex, &m->head, loss, NULL, NULL, m->dx0, params + m->head_w,
                   mb->targets, p.rows, (size_t)m->c.vocab_size, m->C);
}

static void golf_forward(void *state, const float *params, const lks__micro_batch *mb,
                         const lks__backward *bw)
{
    struct lks__golf_pass p = pass_of(state, params, mb, bw);
    forward(&p);
}

static bool golf_activation(const void *state, int i, lks__activation *a)
{
    const struct lks__golf *m = state;
    enum { A_LAYER = 6 };
    const int l = (i - 1) / A_LAYER, n_layer = m->c.n_layer;
    if (i == 0 || l >= n_layer) {
        *a = (lks__activation){.x = i == 0 ? m->x0 : m->dx0, .width = m->C};
        snprintf(a->module, sizeof a->module, "%s", i == 0 ? "tok_emb" : "final_norm");
        return i <= n_layer * A_LAYER + 1;
    }
    const struct lks__golf_acts *la = &m->la[l];
    const struct {
        const char *name;
        const float *x;
        size_t width;
    } of_layer[A_LAYER] = {
        {"attn.c_q", la->q_raw, m->C},  {"attn.c_k", la->k_raw, m->KV}, {"attn.c_v", la->v, m->KV},
        {"attn.proj", la->x_mid, m->C}, {"mlp.fc", la->fc, m->H},       {"mlp.proj", la->out, m->C},
    };
    const int k = (i - 1) % A_LAYER;
    *a = (lks__activation){.x = of_layer[k].x, .width = of_layer[k].width};
    snprintf(a->module, sizeof a->module, "blocks.%d.%s", l, of_layer[k].name);
    return true;
}

static void *golf_scratch(void *state, size_t *bytes_p)
{
    struct lks__golf *m = state;
    *bytes_p = m->arena_bytes;
    return m->arena;
}

static void golf_logits(void *state, const float *params, const int32_t *tokens, int T,
                        float *logits)
{
    struct lks__golf *m = state;
    lks__micro_batch mb = {tokens, NULL, 1, T};
    struct lks__golf_pass p = pass_of(m, params, &mb, NULL);
    forward(&p);
    const size_t V = (size_t)m->c.vocab_size;
    m->layers->linear_fwd(m->ex, logits, V, m->dx0 + (p.rows - 1) * m->C, params + m->head_w, 1, V,
                          m->C, NULL);
    m->layers->cap_logits(m->ex, logits, V, m->c.logit_softcap);
}

/* 6 N + 12 L C T; N excludes an embedding that is only looked up. */
static double golf_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    double n = (double)table->n_params;
    if (!c->tie_embeddings)
        n -= (double)c->vocab_size * c->n_embd;
    return 6.0 * n + 12.0 * c->n_layer * (double)c->n_embd * c->block_size;
}

const struct lks__model_ops lks__model_golf = {
    .name = "golf",
    .table = lks__table_golf,
    .init = lks__init_golf,
    .activation_bytes = golf_activation_bytes,
    .open = golf_open,
    .close = golf_close,
    .train = golf_train,
    .loss = golf_loss,
    .forward = golf_forward,
    .activation = golf_activation,
    .logits = golf_logits,
    .scratch = golf_scratch,
    .flops_per_token = golf_flops_per_token,
};
