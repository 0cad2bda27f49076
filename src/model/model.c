#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/mirror.h"

struct lks__model {
    const struct lks__model_ops *ops;
    void *state;
    lks__device *device;
};

static const struct lks__model_ops *ops_of(const lks__model_config *config)
{
    return config->ops;
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

lks_status lks__model_activation_bytes(const lks__model_config *config, int batch,
                                       const lks__layers *layers, size_t *bytes_p)
{
    return ops_of(config)->activation_bytes(config, batch, layers, bytes_p);
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
    lks__device_drain(m->device);
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

/* *first_p: the first activation with such a number; `n`: none has one. */
static lks_status first_bad(const lks__model *m, size_t rows, size_t n, const lks__mirror *slots,
                            size_t *first_p)
{
    lks__activation a;
    uint64_t *dev = slots->dev;
    const uint64_t *host = slots->host;
    for (size_t i = 0; i < n; i++) {
        m->ops->activation(m->state, (int)i, &a);
        m->device->layers->first_not_finite(m->device->ex, &dev[i], a.x, rows * a.width);
    }
    lks__mirror_to_host(slots, LKS__QUEUE_COMPUTE, 0, n * sizeof *dev);
    LKS__TRY(lks__device_finish(m->device, LKS__QUEUE_COMPUTE));
    for (*first_p = 0; *first_p < n; ++*first_p) {
        m->ops->activation(m->state, (int)*first_p, &a);
        if (host[*first_p] < rows * a.width)
            break;
    }
    return LKS_OK;
}

lks_status lks__model_find_bad(lks__model *m, const float *params, const lks__micro_batch *mb,
                               const lks__backward *bw, char place[LKS__PLACE])
{
    lks__activation a;
    lks__mirror slots;
    size_t n = 0, first;
    snprintf(place, LKS__PLACE, "lm_head");
    while (m->ops->activation(m->state, (int)n, &a))
        n++;
    LKS__TRY(lks__mirror_open(m->device, n * sizeof(uint64_t), &slots));
    m->ops->forward(m->state, params, mb, bw);
    lks_status st = first_bad(m, (size_t)mb->B * (size_t)mb->T, n, &slots, &first);
    if (st == LKS_OK && first < n) {
        m->ops->activation(m->state, (int)first, &a);
        memcpy(place, a.module, sizeof a.module);
    }
    lks__mirror_close(&slots);
    return st;
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
