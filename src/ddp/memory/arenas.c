#include "ddp/memory/arenas.h"

#include <sys/mman.h>
#include <xxhash.h>

#include "lockstep/reduce.h"
#include "train/optimizer.h"
#include "train/procedure/procedure.h"

static bool on_host(const lks__trainer *t)
{
    return t->ses.device->ops->host_memory;
}

/* --- set-up ---------------------------------------------------------------------------------- */

/* An optimizer may keep nothing of a tensor in an arena. Give back the memory that is reserved
 * there; what can't be given back stays. */
static void give_back_unused(const lks__trainer *t)
{
    const uintptr_t page = 4096;
    for (size_t i = 0; i < LKS__OPTIM_STATES * t->table.n_tensors; i++) {
        const int state = (int)(i / t->table.n_tensors);
        const lks__tensor *tensor = &t->table.tensors[i % t->table.n_tensors];
        if (tensor->frozen) /* these arenas have no place for it */
            continue;
        uintptr_t first = (uintptr_t)(t->moments[state].host + tensor->offset);
        uintptr_t end = (first + tensor->count * sizeof(float)) / page * page;
        first = (first + page - 1) / page * page;
        if (lks__optimizer_state(lks__train_optimizer(&t->s), tensor, state) == NULL && first < end)
            madvise((void *)first, end - first, MADV_REMOVE);
    }
}

lks_status lks__arenas_open(lks__trainer *t)
{
    const int kind = t->shared ? LKS_MEM_COMMON : LKS_MEM_OWN;
    const int moments = t->s.zero ? LKS_MEM_LAZY : kind;
    const size_t bytes = t->table.count * sizeof(float);
    const size_t trained = t->table.trained_count * sizeof(float);
    void *params;
    LKS__TRY(lks_comm_alloc(t->ses.comm, kind, bytes, &params));
    LKS__TRY(lks__mirror_wrap(t->ses.device, params, bytes, &t->params));
    for (int i = 0; i < LKS__OPTIM_STATES; i++)
        LKS__TRY(lks_comm_alloc(t->ses.comm, moments, trained, (void **)&t->moments[i].host));
    if (lks_comm_leader(t->ses.comm) == t->ses.world.rank || !t->shared)
        give_back_unused(t);
    return LKS_OK;
}

lks_status lks__arenas_open_moments(lks__trainer *t)
{
    lks__device *device = t->ses.device;
    for (int i = 0; i < LKS__OPTIM_STATES; i++) {
        lks__moments *m = &t->moments[i];
        const size_t bytes = t->optim.state_floats[i] * sizeof(float);
        if (on_host(t))
            m->dev = m->host;
        else if (bytes > 0)
            LKS__TRY(device->ops->alloc(device, bytes, (void **)&m->dev));
        m->dev_bytes = bytes;
    }
    return LKS_OK;
}

static void close_moments(lks__trainer *t)
{
    lks__device *device = t->ses.device;
    for (int i = 0; i < LKS__OPTIM_STATES; i++) {
        lks__moments *m = &t->moments[i];
        if (m->dev != NULL && m->dev != m->host) {
            lks__device_drain(device);
            device->ops->release(device, m->dev, m->dev_bytes);
        }
        *m = (lks__moments){0};
    }
}

void lks__arenas_close(lks__trainer *t)
{
    lks__mirror_close(&t->params);
    close_moments(t);
    lks__mirror_close(&t->piece);
}

/* --- copies ---------------------------------------------------------------------------------- */

/* This rank's pieces of the parameters, to the host. */
static void fetch_params(const lks__trainer *t)
{
    for (size_t i = 0; i < t->optim.n_pieces; i++) {
        const lks__piece *p = &t->optim.pieces[i];
        lks__mirror_to_host(&t->params, LKS__QUEUE_COPY, p->first * sizeof(float),
                            p->count * sizeof(float));
    }
}

/* What the optimizer keeps of them. */
static void copy_moments(const lks__trainer *t, bool to_device)
{
    lks__device *device = t->ses.device;
    for (size_t i = 0; i < LKS__OPTIM_STATES * t->optim.n_pieces; i++) {
        const int state = (int)(i / t->optim.n_pieces);
        const lks__piece *p = &t->optim.pieces[i % t->optim.n_pieces];
        const lks__tensor *tensor = &t->table.tensors[p->tensor];
        if (lks__optimizer_state(t->optim.optimizer, tensor, state) == NULL)
            continue;
        float *host = t->moments[state].host + p->first;
        float *dev = t->moments[state].dev + p->state[state];
        device->ops->copy(device, LKS__QUEUE_COPY, to_device ? dev : host, to_device ? host : dev,
                          p->count * sizeof(float));
    }
}

