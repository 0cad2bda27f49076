/* ddp/memory/joined.c - devices with their own memory exchange gradients and parameters without the
 * host (exchange.h). The host gets them only for a checkpoint. */
#include "ddp/memory/exchange.h"
#include "ddp/memory/mode.h"
#include "lockstep/reduce.h"

static int group_arenas(int n_arenas, int n_nodes)
{
    return 0;
}

static lks__ddp_exchange_config config_of(const lks__memory_config *c, int W, int rank)
{
    return (lks__ddp_exchange_config){
        .V = c->V,
        .W = W,
        .rank = rank,
        .scale = c->scale,
        .owners = c->owners,
        .buckets = c->buckets,
    };
}

static lks_status exchange_bytes(const lks__memory_config *c, const lks__table *table, int W,
                                 int rank, double *bytes_p)
{
    const lks__ddp_exchange_config config = config_of(c, W, rank);
    return lks__ddp_exchange_bytes(&config, table, bytes_p);
}

static lks_status open_arenas(lks__memory *m)
{
    lks__ddp_exchange_config config =
        config_of(&m->config, lks_comm_world_size(m->comm), lks_comm_rank(m->comm));
    config.arena = m->arena;
    LKS__TRY(lks__own_open_arenas(m));
    return lks__ddp_exchange_open(&config, m->table, m->device, &m->exchange);
}

/* The exchange is queued after the bucket, so it needs no copy and no mark. */
static lks_status start(lks__memory *m, int b)
{
    lks__ddp_exchange_start(m->exchange, b);
    return LKS_OK;
}

static lks_status sum(lks__memory *m, const float **grads_p)
{
    *grads_p = NULL;
    return lks__ddp_exchange_finish(m->exchange);
}

static double squares(const lks__memory *m, size_t block)
{
    return lks__ddp_exchange_squares(m->exchange, block);
}

static const float *begin_update(lks__memory *m, const float *grads)
{
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return m->arena[0];
}

/* Poll instead of waiting: a failed rank would wait for the others, and they for it. */
static lks_status look_for_failure(lks__device *device)
{
    bool passed;
    return device->ops->passed(device, device->ops->mark(device, LKS__QUEUE_COPY), &passed);
}

static lks_status end_update(lks__memory *m)
{
    lks__device_order(m->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    lks__ddp_exchange_spread(m->exchange, m->params.dev);
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return look_for_failure(m->device);
}

/* --- for a checkpoint ------------------------------------------------------------------------- */

/* Copy [first, end) of the device's `arena` to the host's, but only tensors for which the optimizer
 * keeps `state`; state -1: all tensors. */
static void fetch_arena(const lks__memory *m, float *host, const float *arena, int state,
                        size_t first, size_t end)
{
    for (size_t i = 0; i < m->table->n_tensors; i++) {
        const lks__table_tensor *tensor = &m->table->tensors[i];
        const size_t stop = tensor->offset + tensor->count;
        const size_t from = tensor->offset > first ? tensor->offset : first;
        const size_t to = stop < end ? stop : end;
        if (from < to && (state < 0 || lks__optimizer_state(m->optim->optimizer, tensor, state)))
            m->device->ops->copy(m->device, LKS__QUEUE_COPY, host + from, arena + from,
                                 (to - from) * sizeof *host);
    }
}

/* Each device has all parameters, and its own pieces of the moments. First send these pieces to all
 * devices, using the memory for gradients. Then the ranks of rank 0's host share the copies to the
 * host. */
static void fetch(lks__memory *m)
{
    const lks__optim *o = m->optim;
    float *scratch = m->arena[0];
    const bool writes = lks_comm_leader(m->comm) == 0;
    size_t first, end;
    lks__memory_part(m, m->table->n_blocks, &first, &end);
    first = m->table->block_start[first];
    end = writes ? m->table->block_start[end] : first;
    fetch_arena(m, m->params.host, m->params.dev, -1, first, end);
    for (int state = 0; state < LKS__OPTIM_STATES; state++) {
        for (size_t i = 0; i < o->n_pieces; i++) {
            const lks__piece *p = &o->pieces[i];
            if (lks__optimizer_state(o->optimizer, &m->table->tensors[p->tensor], state))
                m->device->ops->copy(m->device, LKS__QUEUE_COPY, scratch + p->first,
                                     m->moments[state].dev + p->state[state],
                                     p->count * sizeof *scratch);
        }
        lks__ddp_exchange_spread(m->exchange, scratch);
        fetch_arena(m, m->moments[state].host, scratch, state, first, end);
    }
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
}

static const float *whole(lks__memory *m, const float *grads)
{
    lks__ddp_exchange_spread(m->exchange, m->arena[0]);
    lks__device_order(m->device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return m->arena[0];
}

static const char *exchange(const lks__memory *m, bool asked)
{
    return lks_comm_world_size(m->comm) == 1 && !asked ? "none" : "nccl";
}

const lks__memory_mode lks__memory_joined = {
    .own_memory = true,
    .all_divide = true,
    .group_arenas = group_arenas,
    .exchange_bytes = exchange_bytes,
    .open = open_arenas,
    .start = start,
    .sum = sum,
    .squares = squares,
    .begin_update = begin_update,
    .end_update = end_update,
    .fetch = fetch,
    .upload = lks__own_upload,
    .whole = whole,
    .hash = lks__own_hash,
    .exchange = exchange,
};
