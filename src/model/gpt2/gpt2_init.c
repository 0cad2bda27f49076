/* model/gpt2/gpt2_init.c - initial parameters, as nanoGPT's model.py draws them from PyTorch's CPU
 * generator.
 *
 * Construction draws too (embeddings N(0,1), then each Linear's default uniforms), then the model's
 * own init in module order, in which the tied embedding is drawn twice and the second draw stays,
 * then every c_proj.weight again. All of it advances the generator. */
#include <math.h>
#include <string.h>

#include "model/gpt2/gpt2.h"

/* The draws in the script's order. With `params` == NULL they are only counted. A draw whose values
 * are replaced later is skipped. */
struct script {
    lks__mt *g;
    float *params;
    uint64_t draws;
    bool kept; /* while counting: normal_ on fewer than 16 elements has kept its second value */
};

/* For fewer than 16 elements, normal_ makes pairs of doubles, two 32-bit draws each, and keeps the
 * second value of a pair for the next small call. */
static void small_normal(struct script *s, const lks__table_tensor *t, float std, bool last)
{
    float values[16];
    for (size_t i = 0; i < t->count; i++) {
        s->draws += s->kept ? 0 : 4;
        s->kept = !s->kept;
    }
    if (s->params == NULL)
        return;
    lks__mt_normal(s->g, values, t->count, 0.0f, std);
    if (last)
        memcpy(s->params + t->offset, values, t->count * sizeof(float));
}

static void normal(struct script *s, const lks__table_tensor *t, float std, bool last)
{
    if (t->count < 16) {
        small_normal(s, t, std, last);
        return;
    }
    uint64_t n = lks__mt_normal_draws(t->count);
    s->draws += n;
    if (s->params == NULL)
        return;
    if (last)
        lks__mt_normal(s->g, s->params + t->offset, t->count, 0.0f, std);
    else
        lks__mt_skip(s->g, n);
}

/* A uniform draw that is always replaced: Linear's default weight or bias. */
static void uniform(struct script *s, size_t n)
{
    s->draws += n;
    if (s->params != NULL)
        lks__mt_skip(s->g, n);
}

/* The table has the order of the script's modules. */
static bool is_embedding(const lks__table_tensor *t)
{
    return t->layer < 0 && t->n_dims == 2;
}

static bool is_linear(const lks__table_tensor *t)
{
    return t->layer >= 0 && t->n_dims == 2;
}

uint64_t lks__init_gpt2(const lks__model_config *c, const lks__table *table, lks__mt *g,
                        float *params)
{
    struct script s = {g, params, 0, false};
    const lks__table_tensor *t, *end = table->tensors + table->n_tensors, *tied = table->tensors;
    const float std = 0.02f, residual_std = (float)(0.02 / sqrt(2.0 * c->n_layer));
    while (tied->init != LKS__INIT_TIED)
        tied++;

    /* construction */
    for (t = table->tensors; t < end; t++)
        if (is_embedding(t))
            normal(&s, t, 1.0f, false);
    for (t = table->tensors; t < end; t++)
        if (is_linear(t)) {
            uniform(&s, t->count);
            if (c->bias)
                uniform(&s, t->shape[0]);
        }
    uniform(&s, tied->count); /* lm_head, before it is tied */

    /* apply(_init_weights), in module order; lm_head, the tied one, comes last */
    for (t = table->tensors; t < end; t++)
        if (t->n_dims == 2)
            normal(&s, t, std, t->init == LKS__INIT_NORMAL);
    normal(&s, tied, std, true);

    /* the projections into the residual stream again */
    for (t = table->tensors; t < end; t++)
        if (t->init == LKS__INIT_RESIDUAL)
            normal(&s, t, residual_std, true);

    for (t = table->tensors; t < end && params != NULL; t++)
        for (size_t j = 0; t->init == LKS__INIT_ONE && j < t->count; j++)
            params[t->offset + j] = 1.0f;
    return s.draws;
}
