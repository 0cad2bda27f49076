#include "model/frame.h"

#include <stdlib.h>
#include <string.h>

#include "base/trace.h"

lks_status lks__model_tensors(const lks__model_config *config, lks__table *table)
{
    return config->ops->table(config, table);
}

lks_status lks__model_table(const lks__model_config *config, lks__table *table)
{
    LKS__TRY(lks__model_tensors(config, table));
    return lks__table_lay_out(table);
}

uint64_t lks__model_init(const lks__model_config *config, const lks__table *table, lks__mt *g,
                         float *params)
{
    return config->ops->init(config, table, g, params);
}

bool lks__model_has_positions(const lks__model_config *config)
{
    return config->ops->positions;
}

/* --- how far backward goes -------------------------------------------------------------------- */

/* The lowest layer that backward must reach for the tensor's gradient. */
static int lowest_for(const lks__model_config *c, const lks__table *table,
                      const lks__table_tensor *t)
{
    if (t->layer >= 0)
        return t->layer;
    if (t->kind == LKS__PARAM_HEAD)
        return c->n_layer + 1;
    if (c->ops->lowest != NULL)
        return c->ops->lowest(c, t);
    return t->group == 0 && table->n_groups > c->n_layer + 1 ? c->n_layer : -1;
}

static int lowest_of(const lks__model_config *c, const lks__table *table)
{
    int lowest = c->n_layer + 1;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        const int reaches = t->frozen ? lowest : lowest_for(c, table, t);
        lowest = reaches < lowest ? reaches : lowest;
    }
    return lowest;
}

static size_t lowest_field_of(const lks__table *table, int lowest)
{
    size_t field = SIZE_MAX;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (!t->frozen && t->layer == lowest && t->field < field)
            field = t->field;
    }
    return field;
}

/* Excludes products that frozen tensors make unnecessary: a frozen matrix has no gradient, and a
 * layer that backward doesn't reach has no gradient of its input either. */
double lks__model_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    const int lowest = lowest_of(c, table);
    double flops = c->ops->flops_per_token(c, table);
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->frozen && t->kind == LKS__PARAM_MATRIX)
            flops -= (t->layer < lowest ? 4.0 : 2.0) * (double)t->count;
    }
    if (lowest > 0) /* attention's backward */
        flops -=
            8.0 * (lowest < c->n_layer ? lowest : c->n_layer) * (double)c->n_embd * c->block_size;
    return flops;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Copy the field of layer `l` that a row names: a pointer of one of two types, hence memcpy(). */
static char *field_of(const lks__model *m, int l, const lks__activation_row *row)
{
    return (char *)m->la + (size_t)l * m->ops->layer_activations + row->field;
}

void *lks__model_activation(const lks__model *m, int l, const lks__activation_row *row)
{
    void *x;
    memcpy(&x, field_of(m, l, row), sizeof x);
    return x;
}

static void carve_layers(lks__model *m, lks__carver *v)
{
    lks__activation_row rows[LKS__MOST_ACTIVATIONS];
    const int n = m->ops->activations(m, rows);
    for (int l = 0; l < m->c.n_layer; l++)
        for (int i = 0; i < n; i++) {
            const bool shared = rows[i].recompute <= m->recompute;
            void *x;
            if (shared && rows[i].work != NULL)
                x = *rows[i].work;
            else if (shared && l > 0)
                x = lks__model_activation(m, 0, &rows[i]);
            else if (rows[i].of == LKS__OF_ACTS)
                x = lks__carve_acts(v, m->max_rows, rows[i].width);
            else
                x = lks__carve_floats(v, m->max_rows, rows[i].width);
            memcpy(field_of(m, l, &rows[i]), &x, sizeof x);
        }
}

