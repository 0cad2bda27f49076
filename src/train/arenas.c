#include "train/arenas.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "lockstep/reduce.h"
#include "train/recipe.h"
#include "train/state.h"

static bool on_host(const lks__trainer *t)
{
    return t->ses.device->ops->host_memory;
}

/* --- set-up ---------------------------------------------------------------------------------- */

/* Muon has no second moment: what lies where its matrices' would is never touched, and the memory
 * that was reserved for it goes back. What can't be given back stays. */
static void give_back_unused(const lks__trainer *t)
{
    const uintptr_t page = 4096;
    const float *second = t->exp_avg_sq.host;
    for (size_t i = 0; i < t->table.n_tensors; i++) {
        const lks__tensor *tensor = &t->table.tensors[i];
        uintptr_t first = (uintptr_t)(second + tensor->offset);
        uintptr_t end = (first + tensor->count * sizeof(float)) / page * page;
        first = (first + page - 1) / page * page;
        if (!lks__state_has(tensor, LKS__ARENA_SECOND) && first < end)
            madvise((void *)first, end - first, MADV_REMOVE);
    }
}

/* Add the parts of tensor `i` in the ranges of blocks that this rank updates. */
static void add_pieces(lks__trainer *t, size_t i)
{
    const lks__tensor *tensor = &t->table.tensors[i];
    const size_t tensor_end = tensor->offset + tensor->count;
    for (int u = 0; u < lks__recipe_n_updates(t); u++) {
        size_t first, end;
        lks__recipe_update_range(t, u, &first, &end);
        first = t->table.block_start[first];
        end = t->table.block_start[end];
        first = first > tensor->offset ? first : tensor->offset;
        end = end < tensor_end ? end : tensor_end;
        if (first < end)
            t->pieces[t->n_pieces++] = (lks__piece){i, first, end - first};
    }
}

static lks_status list_pieces(lks__trainer *t)
{
    const size_t n = t->table.n_tensors;
    int *owned = calloc(n, sizeof *owned);
    t->pieces = calloc(n * (size_t)(lks__recipe_n_updates(t) + 1), sizeof *t->pieces);
    lks_status st = LKS_OK;
    if (owned == NULL || t->pieces == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to list the parts of %zu tensors", n);
    else if (t->recipe->owned != NULL)
        st = t->recipe->owned(t, owned);
    for (size_t i = 0; i < n && st == LKS_OK; i++) {
        const lks__tensor *tensor = &t->table.tensors[i];
        if (owned[i] == LKS__OWNED_BY_BLOCKS)
            add_pieces(t, i);
        else if (owned[i] == LKS__OWNED_WHOLE)
            t->pieces[t->n_pieces++] = (lks__piece){i, tensor->offset, tensor->count};
    }
    free(owned);
    return st;
}

lks_status lks__arenas_open(lks__trainer *t)
{
    const int kind = t->shared ? LKS_MEM_COMMON : LKS_MEM_OWN;
    const int moments = t->s.zero ? LKS_MEM_LAZY : kind;
    const size_t bytes = t->table.count * sizeof(float);
    lks__mirror *arenas[3] = {&t->params, &t->exp_avg, &t->exp_avg_sq};
    for (int i = 0; i < 3; i++) {
        void *host;
        LKS__TRY(lks_comm_alloc(t->ses.comm, i == 0 ? kind : moments, bytes, &host));
        LKS__TRY(lks__mirror_wrap(t->ses.device, host, bytes, arenas[i]));
    }
    if (lks_comm_leader(t->ses.comm) == t->ses.world.rank || !t->shared)
        give_back_unused(t);
    return LKS_OK;
}

void lks__arenas_close(lks__trainer *t)
{
    lks__mirror_close(&t->params);
    lks__mirror_close(&t->exp_avg);
    lks__mirror_close(&t->exp_avg_sq);
    lks__mirror_close(&t->piece);
    free(t->pieces);
    t->pieces = NULL;
}

/* --- copies ---------------------------------------------------------------------------------- */

typedef void copy_fn(const lks__mirror *m, lks__queue queue, size_t from, size_t n);

/* Copy this rank's pieces of tensors that the arena of that role contains. */
static void copy_pieces(const lks__trainer *t, copy_fn *copy, const lks__mirror *m,
                        lks__arena_role role)
{
    for (size_t i = 0; i < t->n_pieces; i++) {
        const lks__piece *p = &t->pieces[i];
        if (lks__state_has(&t->table.tensors[p->tensor], role))
            copy(m, LKS__QUEUE_COPY, p->first * sizeof(float), p->count * sizeof(float));
    }
}

lks_status lks__arenas_upload(lks__trainer *t, bool moments)
{
    if (on_host(t))
        return LKS_OK;
    if (t->pieces == NULL)
        LKS__TRY(list_pieces(t));
    lks__mirror_to_device(&t->params, LKS__QUEUE_COPY, 0, t->params.bytes);
    if (moments) {
        copy_pieces(t, lks__mirror_to_device, &t->exp_avg, LKS__ARENA_FIRST);
        copy_pieces(t, lks__mirror_to_device, &t->exp_avg_sq, LKS__ARENA_SECOND);
    }
    lks__device_order(t->ses.device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return lks__device_finish(t->ses.device, LKS__QUEUE_COPY);
}

const float *lks__arenas_begin_update(lks__trainer *t, const float *grads)
{
    if (on_host(t))
        return grads;
    float *dev = lks__ddp_device_grads(t->ddp);
    for (size_t i = 0; i < t->n_pieces; i++) {
        const lks__piece *p = &t->pieces[i];
        t->ses.device->ops->copy(t->ses.device, LKS__QUEUE_COPY, dev + p->first, grads + p->first,
                                 p->count * sizeof(float));
    }
    lks__device_order(t->ses.device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
    return dev;
}

lks_status lks__arenas_end_update(lks__trainer *t)
{
    if (on_host(t))
        return LKS_OK;
    lks__device_order(t->ses.device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    copy_pieces(t, lks__mirror_to_host, &t->params, LKS__ARENA_PARAMS);
    return lks__device_finish(t->ses.device, LKS__QUEUE_COPY);
}

lks_status lks__arenas_fetch_moments(lks__trainer *t)
{
    if (on_host(t))
        return LKS_OK;
    lks__device_order(t->ses.device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    copy_pieces(t, lks__mirror_to_host, &t->exp_avg, LKS__ARENA_FIRST);
    copy_pieces(t, lks__mirror_to_host, &t->exp_avg_sq, LKS__ARENA_SECOND);
    LKS__TRY(lks__device_finish(t->ses.device, LKS__QUEUE_COPY));
    return lks_comm_barrier(t->ses.comm);
}

/* --- hashes ---------------------------------------------------------------------------------- */

enum { HASH_BYTES = 1 << 20 };

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
        LKS__TRY(lks__mirror_open(device, HASH_BYTES, &t->piece));
    *hash_p = 0;
    for (size_t from = 0; from < bytes; from += HASH_BYTES) {
        const size_t n = bytes - from < HASH_BYTES ? bytes - from : HASH_BYTES;
        device->ops->copy(device, LKS__QUEUE_COMPUTE, t->piece.host, at + from, n);
        LKS__TRY(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        *hash_p = XXH3_64bits_withSeed(t->piece.host, n, *hash_p);
    }
    return LKS_OK;
}
