#include "ddp/memory/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/hier/pieces.h"
#include "comm/liveness.h"
#include "ddp/memory/exchange.h"
#include "ddp/memory/mode.h"
#include "lockstep/reduce.h"

const lks__memory_mode *lks__memory_mode_of(const lks__device *device)
{
    return device->ops->host_memory ? &lks__memory_host
           : device->joined         ? &lks__memory_joined
                                    : &lks__memory_staged;
}

const lks__memory_mode *lks__memory_mode_planned(const lks__device *device, bool may_join)
{
    lks__device planned = *device;
    planned.joined = device->ops->exchange != NULL && may_join;
    return lks__memory_mode_of(&planned);
}

lks__division lks__memory_division(const lks__memory_mode *mode, bool shared, bool zero,
                                   int n_hosts, int local)
{
    const int W = n_hosts * local, sharers = shared ? local : 1;
    return mode->all_divide
               ? (lks__division){.parts = W, .local = 1, .whole = W, .in_buckets = true}
               : (lks__division){zero ? n_hosts : 1, sharers, sharers, zero};
}

/* --- opening --------------------------------------------------------------------------------- */

lks_status lks__memory_open(const lks__memory_config *config, lks_comm *comm,
                            const lks__table *table, lks__device *device, lks__memory *m)
{
    *m = (lks__memory){
        .mode = lks__memory_mode_of(device),
        .config = *config,
        .comm = comm,
        .table = table,
        .device = device,
        .under_way = calloc((size_t)config->buckets->n + 1, sizeof *m->under_way),
    };
    const int n = config->buckets->n;
    lks_status st = m->under_way == NULL
                        ? lks__comm_fail_call(comm, lks__no_memory("for %d buckets", n))
                        : m->mode->open(m);
    m->config.owners = NULL; /* the caller's */
    return st;
}

/* An optimizer may not use an arena for some tensors. Return the memory that is reserved for them;
 * memory that can't be returned stays reserved. */
static void give_back_unused(const lks__memory *m, const lks__optimizer *optimizer)
{
    const uintptr_t page = lks__sys_page_bytes();
    for (size_t i = 0; i < LKS__OPTIM_STATES * m->table->n_tensors; i++) {
        const int state = (int)(i / m->table->n_tensors);
        const lks__table_tensor *tensor = &m->table->tensors[i % m->table->n_tensors];
        if (tensor->frozen) /* these arenas have no room for it */
            continue;
        uintptr_t first = (uintptr_t)(m->moments[state].host + tensor->offset);
        uintptr_t end = (first + tensor->count * sizeof(float)) / page * page;
        first = (first + page - 1) / page * page;
        if (lks__optimizer_state(optimizer, tensor, state) == NULL && first < end)
            madvise((void *)first, end - first, MADV_REMOVE);
    }
}

lks_status lks__memory_open_replica(lks__memory *m, const lks__optimizer *optimizer, bool shared)
{
    const lks_mem kind = shared ? LKS_MEM_COMMON : LKS_MEM_OWN;
    const lks_mem moments = m->config.zero ? LKS_MEM_LAZY : kind;
    const size_t bytes = m->table->count * sizeof(float);
    const size_t trained = m->table->trained_count * sizeof(float);
    void *params;
    m->shared = shared;
    LKS__TRY(lks_comm_alloc(m->comm, kind, bytes, &params));
    LKS__TRY(lks__mirror_wrap(m->device, params, bytes, &m->params));
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        LKS__TRY(lks_comm_alloc(m->comm, moments, trained, (void **)&m->moments[i].host));
    if (lks_comm_leader(m->comm) == lks_comm_rank(m->comm) || !shared)
        give_back_unused(m, optimizer);
    return LKS_OK;
}

static lks_status open_moments(lks__memory *m)
{
    for (int i = 0; i < LKS__OPTIM_STATES; i++) {
        lks__moments *moments = &m->moments[i];
        const size_t bytes = m->optim->state_floats[i] * sizeof(float);
        if (!m->mode->own_memory)
            moments->dev = moments->host;
        else if (bytes > 0)
            LKS__TRY(m->device->ops->alloc(m->device, bytes, (void **)&moments->dev));
        moments->dev_bytes = bytes;
    }
    return LKS_OK;
}

