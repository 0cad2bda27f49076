/* model/gpt2/gpt2.c - nanoGPT's model (model.py): tensors, embedding, last norm. The blocks are in
 * gpt2_block.c. */
#include "model/gpt2/gpt2.h"

#include <stddef.h>

/* --- tensors --------------------------------------------------------------------------------- */

static lks_status check_shape(const lks__model_config *c)
{
    if (c->n_embd % c->n_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "n_embd = %d is not a multiple of n_head = %d: every head takes an equal "
                         "part of the width",
                         c->n_embd, c->n_head);
    uint64_t largest, all;
    uint64_t rows = (uint64_t)(c->vocab_size > c->block_size ? c->vocab_size : c->block_size);
    if (!lks__mul(rows + 16 * (uint64_t)c->n_layer * (uint64_t)c->n_embd, (uint64_t)c->n_embd,
                  &largest) ||
        !lks__mul(largest, 8 * sizeof(float), &all) || all > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG, "the model's shape is larger than memory can address");
    return LKS_OK;
}

#define IS_VECTOR(d0, d1) ((d1) == 0)
#define ROW(of, matrix, field_, name_, shape_, init_, always)                                      \
    {.field = offsetof(struct of, field_),                                                         \
     .name = name_,                                                                                \
     LKS__TENSOR_SHAPE shape_,                                                                     \
     .init = LKS__INIT_##init_,                                                                    \
     .kind = IS_VECTOR shape_ ? LKS__PARAM_SCALAR : LKS__PARAM_##matrix,                           \
     .there = (always) || c->bias,                                                                 \
     .overwritten = !IS_VECTOR shape_ && (LKS__PARAM_##matrix == LKS__PARAM_MATRIX ||              \
                                          LKS__INIT_##init_ == LKS__INIT_TIED)},
#define ONCE(...)  ROW(lks__gpt2_once, EMBED, __VA_ARGS__)
#define LAYER(...) ROW(lks__gpt2_tensors, MATRIX, __VA_ARGS__)

static lks_status gpt2_table(const lks__model_config *c, lks__table *table)
{
    const size_t C = (size_t)c->n_embd, T = (size_t)c->block_size, V = (size_t)c->vocab_size;
    const lks__tensor_row first[] = {LKS__GPT2_FIRST(ONCE)}, last[] = {LKS__GPT2_LAST(ONCE)};
    const lks__tensor_row layer[] = {LKS__GPT2_LAYER(LAYER)};
    const size_t n_first = sizeof first / sizeof *first, n_last = sizeof last / sizeof *last;
    const size_t n_layer = sizeof layer / sizeof *layer;
    LKS__TRY(check_shape(c));
    LKS__TRY(
        lks__table_open(table, n_first + (size_t)c->n_layer * n_layer + n_last, c->n_layer + 2));
    lks__table_add(table, NULL, -1, c->n_layer + 1, first, n_first);
    for (int l = 0; l < c->n_layer; l++)
        lks__table_add(table, lks__model_gpt2.layer, l, c->n_layer - l, layer, n_layer);
    lks__table_add(table, NULL, -1, 0, last, n_last);
    return LKS_OK;
}

/* 6 N + 12 L C T, N without the position embedding, as in nanoGPT's estimate_mfu. */
static double gpt2_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    double n = (double)table->n_params - (double)c->block_size * c->n_embd;
    return 6.0 * n + 12.0 * c->n_layer * (double)c->n_embd * c->block_size;
}

/* --- memory ---------------------------------------------------------------------------------- */

static lks_status gpt2_check(const lks__model_config *c, int batch)
{
    lks__attention_shape shape = {(size_t)batch, (size_t)c->block_size, (size_t)c->n_head,
                                  (size_t)(c->n_embd / c->n_head), 0};
    uint64_t elements; /* of the largest activations that dropout acts on, besides scores */
    LKS__TRY(lks__attention_check(&shape));
    if (c->dropout > 0.0f &&
        (!lks__mul((uint64_t)batch * (uint64_t)c->block_size, (uint64_t)c->n_embd, &elements) ||
         elements > LKS__DROPOUT_MOST))
        return lks__fail(LKS_ERR_CONFIG,
                         "batch_size = %d of block_size = %d and n_embd = %d has more than 2^34 "
                         "activations, which dropout can't number; make the batch smaller",
                         batch, c->block_size, c->n_embd);
    return LKS_OK;
}

static void gpt2_size(void *model)
{
    struct lks__gpt2 *m = model;
    m->f.head_w = m->t.wte;
    m->f.head_group = m->f.c.n_layer + 1;
}

static int gpt2_activations(const void *model, lks__activation_row *rows)
{
    const struct lks__gpt2 *m = model;
    const size_t C = m->f.C, NH = (size_t)m->f.c.n_head;
    int n = 0;
#define X(...) rows[n++] = LKS__ACTIVATION_ROW(struct lks__gpt2_acts, __VA_ARGS__);
    LKS__GPT2_ACTIVATIONS(X)
#undef X
    return n;
}

static void gpt2_carve(void *model, lks__carver *v)
{
    struct lks__gpt2 *m = model;
    const size_t rows = m->f.max_rows, C = m->f.C;
    m->f.x0 = lks__carve_acts(v, rows, C);
    m->f.y = lks__carve_acts(v, rows, C);
    m->f.dy = lks__carve_acts(v, rows, C);
    m->meanf = lks__carve_floats(v, rows, 1);
    m->rstdf = lks__carve_floats(v, rows, 1);
    m->dx = lks__carve_acts(v, rows, C);
    m->d_drop = lks__carve_acts(v, rows, C);
    m->d_wide = lks__carve_acts(v, rows, 4 * C);
    m->ln_partial = lks__carve_floats(v, m->f.layers->layernorm_partial_floats(rows, C), 1);
    m->f.head.logits = lks__carve_acts(v, m->f.head.chunk_rows, m->f.head.ld);
}

static int gpt2_kv_heads(const lks__model_config *c)
{
    return c->n_head;
}

/* --- forward and backward -------------------------------------------------------------------- */

static void gpt2_embed_forward(const lks__pass *p)
{
    const struct lks__gpt2 *m = p->m;
    const lks__dropout drop = lks__gpt2_dropout(p, m->f.c.n_layer, LKS__DROP_EMBEDDING);
    m->f.layers->embedding_fwd(m->f.ex, m->f.x0, p->mb->tokens, p->params + m->t.wte,
                               p->params + m->t.wpe + lks__pass_at(p) * m->f.C, p->rows,
                               (size_t)p->mb->T, m->f.C, &drop);
}

static void gpt2_last_forward(const lks__pass *p)
{
    const struct lks__gpt2 *m = p->m;
    m->f.layers->layernorm_rows_fwd(m->f.ex, m->f.y, m->meanf, m->rstdf,
                                    lks__gpt2_input(m, m->f.c.n_layer), p->params + m->t.lnfw,
                                    lks__gpt2_at(p->params, m->t.lnfb), p->rows, m->f.C);
}

static void gpt2_last_backward(const lks__pass *p)
{
    const struct lks__gpt2 *m = p->m;
    m->f.layers->act_clear(m->f.ex, m->dx, p->rows * m->f.C);
    m->f.layers->layernorm_rows_bwd(m->f.ex, m->dx, lks__grad_at(p, 0, m->t.lnfw),
                                    lks__grad_at(p, 0, m->t.lnfb), m->f.dy,
                                    lks__gpt2_input(m, m->f.c.n_layer), p->params + m->t.lnfw,
                                    m->meanf, m->rstdf, p->rows, m->f.C, m->ln_partial);
}

static void gpt2_embed_backward(const lks__pass *p)
{
    const struct lks__gpt2 *m = p->m;
    const lks__dropout drop = lks__gpt2_dropout(p, m->f.c.n_layer, LKS__DROP_EMBEDDING);
    const int group = m->f.c.n_layer + 1;
    m->f.layers->embedding_bwd(m->f.ex, lks__grad_at(p, group, m->t.wte),
                               lks__grad_at(p, group, m->t.wpe), lks__gpt2_dropped(p, m->dx, &drop),
                               p->mb->tokens, p->rows, (size_t)p->mb->T, m->f.C);
}

const struct lks__model_ops lks__model_gpt2 = {
    .table = gpt2_table,
    .init = lks__init_gpt2,
    .flops_per_token = gpt2_flops_per_token,
    .bytes = sizeof(struct lks__gpt2),
    .once = offsetof(struct lks__gpt2, t),
    .once_bytes = sizeof(struct lks__gpt2_once),
    .layer_tensors = sizeof(struct lks__gpt2_tensors),
    .layer_activations = sizeof(struct lks__gpt2_acts),
    .positions = true,
    .layer = "transformer.h",
    .first = "transformer.wte",
    .last = "transformer.ln_f",
    .check = gpt2_check,
    .size = gpt2_size,
    .activations = gpt2_activations,
    .carve = gpt2_carve,
    .kv_heads = gpt2_kv_heads,
    .embed_forward = gpt2_embed_forward,
    .layer_forward = lks__gpt2_block_forward,
    .last_forward = gpt2_last_forward,
    .last_backward = gpt2_last_backward,
    .layer_backward = lks__gpt2_block_backward,
    .embed_backward = gpt2_embed_backward,
};
