#include "model/model.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/sys.h"

struct lks__model {
    const struct lks__model_ops *ops;
    void *state;
    lks__exec ex;
    float *rounded; /* [count]; NULL: products read the parameters as they are */
    size_t count;
};

enum { ROUND_FLOATS = 1 << 16 }; /* a task's share */

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
    size_t bytes;
    LKS__TRY(ops_of(config)->activation_bytes(config, batch, &bytes));
    if (config->bf16) {
        lks__table table = {0};
        lks_status st = lks__model_table(config, &table);
        bytes += table.count * sizeof(float);
        lks__table_free(&table);
        if (st != LKS_OK)
            return st;
    }
    *bytes_p = bytes;
    return LKS_OK;
}

lks_status lks__model_open(const lks__model_config *config, const lks__table *table, int batch,
                           const lks__exec *ex, lks__model **model_p)
{
    lks__model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the model");
    m->ex = *ex;
    m->ex.bf16 = config->bf16;
    m->count = table->count;
    if (config->bf16) {
        m->rounded = lks__sys_mmap(m->count * sizeof(float), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m->rounded == NULL) {
            free(m);
            return lks__fail(LKS_ERR_NOMEM,
                             "no memory for %.1f MB of rounded weights: --dtype=float32 has none",
                             (double)table->count * sizeof(float) / 1e6);
        }
    }
    lks_status st = ops_of(config)->open(config, table, batch, &m->ex, &m->state);
    if (st != LKS_OK) {
        lks__model_close(m);
        return st;
    }
    m->ops = ops_of(config);
    *model_p = m;
    return LKS_OK;
}

void lks__model_close(lks__model *m)
{
    if (m == NULL)
        return;
    if (m->state != NULL)
        m->ops->close(m->state);
    if (m->rounded != NULL)
        lks__sys_munmap(m->rounded, m->count * sizeof(float));
    free(m);
}

struct rounding {
    const lks__kernels *k;
    float *y;
    const float *x;
    size_t n;
};

static void round_task(void *ctx, size_t task, int thread)
{
    const struct rounding *r = ctx;
    size_t first = task * ROUND_FLOATS, left = r->n - first;
    r->k->round_bf16(r->y + first, r->x + first, left < ROUND_FLOATS ? left : ROUND_FLOATS);
}

/* Each pass rounds anew, so that nobody has to tell when parameters have changed: it costs reading
 * and writing them once, where a pass has some hundred multiplications for each. */
static lks__values values_of(lks__model *m, const float *params)
{
    if (m->rounded == NULL)
        return (lks__values){params, params};
    lks__pool_run(m->ex.pool, (m->count + ROUND_FLOATS - 1) / ROUND_FLOATS, round_task,
                  &(struct rounding){m->ex.k, m->rounded, params, m->count});
    return (lks__values){params, m->rounded};
}

float lks__model_train(lks__model *m, const float *params, const lks__micro_batch *mb,
                       const lks__backward *bw)
{
    return m->ops->train(m->state, values_of(m, params), mb, bw);
}

float lks__model_loss(lks__model *m, const float *params, const lks__micro_batch *mb)
{
    return m->ops->loss(m->state, values_of(m, params), mb);
}

void lks__model_logits(lks__model *m, const float *params, const int32_t *tokens, int T,
                       float *logits)
{
    m->ops->logits(m->state, values_of(m, params), tokens, T, logits);
}

double lks__model_flops_per_token(const lks__model_config *config, const lks__table *table)
{
    return ops_of(config)->flops_per_token(config, table);
}
