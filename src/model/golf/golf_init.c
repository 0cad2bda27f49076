/* model/golf/golf_init.c - initial parameters, drawn as in parameter-golf's train_gpt.py.
 *
 * Construction draws the embedding from N(0, 1) and every Linear from its default uniforms, in
 * table order; a tied embedding is drawn again at the end. Linears that the script later sets to
 * zero still consume their draws. */
#include <math.h>

#include "model/golf/golf.h"

/* Bound of torch.nn.Linear's kaiming_uniform_(a=sqrt(5)), rounded as in PyTorch: 1/sqrt(in). */
static float linear_bound(size_t in)
{
    double a = sqrt(5.0), gain = sqrt(2.0 / (1.0 + a * a));
    return (float)(sqrt(3.0) * (gain / sqrt((double)in)));
}

static void fill(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value;
}

/* Draw the embedding from N(0, 1). If it is small, it is drawn here even though it is drawn again
 * later: for fewer than 16 elements, normal_ keeps a value for its next call, which skipping would
 * lose. */
static void draw_embedding(const lks__model_config *c, const lks__table_tensor *t, lks__mt *g,
                           float *x)
{
    if (c->tie_embeddings && t->count >= 16)
        lks__mt_skip(g, lks__mt_normal_draws(t->count));
    else
        lks__mt_normal(g, x, t->count, 0.0f, 1.0f);
}

static void init_tensor(const lks__model_config *c, const lks__table_tensor *t, lks__mt *g,
                        float *x)
{
    switch (t->init) {
    case LKS__INIT_EMBED:
        draw_embedding(c, t, g, x);
        break;
    case LKS__INIT_LINEAR: {
        float bound = linear_bound(t->shape[1]);
        lks__mt_uniform(g, x, t->count, -bound, bound);
        break;
    }
    case LKS__INIT_ONE:
        fill(x, t->count, 1.0f);
        break;
    case LKS__INIT_MIX:
        fill(x, t->shape[1], 1.0f);
        break;
    case LKS__INIT_GAIN:
        fill(x, t->count, c->qk_gain_init);
        break;
    case LKS__INIT_ZEROED:
        lks__mt_skip(g, t->count);
        break;
    default:
        break;
    }
}

/* Number of 32-bit draws of `times` calls of normal_ on n elements. For fewer than 16 elements they
 * are drawn in pairs of four draws, across calls. */
static uint64_t normal_draws(size_t n, unsigned times)
{
    return n < 16 ? (times * (uint64_t)n + 1) / 2 * 4 : times * lks__mt_normal_draws(n);
}

uint64_t lks__init_golf(const lks__model_config *c, const lks__table *table, lks__mt *g,
                        float *params)
{
    const lks__table_tensor *embedding = NULL;
    uint64_t draws = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->init == LKS__INIT_LINEAR || t->init == LKS__INIT_ZEROED)
            draws += t->count;
        if (t->init == LKS__INIT_EMBED) {
            draws += normal_draws(t->count, c->tie_embeddings ? 2 : 1);
            embedding = t;
        }
        if (params != NULL)
            init_tensor(c, t, g, params + t->offset);
    }
    if (params != NULL && c->tie_embeddings)
        lks__mt_normal(g, params + embedding->offset, embedding->count, 0.0f,
                       c->tied_embed_init_std);
    return draws;
}
