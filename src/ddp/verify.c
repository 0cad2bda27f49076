#include <stdlib.h>
#include <string.h>

#include "ddp/verify.h"

/* Rank 0's parameters come by broadcast, a piece at a time, and are compared in place. */
enum { PIECE_FLOATS = 1 << 18 };

struct verdict {
    uint64_t differs, at; /* arena offset of the first difference */
    float mine, rank0;
};

static void compare(struct verdict *v, const float *mine, const float *rank0, size_t start,
                    size_t n)
{
    if (v->differs || memcmp(mine, rank0, n * sizeof(float)) == 0)
        return;
    size_t i = 0;
    while (memcmp(&mine[i], &rank0[i], sizeof(float)) == 0)
        i++;
    *v = (struct verdict){1, start + i, mine[i], rank0[i]};
}

static lks_status report(const lks__table *table, const struct verdict *all, int W)
{
    for (int r = 0; r < W; r++) {
        if (!all[r].differs)
            continue;
        const lks__tensor *t = lks__table_at(table, all[r].at);
        return lks__fail(LKS_ERR_DIVERGED,
                         "model parameters are not the same across all ranks: rank %d has %.9g in "
                         "tensor %s at index %zu, where rank 0 has %.9g",
                         r, (double)all[r].mine, t->name, (size_t)all[r].at - t->offset,
                         (double)all[r].rank0);
    }
    return LKS_OK;
}

lks_status lks__ddp_verify(lks_comm *comm, const lks__table *table, const float *params)
{
    int W = lks_comm_world_size(comm);
    float *piece = malloc(PIECE_FLOATS * sizeof(float));
    struct verdict mine = {0}, *all = calloc((size_t)W, sizeof *all);
    lks_status st = LKS_OK;
    if (piece == NULL || all == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to compare parameters");
    for (size_t at = 0; at < table->count && st == LKS_OK; at += PIECE_FLOATS) {
        size_t n = table->count - at < PIECE_FLOATS ? table->count - at : PIECE_FLOATS;
        memcpy(piece, params + at, n * sizeof(float));
        st = lks_comm_broadcast(comm, piece, n * sizeof(float), 0);
        if (st == LKS_OK)
            compare(&mine, params + at, piece, at, n);
    }
    if (st == LKS_OK)
        st = lks_comm_all_gather(comm, &mine, all, sizeof mine);
    if (st == LKS_OK)
        st = report(table, all, W);
    free(piece);
    free(all);
    return st;
}