/* Number of ranges of blocks that this rank updates; one per bucket if ranks divide buckets. */
static int n_updates(const lks__memory *m)
{
    return m->mode->all_divide || (m->shared && m->config.zero) ? m->config.buckets->n : 1;
}

/* Local rank r takes the r-th part of the host's share, [from, to). */
static void update_range(const lks__memory *m, int i, size_t range[2])
{
    const lks_world *w = lks_comm_world(m->comm);
    const lks__bucket *b = &m->config.buckets->list[i];
    if (m->mode->all_divide) {
        range[0] = b->first_block + lks__share_start(b->n_blocks, w->world_size, w->rank);
        range[1] = b->first_block + lks__share_start(b->n_blocks, w->world_size, w->rank + 1);
    } else if (m->shared && m->config.zero) {
        size_t from, to;
        lks_comm_host_share(m->comm, b->n_blocks, &from, &to);
        lks__local_part(b->first_block + from, b->first_block + to, w->local_rank,
                        w->local_world_size, &range[0], &range[1]);
    } else {
        lks__memory_part(m, m->table->trained_blocks, &range[0], &range[1]);
    }
}

lks_status lks__memory_open_optimizer(lks__memory *m, const lks__optimizer *optimizer, void *lent,
                                      size_t lent_bytes, lks__optim *optim)
{
    const lks_world *w = lks_comm_world(m->comm);
    const int n = n_updates(m);
    size_t(*ranges)[2] = calloc((size_t)n + 1, sizeof *ranges);
    lks__optim_share share = {.W = 1, .n_ranges = n, .ranges = (const size_t(*)[2])ranges};
    LKS__MEMORY(ranges, "to list %d ranges of blocks", n);
    for (int i = 0; i < n; i++)
        update_range(m, i, ranges[i]);
    if (m->mode->all_divide) {
        share.W = w->world_size;
        share.rank = w->rank;
    } else if (m->shared) {
        share.W = w->local_world_size;
        share.rank = w->local_rank;
    }
    lks_status st =
        lks__optim_open(optimizer, m->device, m->table, &share, lent, lent_bytes, optim);
    free(ranges);
    m->optim = optim;
    return st == LKS_OK ? open_moments(m) : st;
}

void lks__memory_close(lks__memory *m)
{
    if (m->device == NULL)
        return;
    lks__device_drain(m->device);
    lks__ddp_exchange_close(m->exchange);
    lks__group_forget(m);
    for (int i = 0; i < LKS__MAX_ARENAS; i++)
        if (m->arena[i] != NULL && m->arena[i] != m->sent[i])
            m->device->ops->release(m->device, m->arena[i],
                                    m->table->trained_count * sizeof(float));
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        if (m->moments[i].dev != NULL && m->moments[i].dev != m->moments[i].host)
            m->device->ops->release(m->device, m->moments[i].dev, m->moments[i].dev_bytes);
    lks__mirror_close(&m->params);
    lks__mirror_close(&m->piece);
    for (int i = 0; i < LKS__MAX_ARENAS; i++)
        lks__comm_free(m->comm, m->sent[i]);
    lks__comm_free(m->comm, m->block_sumsq);
    free(m->under_way);
    *m = (lks__memory){0};
}

/* --- gradients of a step --------------------------------------------------------------------- */

void lks__memory_begin(lks__memory *m)
{
    lks__group_forget(m); /* operations left by a failed step */
    m->n_started = 0;
}

void lks__memory_ready(lks__memory *m, int b)
{
    if (m->mode->ready != NULL)
        m->mode->ready(m, b);
}

/* A bucket that isn't copied has the mark 0, which counts as passed. */
lks_status lks__memory_progress(lks__memory *m, int n_ready, bool wait)
{
    for (; m->n_started < n_ready; m->n_started++) {
        const lks__mark copied = m->under_way[m->n_started].copied;
        bool passed = true;
        if (wait)
            LKS__TRY(lks__device_wait(m->device, copied));
        else
            LKS__TRY(m->device->ops->passed(m->device, copied, &passed));
        if (!passed)
            return LKS_OK;
        LKS__TRY(m->mode->start(m, m->n_started));
    }
    return LKS_OK;
}

