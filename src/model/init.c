#include "model/init.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The draws in the script's order. With `params` == NULL they are only counted. A draw whose values
 * are replaced later is skipped. */
struct script {
    const lks__table *table;
    lks__mt *g;
    float *params;
    uint64_t draws;
    bool kept; /* while counting: normal_ under 16 elements has kept its second value */
};

/* Under 16 elements normal_ makes pairs of doubles, two 32-bit draws each, and keeps the second
 * value of a pair for the next small call. */
static void small_normal(struct script *s, const lks__tensor *t, float std, bool last)
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

static void normal(struct script *s, const lks__tensor *t, float std, bool last)
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

static const lks__tensor *tensor(const struct script *s, int layer, const char *name)
{
    char full[64];
    if (layer >= 0)
        snprintf(full, sizeof full, "transformer.h.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "transformer.%s", name);
    return lks__table_find(s->table, full);
}

/* The Linears of a block in construction order; each has .weight and, with biases on, .bias. */
static const char *const linears[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
enum { N_LINEARS = sizeof linears / sizeof linears[0] };

static const lks__tensor *weight(const struct script *s, int layer, int linear)
{
    char name[32];
    snprintf(name, sizeof name, "%s.weight", linears[linear]);
    return tensor(s, layer, name);
}

static bool is_residual(int linear)
{
    return linear == 1 || linear == 3;
}

uint64_t lks__init_gpt2(const lks__model_config *c, const lks__table *table, lks__mt *g,
                        float *params)
{
    struct script s = {table, g, params, 0, false};
    const lks__tensor *wte = tensor(&s, -1, "wte.weight"), *wpe = tensor(&s, -1, "wpe.weight");
    const float std = 0.02f;

    /* construction */
    normal(&s, wte, 1.0f, false);
    normal(&s, wpe, 1.0f, false);
    for (int l = 0; l < c->n_layer; l++)
        for (int i = 0; i < N_LINEARS; i++) {
            const lks__tensor *w = weight(&s, l, i);
            uniform(&s, w->count);
            if (c->bias)
                uniform(&s, w->shape[0]);
        }
    uniform(&s, wte->count); /* of lm_head, before it is tied */

    /* apply(_init_weights), in module order; lm_head comes last and is the same tensor as wte */
    normal(&s, wte, std, false);
    normal(&s, wpe, std, true);
    for (int l = 0; l < c->n_layer; l++)
        for (int i = 0; i < N_LINEARS; i++)
            normal(&s, weight(&s, l, i), std, !is_residual(i));
    normal(&s, wte, std, true);

    /* the projections into the residual stream, again */
    float residual_std = (float)(0.02 / sqrt(2.0 * c->n_layer));
    for (int l = 0; l < c->n_layer; l++)
        for (int i = 0; i < N_LINEARS; i++)
            if (is_residual(i))
                normal(&s, weight(&s, l, i), residual_std, true);

    if (params != NULL)
        for (size_t i = 0; i < table->n_tensors; i++) {
            const lks__tensor *t = &table->tensors[i];
            for (size_t j = 0; t->init == LKS__INIT_ONE && j < t->count; j++)
                params[t->offset + j] = 1.0f;
        }
    return s.draws;
}
