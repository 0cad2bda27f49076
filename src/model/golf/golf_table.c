/* model/golf/golf_table.c - the tensors of parameter-golf's model (train_gpt.py, GPT and Block). */
#include <stddef.h>
#include <string.h>

#include "model/golf/golf.h"
#include "model/table/parts.h"

size_t lks__golf_encoders(const lks__model_config *c)
{
    return (size_t)c->n_layer / 2;
}

static lks_status check_shape(const lks__model_config *c)
{
    if (c->n_embd % c->n_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "model_dim = %d is not a multiple of num_heads = %d: every head takes an "
                         "equal part of the width",
                         c->n_embd, c->n_head);
    if (c->n_head % c->n_kv_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "num_heads = %d is not a multiple of num_kv_heads = %d: every key/value "
                         "head serves an equal number of query heads",
                         c->n_head, c->n_kv_head);
    if (c->n_embd / c->n_head % 2 != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "model_dim / num_heads = %d is odd: rotary positions rotate the two "
                         "halves of a head, so it must be even",
                         c->n_embd / c->n_head);
    /* A setting of 1e-60 is 0 as a float. In this form NaN fails, too. */
    if (!(c->logit_softcap > 0.0f))
        return lks__fail(LKS_ERR_CONFIG, "logit_softcap = %g: it must be greater than 0",
                         (double)c->logit_softcap);
    if (!(c->rope_base > 0.0f))
        return lks__fail(LKS_ERR_CONFIG, "rope_base = %g: it must be greater than 0",
                         (double)c->rope_base);
    return LKS_OK;
}

static lks_status check_size(const lks__model_config *c)
{
    uint64_t rows, floats, bytes, C = (uint64_t)c->n_embd, layer = 4 * C + 8;
    uint64_t mlp;
    if (!lks__mul(2 * C, (uint64_t)c->mlp_mult, &mlp) || !lks__add(layer, mlp, &layer) ||
        !lks__mul(layer, (uint64_t)c->n_layer, &rows) ||
        !lks__add(rows, 2 * (uint64_t)c->vocab_size, &rows) || !lks__mul(rows, C, &floats) ||
        !lks__mul(floats, 8 * sizeof(float), &bytes) || bytes > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG, "the model's shape is larger than memory can address");
    return LKS_OK;
}

#define ROW(of, field_, name_, shape_, init_, kind_)                                               \
    {.field = offsetof(struct of, field_),                                                         \
     .name = name_,                                                                                \
     LKS__TENSOR_SHAPE shape_,                                                                     \
     .init = LKS__INIT_##init_,                                                                    \
     .kind = LKS__PARAM_##kind_,                                                                   \
     .there = true,                                                                                \
     .overwritten = overwritten(c, LKS__PARAM_##kind_)},
#define ONCE(...)  ROW(lks__golf_once, __VA_ARGS__)
#define LAYER(...) ROW(lks__golf_tensors, __VA_ARGS__)

/* An embedding that is also the head is overwritten by the head's product. */
static bool overwritten(const lks__model_config *c, lks__param_kind kind)
{
    return kind == LKS__PARAM_EMBED ? c->tie_embeddings : kind != LKS__PARAM_SCALAR;
}

/* The script looks for parts of names. Among the layers' parameters, whose names then begin with
 * the layer's number, they select the matrices that Adam updates; among all tensors, those that
 * stay fp32 in an artifact. */
static void apply_parts(const lks__model_config *c, lks__table *table)
{
    for (size_t i = 0; i < table->n_tensors; i++) {
        lks__table_tensor *t = &table->tensors[i];
        t->keep_float = c->float_parts == NULL ? t->kind == LKS__PARAM_SCALAR
                                               : lks__parts_match(c->float_parts, t->name);
        if (c->scalar_parts == NULL || t->layer < 0 || t->n_dims < 2)
            continue;
        const char *name = t->name + strlen(lks__model_golf.layer) + 1;
        t->kind = lks__parts_match(c->scalar_parts, name) ? LKS__PARAM_SCALAR : LKS__PARAM_MATRIX;
    }
}

/* Backward completes the head, the layers from last to first, and the embedding, which may also be
 * the head. All layers of the second half add to the skip weights, so these belong to the last
 * group. */
lks_status lks__table_golf(const lks__model_config *c, lks__table *table)
{
    LKS__TRY(check_shape(c));
    LKS__TRY(check_size(c));
    const size_t C = (size_t)c->n_embd, V = (size_t)c->vocab_size, NH = (size_t)c->n_head;
    const size_t KV = C / NH * (size_t)c->n_kv_head, H = C * (size_t)c->mlp_mult;
    const size_t S = lks__golf_encoders(c);
    const lks__tensor_row first[] = {LKS__GOLF_FIRST(ONCE)}, last[] = {LKS__GOLF_LAST(ONCE)};
    const lks__tensor_row layer[] = {LKS__GOLF_LAYER(LAYER)};
    const size_t n_first = sizeof first / sizeof *first, n_last = sizeof last / sizeof *last;
    const size_t n_layer = sizeof layer / sizeof *layer;
    const int n_groups = c->n_layer + (c->tie_embeddings ? 1 : 2);
    LKS__TRY(lks__table_open(table, n_first + (size_t)c->n_layer * n_layer + n_last, n_groups));
    lks__table_add(table, NULL, -1, n_groups - 1, first, n_first);
    for (int l = 0; l < c->n_layer; l++)
        lks__table_add(table, lks__model_golf.layer, l, n_groups - 2 - l, layer, n_layer);
    if (!c->tie_embeddings)
        lks__table_add(table, NULL, -1, 0, last, n_last);
    apply_parts(c, table);
    return LKS_OK;
}