lks_status lks__memory_start_rest(lks__memory *m)
{
    for (; m->n_started < m->config.buckets->n; m->n_started++)
        LKS__TRY(m->mode->start(m, m->n_started));
    return LKS_OK;
}

lks_status lks__memory_sum(lks__memory *m, const float **grads_p)
{
    return m->mode->sum(m, grads_p);
}

double lks__memory_squares(const lks__memory *m, size_t block)
{
    return m->mode->squares(m, block);
}

lks_status lks__memory_release(lks__memory *m)
{
    return m->mode->release != NULL ? m->mode->release(m) : LKS_OK;
}

/* --- an update ------------------------------------------------------------------------------- */

const float *lks__memory_begin_update(lks__memory *m, const float *grads)
{
    return m->mode->begin_update(m, grads);
}

lks_status lks__memory_end_update(lks__memory *m)
{
    return m->mode->end_update != NULL ? m->mode->end_update(m) : LKS_OK;
}

/* With `zero`: copy each host's part of `arena` to all hosts, or only to rank 0's host. */
static lks_status gather(lks__memory *m, float *arena, bool to_first)
{
    for (int i = 0; m->config.zero && i < m->config.buckets->n; i++) {
        const lks__bucket *b = &m->config.buckets->list[i];
        LKS__TRY(lks_comm_gather_shares(m->comm, arena + b->start, b->block_bytes, b->n_blocks,
                                        to_first));
    }
    return LKS_OK;
}

lks_status lks__memory_publish(lks__memory *m)
{
    LKS__TRY(gather(m, m->params.host, false));
    LKS__TRY(lks__memory_release(m));
    return m->mode->publish != NULL ? m->mode->publish(m) : LKS_OK;
}

/* --- checkpoints and checks ------------------------------------------------------------------ */

lks_status lks__memory_fetch(lks__memory *m)
{
    if (m->mode->fetch != NULL) {
        lks__device_order(m->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
        m->mode->fetch(m);
        LKS__TRY(lks__device_finish(m->device, LKS__QUEUE_COPY));
        LKS__TRY(lks_comm_barrier(m->comm));
    }
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        LKS__TRY(gather(m, m->moments[i].host, true));
    return LKS_OK;
}

static void drop(lks__memory *m, float *arena)
{
    for (int i = 0; i < m->config.buckets->n; i++) {
        const lks__bucket *b = &m->config.buckets->list[i];
        size_t from, to, at = b->start * sizeof(float);
        lks_comm_host_share(m->comm, b->n_blocks, &from, &to);
        lks_comm_drop(m->comm, arena, at, at + b->block_bytes[from]);
        lks_comm_drop(m->comm, arena, at + b->block_bytes[to], at + b->block_bytes[b->n_blocks]);
    }
}

void lks__memory_fetched(lks__memory *m)
{
    for (int i = 0; m->config.zero && i < LKS__OPTIM_STATES; i++)
        drop(m, m->moments[i].host);
}

lks_status lks__memory_upload(lks__memory *m, bool moments)
{
    return m->mode->upload != NULL ? m->mode->upload(m, moments) : LKS_OK;
}

const float *lks__memory_whole(lks__memory *m, const float *grads)
{
    return m->mode->whole(m, grads);
}

lks_status lks__memory_hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p)
{
    return m->mode->hash(m, first, count, hash_p);
}

bool lks__memory_on_host(const lks__memory *m)
{
    return !m->mode->own_memory;
}

bool lks__memory_is_shared(const lks__memory *m)
{
    return m->shared && lks__memory_on_host(m);
}

bool lks__memory_has_copies(const lks__memory *m)
{
    const lks_world *w = lks_comm_world(m->comm);
    return m->shared ? w->local_world_size < w->world_size && w->local_rank == 0
                     : w->world_size > 1;
}

bool lks__memory_passes_have_copies(const lks__memory *m)
{
    return m->mode->own_memory ? lks_comm_world_size(m->comm) > 1 : lks__memory_has_copies(m);
}

const char *lks__memory_exchange(const lks__memory *m, bool asked)
{
    return m->mode->exchange != NULL ? m->mode->exchange(m, asked) : NULL;
}
