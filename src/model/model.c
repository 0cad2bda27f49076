#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lks__model {
    const struct lks__model_ops *ops;
    void *state;
    lks__device *device;
};

static const struct lks__model_ops *const families[] = {
    [LKS__FAMILY_GPT2] = &lks__model_gpt2,
    [LKS__FAMILY_GOLF] = &lks__model_golf,
};

static const struct lks__model_ops *ops_of(const lks__model_config *config)
{
    return families[config->family];
}

lks_status lks__model_table(const lks__model_config *config, lks__table *table)
{
    return ops_of(config)->table(config, table);
}

uint64_t lks__model_init(const lks__model_config *config, const lks__table *table, lks__mt *g,
                         float *params)
{
    return ops_of(config)->init(config, table, g, params);
}

lks_status lks__model_activation_bytes(const lks__model_config *config, int batch, size_t *bytes_p)
{
    return ops_of(config)->activation_bytes(config, batch, bytes_p);
}

lks_status lks__model_open(const lks__model_config *config, const lks__table *table, int batch,
                           lks__device *device, lks__model **model_p)
{
    lks__model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the model");
    m->device = device;
    m->ops = ops_of(config);
    lks_status st = m->ops->open(config, table, batch, device, &m->state);
    if (st != LKS_OK) {
        free(m);
        return st;
    }
    *model_p = m;
    return LKS_OK;
}

void lks__model_close(lks__model *m)
{
    if (m == NULL)
        return;
    lks__device_finish(m->device, LKS__QUEUE_COMPUTE); /* if it fails, nothing will be computed */
    m->ops->close(m->state);
    free(m);
}

lks__device *lks__model_device(const lks__model *m)
{
    return m->device;
}

void lks__model_train(lks__model *m, const float *params, const lks__micro_batch *mb,
                      const lks__backward *bw, float *loss)
{
    m->ops->train(m->state, params, mb, bw, loss);
}

void lks__model_loss(lks__model *m, const float *params, const lks__micro_batch *mb, float *loss)
{
    m->ops->loss(m->state, params, mb, loss);
}

static bool all_finite(const float *x, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += !isfinite(x[i]);
    return bad == 0;
}

void lks__model_find_bad(lks__model *m, const float *params, const lks__micro_batch *mb,
                         const lks__backward *bw, char place[LKS__PLACE])
{
    lks__activation a;
    m->ops->forward(m->state, params, mb, bw);
    snprintf(place, LKS__PLACE, "lm_head");
    for (int i = 0; m->ops->activation(m->state, i, &a); i++) {
        if (all_finite(a.x, (size_t)mb->B * (size_t)mb->T * a.width))
            continue;
        memcpy(place, a.module, sizeof a.module);
        return;
    }
}

void *lks__model_scratch(lks__model *m, size_t *bytes_p)
{
    *bytes_p = 0;
    return m->ops->scratch == NULL ? NULL : m->ops->scratch(m->state, bytes_p);
}

void lks__model_logits(lks__model *m, const float *params, const int32_t *tokens, int T,
                       float *logits)
{
    m->ops->logits(m->state, params, tokens, T, logits);
}

double lks__model_flops_per_token(const lks__model_config *config, const lks__table *table)
{
    return ops_of(config)->flops_per_token(config, table);
}