static lks_status upload(lks__trainer *t, size_t floats, bool moments)
{
    if (on_host(t))
        return LKS_OK;
    lks__mirror_to_device(&t->params, LKS__QUEUE_COPY, 0, floats * sizeof(float));
    if (moments)
        copy_moments(t, true);
    lks__device_order(t->ses.device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return lks__device_finish(t->ses.device, LKS__QUEUE_COPY);
}

lks_status lks__arenas_upload(lks__trainer *t, bool moments)
{
    return upload(t, t->table.count, moments);
}

lks_status lks__arenas_upload_updated(lks__trainer *t)
{
    if (t->ses.device->joined) /* they have come from the other devices */
        return LKS_OK;
    return upload(t, t->table.trained_count, false);
}

const float *lks__arenas_begin_update(lks__trainer *t, const float *grads)
{
    if (on_host(t))
        return grads;
    float *dev = lks__ddp_device_grads(t->ddp);
    for (size_t i = 0; i < t->optim.n_pieces && !t->ses.device->joined; i++) {
        const lks__piece *p = &t->optim.pieces[i];
        t->ses.device->ops->copy(t->ses.device, LKS__QUEUE_COPY, dev + p->first, grads + p->first,
                                 p->count * sizeof(float));
    }
    lks__device_order(t->ses.device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return dev;
}

/* Without a wait. A rank whose part failed would otherwise wait for the others, and they for it. */
static lks_status look_for_failure(lks__device *device)
{
    bool passed;
    return device->ops->passed(device, device->ops->mark(device, LKS__QUEUE_COPY), &passed);
}

lks_status lks__arenas_end_update(lks__trainer *t)
{
    if (on_host(t))
        return LKS_OK;
    lks__device_order(t->ses.device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    if (t->ses.device->joined) {
        lks__ddp_spread(t->ddp, t->params.dev);
        lks__device_order(t->ses.device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
        return look_for_failure(t->ses.device);
    }
    fetch_params(t);
    return lks__device_finish(t->ses.device, LKS__QUEUE_COPY);
}

/* --- for a checkpoint ------------------------------------------------------------------------- */

/* Copy `arena` of the device to the host's, as far as [first, end) and tensors for which the
 * optimizer keeps `state` go; state -1: all tensors. */
static void fetch_arena(const lks__trainer *t, float *host, const float *arena, int state,
                        size_t first, size_t end)
{
    for (size_t i = 0; i < t->table.n_tensors; i++) {
        const lks__tensor *tensor = &t->table.tensors[i];
        const size_t stop = tensor->offset + tensor->count;
        const size_t from = tensor->offset > first ? tensor->offset : first;
        const size_t to = stop < end ? stop : end;
        if (from < to && (state < 0 || lks__optimizer_state(t->optim.optimizer, tensor, state)))
            t->ses.device->ops->copy(t->ses.device, LKS__QUEUE_COPY, host + from, arena + from,
                                     (to - from) * sizeof *host);
    }
}

/* Each device has all parameters, and its own pieces of the moments: these go to all devices first,
 * in the memory for gradients. Then the ranks of rank 0's host share the copies to it. */
static void fetch_joined(const lks__trainer *t)
{
    lks__device *device = t->ses.device;
    float *scratch = lks__ddp_device_grads(t->ddp);
    const bool writes = lks_comm_leader(t->ses.comm) == 0;
    size_t first, end;
    lks__procedure_share(t, &first, &end);
    first = t->table.block_start[first];
    end = writes ? t->table.block_start[end] : first;
    fetch_arena(t, t->params.host, t->params.dev, -1, first, end);
    for (int state = 0; state < LKS__OPTIM_STATES; state++) {
        for (size_t i = 0; i < t->optim.n_pieces; i++) {
            const lks__piece *p = &t->optim.pieces[i];
            if (lks__optimizer_state(t->optim.optimizer, &t->table.tensors[p->tensor], state))
                device->ops->copy(device, LKS__QUEUE_COPY, scratch + p->first,
                                  t->moments[state].dev + p->state[state],
                                  p->count * sizeof *scratch);
        }
        lks__ddp_spread(t->ddp, scratch);
        fetch_arena(t, t->moments[state].host, scratch, state, first, end);
    }
    lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
}

lks_status lks__arenas_fetch(lks__trainer *t)
{
    if (on_host(t))
        return LKS_OK;
    lks__device_order(t->ses.device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    if (t->ses.device->joined)
        fetch_joined(t);
    else
        copy_moments(t, false);
    LKS__TRY(lks__device_finish(t->ses.device, LKS__QUEUE_COPY));
    return lks_comm_barrier(t->ses.comm);
}

/* --- hashes ---------------------------------------------------------------------------------- */

lks_status lks__arenas_hash(lks__trainer *t, size_t first, size_t count, uint64_t *hash_p)
{
    lks__device *device = t->ses.device;
    const char *at = (const char *)t->params.dev + first * sizeof(float);
    const size_t bytes = count * sizeof(float);
    if (on_host(t)) {
        *hash_p = XXH3_64bits(at, bytes);
        return LKS_OK;
    }
    if (t->piece.host == NULL)
        LKS__TRY(lks__mirror_open(device, LKS__ARENAS_PIECE, &t->piece));
    *hash_p = 0;
    for (size_t from = 0; from < bytes; from += LKS__ARENAS_PIECE) {
        const size_t n = bytes - from < LKS__ARENAS_PIECE ? bytes - from : LKS__ARENAS_PIECE;
        device->ops->copy(device, LKS__QUEUE_COMPUTE, t->piece.host, at + from, n);
        LKS__TRY(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        *hash_p = XXH3_64bits_withSeed(t->piece.host, n, *hash_p);
    }
    return LKS_OK;
}