static void carve_all(lks__model *m, lks__carver *v)
{
    m->head.sum_rows = lks__head_sum_rows(m->layers, m->V);
    m->head.chunk_rows = lks__head_chunk_rows(m->layers, m->max_rows, m->V, m->C);
    m->head.ld = lks__round_up(m->V, 16);
    m->head.act_bytes = m->act_bytes;
    m->ops->carve(m, v);
    carve_layers(m, v);
    m->head.row_loss = lks__carve(v, m->max_rows, 1, sizeof *m->head.row_loss);
}

static void release(lks__model *m)
{
    if (m->ops->close != NULL)
        m->ops->close(m);
    if (m->arena != NULL)
        m->device->ops->release(m->device, m->arena, m->arena_bytes);
    free(m->la);
    free(m->lt);
    free(m);
}

/* Store every tensor's offset in the field that its row names. */
static void find_tensors(lks__model *m)
{
    lks__table_offsets(m->table, -1, m->once, m->ops->once_bytes);
    for (int l = 0; l < m->c.n_layer; l++)
        lks__table_offsets(m->table, l, (char *)m->lt + (size_t)l * m->ops->layer_tensors,
                           m->ops->layer_tensors);
    m->lowest = lowest_of(&m->c, m->table);
    m->lowest_field = lowest_field_of(m->table, m->lowest);
}

/* The passes for which a model is opened: batches of sequences of block_size, or forward passes of
 * some rows. */
struct use {
    int batch;
    size_t rows; /* 0: the rows of the batch */
};

/* Set up a model without its arena and compute the arena's size; table may be NULL if only the size
 * is needed. */
static lks_status measure(const lks__model_config *c, const lks__table *table, struct use use,
                          const lks__layers *layers, lks__model **model_p)
{
    lks__carver v = {.act_bytes = layers->act_bytes(c->bf16)};
    LKS__TRY(c->ops->check(c, use.batch));
    lks__model *m = calloc(1, c->ops->bytes);
    LKS__MEMORY(m, "for the model");
    m->c = *c;
    m->ops = c->ops;
    m->table = table;
    m->layers = layers;
    m->act_bytes = v.act_bytes;
    m->forward_only = use.rows > 0;
    m->recompute = m->forward_only ? LKS__RECOMPUTE_BLOCK : c->recompute;
    m->max_rows = use.rows > 0 ? use.rows : (size_t)use.batch * (size_t)c->block_size; /* int */
    m->C = (size_t)c->n_embd;
    m->V = (size_t)c->vocab_size;
    m->once = (char *)m + c->ops->once;
    m->la = calloc((size_t)c->n_layer, c->ops->layer_activations);
    m->lt = calloc((size_t)c->n_layer, c->ops->layer_tensors);
    lks_status st = LKS_OK;
    if (m->la == NULL || m->lt == NULL)
        st = lks__no_memory("for %d layers", c->n_layer);
    if (st == LKS_OK) {
        if (table != NULL)
            find_tensors(m);
        c->ops->size(m);
        carve_all(m, &v);
        m->arena_bytes = (size_t)v.used;
        if (v.too_large)
            st = lks__fail(LKS_ERR_CONFIG,
                           "batch_size = %d of block_size = %d is more than memory can address",
                           use.batch, c->block_size);
    }
    if (st == LKS_OK)
        *model_p = m;
    else
        release(m);
    return st;
}

static lks_status bytes_for(const lks__model_config *config, struct use use,
                            const lks__layers *layers, size_t *bytes_p)
{
    lks__model *m;
    LKS__TRY(measure(config, NULL, use, layers, &m));
    *bytes_p = m->arena_bytes + (m->ops->more_bytes == NULL ? 0 : m->ops->more_bytes(m));
    release(m);
    return LKS_OK;
}

lks_status lks__model_activation_bytes(const lks__model_config *config, int batch,
                                       const lks__layers *layers, size_t *bytes_p)
{
    return bytes_for(config, (struct use){batch, 0}, layers, bytes_p);
}

