#include "model/decode.h"

#include <math.h>
#include <stdlib.h>

#include "model/frame.h"

struct lks__decoder {
    lks__model *m;
    lks__kv kv; /* of sequence 0; k is NULL if they are not kept */
    lks__decoder_size size;
    size_t head;     /* elements of a head's keys in one sequence */
    size_t sequence; /* elements of all heads' keys in one sequence */
    size_t bytes;    /* of the keys, and again of the values */
};

static lks_status no_memory(const lks__model_config *c, const lks__decoder_size *size, double bytes)
{
    return lks__no_memory("for %.1f MB of keys and values (%d layers, %zu sequences of %zu "
                          "tokens): use fewer sequences or tokens",
                          2.0 * bytes / 1e6, c->n_layer, size->sequences, size->positions);
}

static bool keeps(const lks__model_config *c)
{
    return c->ops->kv_heads != NULL;
}

/* Larger passes don't read the weights less often, but take longer for the parts of a prompt. */
enum { CHUNK = 64 };

lks__decoder_size lks__decoder_size_for(const lks__model_config *c, size_t texts, uint64_t tokens,
                                        size_t *chunk_p)
{
    const size_t T = (size_t)c->block_size, positions = tokens < T ? (size_t)tokens : T;
    const size_t wanted = *chunk_p == 0 ? CHUNK : *chunk_p;
    *chunk_p = keeps(c) && wanted < positions ? wanted : positions;
    return (lks__decoder_size){texts, positions, *chunk_p > texts ? *chunk_p : texts};
}

/* Rows per pass. */
static size_t rows_of(const lks__model_config *c, const lks__decoder_size *size)
{
    return keeps(c) ? size->rows : size->positions;
}

/* Compute the sizes of the decoder's keys; false if they are too large. */
static bool measure_cache(lks__decoder *d, const lks__model_config *c, size_t act_bytes)
{
    uint64_t n = d->size.positions, bytes;
    if (!lks__mul(n, (uint64_t)(c->n_embd / c->n_head), &n))
        return false;
    d->head = (size_t)n;
    if (!lks__mul(n, (uint64_t)c->ops->kv_heads(c), &n))
        return false;
    d->sequence = (size_t)n;
    if (!lks__mul(n, d->size.sequences, &n))
        return false;
    d->kv.layer = (size_t)n;
    if (!lks__mul(n, (uint64_t)c->n_layer * act_bytes, &bytes) || bytes > SIZE_MAX / 4)
        return false;
    d->bytes = (size_t)bytes;
    return true;
}

lks_status lks__decoder_bytes(const lks__model_config *config, const lks__decoder_size *size,
                              const lks__layers *layers, size_t *bytes_p)
{
    lks__decoder d = {.size = *size};
    LKS__TRY(lks__model_forward_bytes(config, rows_of(config, size), layers, bytes_p));
    if (!keeps(config))
        return LKS_OK;
    if (!measure_cache(&d, config, layers->act_bytes(config->bf16)))
        return no_memory(config, size, INFINITY);
    *bytes_p += 2 * d.bytes;
    return LKS_OK;
}

static lks_status open_cache(lks__decoder *d)
{
    void *k, *v;
    if (!measure_cache(d, &d->m->c, d->m->act_bytes))
        return no_memory(&d->m->c, &d->size, INFINITY);
    lks__device *device = d->m->device;
    d->kv.T = d->size.positions;
    lks_status st = device->ops->alloc(device, d->bytes, &k);
    if (st == LKS_OK) {
        d->kv.k = k;
        st = device->ops->alloc(device, d->bytes, &v);
    }
    if (st == LKS_OK)
        d->kv.v = v;
    return st == LKS_ERR_NOMEM ? no_memory(&d->m->c, &d->size, (double)d->bytes) : st;
}

lks_status lks__decoder_open(const lks__model_config *config, const lks__table *table,
                             const lks__decoder_size *size, lks__device *device,
                             lks__decoder **decoder_p)
{
    lks__decoder *d = calloc(1, sizeof *d);
    LKS__MEMORY(d, "for a decoder");
    d->size = *size;
    lks_status st = lks__model_open_forward(config, table, rows_of(config, size), device, &d->m);
    if (st == LKS_OK && keeps(config))
        st = open_cache(d);
    if (st == LKS_OK)
        *decoder_p = d;
    else
        lks__decoder_close(d);
    return st;
}

void lks__decoder_close(lks__decoder *d)
{
    if (d == NULL)
        return;
    if (d->kv.k != NULL) {
        lks__device *device = d->m->device;
        lks__device_drain(device);
        device->ops->release(device, d->kv.k, d->bytes);
        if (d->kv.v != NULL)
            device->ops->release(device, d->kv.v, d->bytes);
    }
    lks__model_close(d->m);
    free(d);
}

bool lks__decoder_keeps(const lks__decoder *d)
{
    return d->kv.k != NULL;
}

static void head(const lks__decoder *d, const lks__pass *p, float *logits, size_t row, size_t rows)
{
    const lks__model *m = d->m;
    lks__head_logits(m->layers, m->ex, &m->head, lks__pass_linear(p, m->layers), logits,
                     lks__act_at(m->y, row * m->C, m->act_bytes), p->params + m->head_w, rows, m->V,
                     m->C);
}

void lks__decoder_run(lks__decoder *d, const float *params, const lks__decoder_pass *pass)
{
    const lks__micro_batch mb = {pass->tokens, NULL, (int)pass->sequences, (int)pass->n};
    lks__kv kv = d->kv;
    lks__pass p = {d->m, params, &mb, NULL, pass->sequences * pass->n, NULL, false};
    if (lks__decoder_keeps(d)) {
        const size_t from = pass->first * d->sequence, act_bytes = d->m->act_bytes;
        kv.k = lks__act_at(kv.k, from, act_bytes);
        kv.v = lks__act_at(kv.v, from, act_bytes);
        kv.at = pass->at;
        p.kv = &kv;
    }
    lks__model_forward(&p, NULL);
    if (pass->logits == NULL)
        return;
    if (pass->n == 1) {
        head(d, &p, pass->logits, 0, p.rows);
        return;
    }
    for (size_t i = 0; i < pass->sequences; i++)
        head(d, &p, pass->logits + i * d->m->V, (i + 1) * pass->n - 1, 1);
}

void lks__decoder_share(lks__decoder *d, size_t sequences, size_t n)
{
    const lks__model *m = d->m;
    if (!lks__decoder_keeps(d))
        return;
    const size_t hs = d->head / d->kv.T;
    for (int l = 0; l < m->c.n_layer; l++)
        for (size_t s = 1; s < sequences; s++)
            for (size_t h = 0; h < d->sequence; h += d->head) {
                const size_t from = (size_t)l * d->kv.layer + h, to = from + s * d->sequence;
                m->layers->act_copy(m->ex, lks__act_at(d->kv.k, to, m->act_bytes),
                                    lks__act_at(d->kv.k, from, m->act_bytes), n * hs);
                m->layers->act_copy(m->ex, lks__act_at(d->kv.v, to, m->act_bytes),
                                    lks__act_at(d->kv.v, from, m->act_bytes), n * hs);
            }
}
