/* ddp/memory/staged.c - the mode in which the device has its own memory, and data for other ranks
 * pass through the host's. The group adds copies of this rank's nodes. Each rank copies its
 * parameters to the host's replica, and reads the others' when all ranks have done so. */
#include <xxhash.h>

#include "ddp/memory/mode.h"

/* --- every device with its own memory --------------------------------------------------------- */

lks_status lks__own_open_arenas(lks__memory *m)
{
    const size_t bytes = m->table->trained_count * sizeof(float);
    for (int i = 0; i < m->config.n_arenas; i++)
        LKS__TRY(m->device->ops->alloc(m->device, bytes, (void **)&m->arena[i]));
    return LKS_OK;
}

static void copy_moments(lks__memory *m, bool to_device)
{
    const lks__optim *o = m->optim;
    for (size_t i = 0; i < LKS__OPTIM_STATES * o->n_pieces; i++) {
        const int state = (int)(i / o->n_pieces);
        const lks__piece *p = &o->pieces[i % o->n_pieces];
        if (lks__optimizer_state(o->optimizer, &m->table->tensors[p->tensor], state) == NULL)
            continue;
        float *host = m->moments[state].host + p->first;
        float *dev = m->moments[state].dev + p->state[state];
        m->device->ops->copy(m->device, LKS__QUEUE_COPY, to_device ? dev : host,
                             to_device ? host : dev, p->count * sizeof(float));
    }
}

static lks_status upload(lks__memory *m, size_t floats, bool moments)
{
    lks__mirror_to_device(&m->params, LKS__QUEUE_COPY, 0, floats * sizeof(float));
    if (moments)
        copy_moments(m, true);
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return lks__device_finish(m->device, LKS__QUEUE_COPY);
}

lks_status lks__own_upload(lks__memory *m, bool moments)
{
    return upload(m, m->table->count, moments);
}

lks_status lks__own_hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p)
{
    const char *at = (const char *)m->params.dev + first * sizeof(float);
    const size_t bytes = count * sizeof(float);
    if (m->piece.host == NULL)
        LKS__TRY(lks__mirror_open(m->device, LKS__MEMORY_PIECE, &m->piece));
    *hash_p = 0;
    for (size_t from = 0; from < bytes; from += LKS__MEMORY_PIECE) {
        const size_t n = bytes - from < LKS__MEMORY_PIECE ? bytes - from : LKS__MEMORY_PIECE;
        m->device->ops->copy(m->device, LKS__QUEUE_COMPUTE, m->piece.host, at + from, n);
        LKS__TRY(lks__device_finish(m->device, LKS__QUEUE_COMPUTE));
        *hash_p = XXH3_64bits_withSeed(m->piece.host, n, *hash_p);
    }
    return LKS_OK;
}

/* --- through the host ------------------------------------------------------------------------- */

static int group_arenas(int n_arenas, int n_nodes)
{
    return n_nodes;
}

static lks_status open_arenas(lks__memory *m)
{
    LKS__TRY(lks__group_open(m, m->config.n_nodes));
    return lks__own_open_arenas(m);
}

/* The device may not have computed the bucket yet. So the copy for the group is queued after it,
 * and a mark after the copy shows when the group may use it. */
static void ready(lks__memory *m, int i)
{
    const lks__bucket *b = &m->config.buckets->list[i];
    lks__device_order(m->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    for (int k = 0; k < m->config.nodes.n; k++)
        m->device->ops->copy(m->device, LKS__QUEUE_COPY, m->sent[k] + b->start,
                             m->arena[k] + b->start, b->count * sizeof(float));
    m->under_way[i].copied = m->device->ops->mark(m->device, LKS__QUEUE_COPY);
}

static const float *begin_update(lks__memory *m, const float *grads)
{
    float *dev = m->arena[0];
    for (size_t i = 0; i < m->optim->n_pieces; i++) {
        const lks__piece *p = &m->optim->pieces[i];
        m->device->ops->copy(m->device, LKS__QUEUE_COPY, dev + p->first, grads + p->first,
                             p->count * sizeof(float));
    }
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return dev;
}

static lks_status end_update(lks__memory *m)
{
    lks__device_order(m->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    for (size_t i = 0; i < m->optim->n_pieces; i++) {
        const lks__piece *p = &m->optim->pieces[i];
        lks__mirror_to_host(&m->params, LKS__QUEUE_COPY, p->first * sizeof(float),
                            p->count * sizeof(float));
    }
    return lks__device_finish(m->device, LKS__QUEUE_COPY);
}

/* Updates don't change frozen tensors. */
static lks_status publish(lks__memory *m)
{
    return upload(m, m->table->trained_count, false);
}

static void fetch(lks__memory *m)
{
    copy_moments(m, false);
}

static const float *whole(lks__memory *m, const float *grads)
{
    m->device->ops->copy(m->device, LKS__QUEUE_COMPUTE, m->arena[0], grads,
                         m->table->trained_count * sizeof *grads);
    return m->arena[0];
}

static const char *exchange(const lks__memory *m, bool asked)
{
    return "staged";
}

const lks__memory_mode lks__memory_staged = {
    .own_memory = true,
    .group_arenas = group_arenas,
    .open = open_arenas,
    .ready = ready,
    .start = lks__group_start,
    .sum = lks__group_sum,
    .squares = lks__group_squares,
    .release = lks__group_release,
    .begin_update = begin_update,
    .end_update = end_update,
    .publish = publish,
    .fetch = fetch,
    .upload = lks__own_upload,
    .whole = whole,
    .hash = lks__own_hash,
    .exchange = exchange,
};
