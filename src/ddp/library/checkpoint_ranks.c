#include "ddp/library/checkpoint_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/status.h"
#include "comm/liveness.h"
#include "ddp/library/checkpoint_files.h"

/* Tensors are sent in pieces, so that a rank that only passes them on needs little memory. */
enum { PIECE = 1 << 16 };

uint64_t lks__tensor_bytes(const lks_tensor *t)
{
    uint64_t bytes = lks_dtype_bytes(t->dtype);
    for (int d = 0; d < t->n_dims; d++)
        bytes *= t->shape[d];
    return bytes;
}

/* Types and shapes of all ranks' tensors: the list from n_common on, with names and no data. */
static lks_status gather_shapes(lks_comm *comm, const lks_tensor *mine, lks__all_tensors *all,
                                struct lks__packed_tensor *packed)
{
    const size_t n = all->n_each, W = (size_t)lks_comm_world_size(comm);
    struct lks__packed_tensor *own = packed + W * n;
    for (size_t i = 0; i < n; i++) {
        own[i] = (struct lks__packed_tensor){.dtype = mine[i].dtype, .n_dims = mine[i].n_dims};
        memcpy(own[i].shape, mine[i].shape, (size_t)mine[i].n_dims * sizeof *mine[i].shape);
    }
    LKS__TRY(lks_comm_all_gather(comm, own, packed, n * sizeof *own, LKS_UINT8));
    bool named = true;
    for (size_t i = 0; i < W * n; i++) {
        lks_tensor *t = &all->list[all->n_common + i];
        *t = (lks_tensor){.name = lks__name_of_rank(mine[i % n].name, (int)(i / n)),
                          .dtype = (lks_dtype)packed[i].dtype,
                          .n_dims = packed[i].n_dims};
        memcpy(t->shape, packed[i].shape, sizeof t->shape);
        named &= t->name != NULL;
    }
    all->n += W * n;
    return named ? LKS_OK : lks__no_memory("for the names of %zu tensors", W * n);
}

/* Set the data of this rank's tensors; on rank 0 allocate the other ranks'. */
static lks_status set_data(lks_comm *comm, const lks_tensor *mine, lks__all_tensors *all)
{
    lks_tensor *each = all->list + all->n_common;
    const size_t n = all->n_each, W = (size_t)lks_comm_world_size(comm);
    const size_t rank = (size_t)lks_comm_rank(comm);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        each[rank * n + i].data = mine[i].data;
    for (size_t i = n; i < W * n && rank == 0; i++)
        if (!lks__add(bytes, lks__tensor_bytes(&each[i]), &bytes))
            return lks__no_memory("for the tensors of %zu ranks", W);
    if (bytes == 0)
        return LKS_OK;
    all->mem = malloc(bytes);
    LKS__MEMORY(all->mem, "for %llu bytes of the tensors of %zu ranks", (unsigned long long)bytes,
                W);
    unsigned char *at = all->mem;
    for (size_t i = n; i < W * n; at += lks__tensor_bytes(&each[i++]))
        each[i].data = at;
    return LKS_OK;
}

lks_status lks__all_tensors_open(lks_comm *comm, const char *call, const lks_tensor *tensors,
                                 size_t n, const lks_checkpoint_more *more, lks__all_tensors *all)
{
    const size_t W = (size_t)lks_comm_world_size(comm), room = W * more->n_per_rank;
    *all = (lks__all_tensors){.n = n, .n_common = n, .n_each = more->n_per_rank};
    all->list = calloc(n + room + 1, sizeof *all->list);
    struct lks__packed_tensor *packed = calloc(room + more->n_per_rank + 1, sizeof *packed);
    if (all->list == NULL || packed == NULL) {
        free(packed);
        all->n = 0;
        return lks__comm_fail_call(
            comm,
            lks__fail(LKS_ERR_NOMEM, "%s: no memory for a list of %zu tensors", call, n + room));
    }
    if (n > 0)
        memcpy(all->list, tensors, n * sizeof *tensors);
    lks_status st = LKS_OK;
    if (all->n_each > 0)
        st = gather_shapes(comm, more->per_rank, all, packed);
    if (st == LKS_OK && all->n_each > 0)
        st = set_data(comm, more->per_rank, all);
    free(packed);
    /* rank 0 tells its own status */
    return st == LKS_OK || lks_comm_rank(comm) == 0 ? st : lks__comm_fail_call(comm, st);
}

void lks__all_tensors_close(lks__all_tensors *all)
{
    for (size_t i = all->n_common; i < all->n; i++)
        free((char *)(uintptr_t)all->list[i].name);
    free(all->list);
    free(all->mem);
}

/* From rank `root` to rank 0, or from rank 0, the root. */
static lks_status move(lks_comm *comm, const lks_tensor *t, int root)
{
    unsigned char passing[PIECE], *data = t->data;
    const uint64_t bytes = lks__tensor_bytes(t);
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        LKS__TRY(lks_comm_broadcast(comm, data != NULL ? data + at : passing, n, LKS_UINT8, root));
    }
    return LKS_OK;
}

lks_status lks__all_tensors_move(lks_comm *comm, const lks__all_tensors *all, bool to_first)
{
    const lks_tensor *each = all->list + all->n_common;
    for (size_t i = all->n_each; i < all->n - all->n_common; i++)
        LKS__TRY(move(comm, &each[i], to_first ? (int)(i / all->n_each) : 0));
    return LKS_OK;
}

static lks_status count_ranks(const lks__ckpt *ckpt, const char *name, int *ranks_p)
{
    for (*ranks_p = 0;; ++*ranks_p) {
        char *full = lks__name_of_rank(name, *ranks_p);
        LKS__MEMORY(full, "for the name of a tensor");
        const bool found = lks__st_find(ckpt->model, full) != NULL;
        free(full);
        if (!found)
            return LKS_OK;
    }
}

lks_status lks__check_rank_count(const lks__ckpt *ckpt, const lks_checkpoint_more *more, int W)
{
    char shown[128];
    for (size_t i = 0; i < more->n_per_rank; i++) {
        const char *name = more->per_rank[i].name;
        int ranks;
        LKS__TRY(count_ranks(ckpt, name, &ranks));
        if (ranks == W || ranks == 0)
            continue;
        lks__escape(shown, sizeof shown, name, strlen(name));
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has %s of %d ranks, and this group has %d: load those that you need "
                         "by their full names, from %s@0 to %s@%d",
                         lks__shown(ckpt->path, 512), shown, ranks, W, shown, shown, ranks - 1);
    }
    return LKS_OK;
}