lks_status lks__model_forward_bytes(const lks__model_config *config, size_t rows,
                                    const lks__layers *layers, size_t *bytes_p)
{
    return bytes_for(config, (struct use){1, rows}, layers, bytes_p);
}

static lks_status open_arena(lks__model *m)
{
    lks_status st = m->device->ops->alloc(m->device, m->arena_bytes, &m->arena);
    if (st != LKS_ERR_NOMEM)
        return st;
    return lks__fail(LKS_ERR_NOMEM,
                     "no memory%s%s for %.1f MB of activations (%zu tokens at once): use a smaller "
                     "%s",
                     m->device->which[0] != '\0' ? " on " : "", m->device->which,
                     (double)m->arena_bytes / 1e6, m->max_rows,
                     m->forward_only ? "--batch_size or --num_samples"
                                     : "batch_size, with more gradient_accumulation_steps, or "
                                       "--recompute=block");
}

static lks_status open_model(const lks__model_config *config, const lks__table *table,
                             struct use use, lks__device *device, lks__model **model_p)
{
    lks__model *m;
    LKS__TRY(measure(config, table, use, device->layers, &m));
    m->device = device;
    m->ex = device->ex;
    lks_status st = open_arena(m);
    if (st == LKS_OK) {
        lks__carver v = {.base = m->arena, .act_bytes = m->act_bytes};
        carve_all(m, &v);
    }
    if (st == LKS_OK && m->ops->open != NULL)
        st = m->ops->open(m);
    if (st == LKS_OK)
        *model_p = m;
    else
        release(m);
    return st;
}

lks_status lks__model_open(const lks__model_config *config, const lks__table *table, int batch,
                           lks__device *device, lks__model **model_p)
{
    return open_model(config, table, (struct use){batch, 0}, device, model_p);
}

lks_status lks__model_open_forward(const lks__model_config *config, const lks__table *table,
                                   size_t rows, lks__device *device, lks__model **model_p)
{
    return open_model(config, table, (struct use){1, rows}, device, model_p);
}

void lks__model_close(lks__model *m)
{
    if (m == NULL)
        return;
    lks__device_drain(m->device);
    release(m);
}

void *lks__model_scratch(lks__model *m, size_t *bytes_p)
{
    *bytes_p = m->arena_bytes;
    return m->arena;
}

/* --- a pass ----------------------------------------------------------------------------------- */

lks__pass lks__pass_of(lks__model *m, const float *params, const lks__micro_batch *mb,
                       const lks__backward *bw)
{
    return (lks__pass){m, params, mb, bw, (size_t)mb->B * (size_t)mb->T, NULL, false};
}

static void beat(const lks__pass *p)
{
    if (p->bw != NULL)
        lks__beat_now(&p->bw->beat);
}

static void done(const lks__pass *p, int group)
{
    const lks__model *m = p->m;
    beat(p);
    if (p->bw->done != NULL && !lks__table_is_empty(m->table, group))
        p->bw->done(p->bw->done_ctx, group);
}

void lks__pass_attention(const lks__pass *p, int layer, const lks__attention_shape *shape,
                         lks__act *out, float *lse, const lks__attention_in *in,
                         const lks__dropout *drop)
{
    const lks__model *m = p->m;
    if (p->kv == NULL) {
        m->layers->attention_fwd(m->ex, shape, out, lse, in, drop);
        return;
    }
    const size_t from = (size_t)layer * p->kv->layer;
    const lks__attention_cache cache = {lks__act_at(p->kv->k, from, m->act_bytes),
                                        lks__act_at(p->kv->v, from, m->act_bytes), p->kv->T,
                                        p->kv->at};
    m->layers->attention_cached_fwd(m->ex, shape, out, &cache, in);
}

static void visit(const lks__visitor *v, int layer)
{
    if (v != NULL)
        v->layer_done(v->ctx, layer);
}

