#include "ddp/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/liveness.h"

/* Rank 0 broadcasts its values in pieces, which are compared in place. */
enum { PIECE_FLOATS = 1 << 18 };

struct verdict {
    uint64_t differs, tensor, index; /* the first difference */
    float mine, rank0;
};

static void compare(struct verdict *v, const float *mine, const float *rank0, size_t tensor,
                    size_t start, size_t n)
{
    if (v->differs || memcmp(mine, rank0, n * sizeof(float)) == 0)
        return;
    size_t i = 0;
    while (memcmp(&mine[i], &rank0[i], sizeof(float)) == 0)
        i++;
    *v = (struct verdict){1, tensor, start + i, mine[i], rank0[i]};
}

/* "0.5", or "nan with bits 7fc00001" if the other value is a NaN, too, with other bits. */
static void show(float x, float other, char text[48])
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x) && isnan(other))
        snprintf(text, 48, "%.9g with bits %08" PRIx32, (double)x, bits);
    else
        snprintf(text, 48, "%.9g", (double)x);
}

static lks_status report(const lks__named_floats *values, const struct verdict *all, int W)
{
    for (int r = 0; r < W; r++) {
        if (!all[r].differs)
            continue;
        const char *name = values[all[r].tensor].name;
        char mine[48], rank0[48];
        show(all[r].mine, all[r].rank0, mine);
        show(all[r].rank0, all[r].mine, rank0);
        return lks__fail(LKS_ERR_DIVERGED,
                         "model parameters are not the same across all ranks: rank %d has %s in "
                         "tensor %s at index %llu, but rank 0 has %s",
                         r, mine, lks__shown(name, 128), (unsigned long long)all[r].index, rank0);
    }
    return LKS_OK;
}

lks_status lks__named_floats_verify(lks_comm *comm, const lks__named_floats *values, size_t n)
{
    int W = lks_comm_world_size(comm);
    float *piece = malloc(PIECE_FLOATS * sizeof(float));
    struct verdict mine = {0}, *all = calloc((size_t)W, sizeof *all);
    lks_status st = LKS_OK;
    if (piece == NULL || all == NULL)
        st = lks__comm_fail_call(comm, lks__no_memory("to compare parameters"));
    for (size_t t = 0; t < n; t++)
        for (size_t at = 0; at < values[t].count && st == LKS_OK; at += PIECE_FLOATS) {
            const float *here = values[t].at + at;
            size_t left = values[t].count - at, floats = left < PIECE_FLOATS ? left : PIECE_FLOATS;
            memcpy(piece, here, floats * sizeof(float));
            st = lks_comm_broadcast(comm, piece, floats, LKS_FLOAT32, 0);
            if (st == LKS_OK)
                compare(&mine, here, piece, t, at, floats);
        }
    LKS__THEN(st, lks_comm_all_gather(comm, &mine, all, sizeof mine, LKS_UINT8));
    LKS__THEN(st, report(values, all, W));
    free(piece);
    free(all);
    return st;
}

lks_status lks__params_verify(lks_comm *comm, const lks__table *table, const float *params)
{
    lks__named_floats *values = malloc(table->n_tensors * sizeof *values);
    if (values == NULL)
        return lks__comm_fail_call(comm, lks__no_memory("to compare parameters"));
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        values[i] = (lks__named_floats){t->name, params + t->offset, t->count};
    }
    lks_status st = lks__named_floats_verify(comm, values, table->n_tensors);
    free(values);
    return st;
}