void lks__model_forward(const lks__pass *p, const lks__visitor *visitor)
{
    const lks__model *m = p->m;
    lks__trace_begin(LKS__SPAN_FORWARD, -1);
    m->ops->embed_forward(p);
    visit(visitor, -1);
    for (int l = 0; l < m->c.n_layer; l++) {
        lks__trace_begin(LKS__SPAN_FORWARD_LAYER, l);
        m->ops->layer_forward(p, l);
        lks__trace_end();
        visit(visitor, l);
        beat(p);
    }
    m->ops->last_forward(p);
    visit(visitor, m->c.n_layer);
    lks__trace_end();
}

/* Recompute the activations that --recompute=block didn't keep. The last layer's are still valid
 * from forward. */
static void recompute_layer(const lks__pass *p, int l)
{
    const lks__model *m = p->m;
    if (m->recompute < LKS__RECOMPUTE_BLOCK || l == m->c.n_layer - 1)
        return;
    lks__pass pass = *p;
    pass.recompute = true;
    lks__trace_begin(LKS__SPAN_AGAIN_LAYER, l);
    m->ops->layer_forward(&pass, l);
    lks__trace_end();
    beat(p);
}

/* From the gradient of the head's input back to the embedding, or to the lowest layer that has a
 * trained tensor. Reports groups in their order: the tensors after the layers, if any, the layers
 * from last to first, the tensors before the layers. */
static void backward(const lks__pass *p)
{
    const lks__model *m = p->m;
    int group = 0;
    lks__trace_begin(LKS__SPAN_BACKWARD, -1);
    if (m->lowest <= m->c.n_layer)
        m->ops->last_backward(p);
    if (m->table->n_groups > m->c.n_layer + 1)
        done(p, group++);
    for (int l = m->c.n_layer - 1; l >= 0; l--) {
        if (l >= m->lowest) {
            recompute_layer(p, l);
            lks__trace_begin(LKS__SPAN_BACKWARD_LAYER, l);
            m->ops->layer_backward(p, l);
            lks__trace_end();
        }
        done(p, group++);
    }
    if (m->lowest < 0)
        m->ops->embed_backward(p);
    done(p, group);
    lks__trace_end();
}

void lks__model_train(lks__model *m, const float *params, const lks__micro_batch *mb,
                      const lks__backward *bw, float *loss)
{
    const lks__pass p = lks__pass_of(m, params, mb, bw);
    lks__act *dy = m->lowest <= m->c.n_layer ? m->dy : NULL;
    lks__head head = m->head;
    head.fresh = bw->fresh;
    lks__outputs outputs = {&p, bw->output, bw->output_ctx};
    const lks__visitor visitor = {lks__outputs_visit, &outputs};
    lks__model_forward(&p, bw->output != NULL ? &visitor : NULL);
    lks__head_loss(m->layers, m->ex, &head, loss, dy, lks__grad_at(&p, m->head_group, m->head_w),
                   m->y, params + m->head_w, mb->targets, p.rows, m->V, m->C);
    backward(&p);
}

void lks__model_loss(lks__model *m, const float *params, const lks__micro_batch *mb, float *loss)
{
    const lks__pass p = lks__pass_of(m, params, mb, NULL);
    lks__model_forward(&p, NULL);
    lks__head_loss(m->layers, m->ex, &m->head, loss, NULL, NULL, m->y, params + m->head_w,
                   mb->targets, p.rows, m->V, m->C);
}

void lks__model_row_losses(lks__model *m, const float *params, const lks__micro_batch *mb,
                           double *losses)
{
    const lks__pass p = lks__pass_of(m, params, mb, NULL);
    lks__head head = m->head;
    head.row_loss = losses;
    lks__model_forward(&p, NULL);
    lks__head_loss(m->layers, m->ex, &head, NULL, NULL, NULL, m->y, params + m->head_w, mb->targets,
                   p.rows, m->V, m->C);
}
