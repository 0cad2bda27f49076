#include "comm/samelist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/liveness.h"

/* The first difference of one rank, in the form in which ranks compare it. */
struct shown {
    uint64_t index, differs;
    char text[LKS__LIST_TEXT];
};

static void describe(const lks__list *l, uint64_t i, char out[LKS__LIST_TEXT])
{
    if (i < l->n)
        l->text(l->ctx, i, out);
    else
        snprintf(out, LKS__LIST_TEXT, "none");
}

/* One exchange, however long the lists are: the minimum of a hash and the minimum of its complement
 * are complements if all hashes are equal. */
static lks_status all_equal(lks_comm *comm, const lks__list *l, bool *equal_p)
{
    uint64_t hash = l->n;
    for (uint64_t i = 0; i < l->n; i++) {
        uint64_t one = l->hash(l->ctx, i);
        hash = XXH3_64bits_withSeed(&one, sizeof one, hash);
    }
    int64_t least[2] = {(int64_t)hash, (int64_t)~hash};
    LKS__TRY(lks_comm_all_reduce(comm, least, 2, LKS_INT64, LKS_MIN));
    *equal_p = least[0] == ~least[1];
    return LKS_OK;
}

/* The first index at which this rank's list differs from rank 0's; UINT64_MAX: none. */
static lks_status first_difference(lks_comm *comm, const lks__list *l, uint64_t *index_p)
{
    uint64_t n0 = l->n;
    *index_p = UINT64_MAX;
    LKS__TRY(lks_comm_broadcast(comm, &n0, sizeof n0, LKS_UINT8, 0));
    for (uint64_t i = 0; i < n0; i++) {
        uint64_t mine = i < l->n ? l->hash(l->ctx, i) : 0, rank0 = mine;
        LKS__TRY(lks_comm_broadcast(comm, &rank0, sizeof rank0, LKS_UINT8, 0));
        if ((mine != rank0 || i >= l->n) && *index_p == UINT64_MAX)
            *index_p = i;
    }
    if (*index_p == UINT64_MAX && l->n > n0)
        *index_p = n0;
    return LKS_OK;
}

static lks_status report(lks_comm *comm, const char *what, const lks__list *l, bool alone,
                         const struct shown *all)
{
    struct shown rank0;
    char number[48] = "", shown[2][LKS__LIST_TEXT];
    int r = 0;
    while (r < lks_comm_world_size(comm) && !all[r].differs)
        r++;
    if (r == lks_comm_world_size(comm))
        return LKS_OK;
    describe(l, all[r].index, rank0.text);
    LKS__TRY(lks_comm_broadcast(comm, rank0.text, sizeof rank0.text, LKS_UINT8, 0));
    if (!alone)
        snprintf(number, sizeof number, "number %llu is ", (unsigned long long)all[r].index);
    memcpy(shown[0], all[r].text, sizeof shown[0]);
    memcpy(shown[1], rank0.text, sizeof shown[1]);
    shown[0][LKS__LIST_TEXT - 1] = shown[1][LKS__LIST_TEXT - 1] = '\0';
    return lks__fail(LKS_ERR_DIVERGED, "%s: %s%s on rank %d, and %s on rank 0", what, number,
                     shown[0], r, shown[1]);
}

lks_status lks__list_compare(lks_comm *comm, const char *what, const lks__list *list, bool alone)
{
    const int W = lks_comm_world_size(comm);
    bool equal;
    if (W == 1)
        return LKS_OK;
    LKS__TRY(all_equal(comm, list, &equal));
    if (equal)
        return LKS_OK;
    struct shown mine = {0}, *all = calloc((size_t)W, sizeof *all);
    lks_status st = first_difference(comm, list, &mine.index);
    if (st == LKS_OK && all == NULL)
        st = lks__comm_fail_call(comm, lks__no_memory("to compare lists of %d ranks", W));
    if (st == LKS_OK) {
        mine.differs = mine.index != UINT64_MAX;
        describe(list, mine.index, mine.text);
        st = lks_comm_all_gather(comm, &mine, all, sizeof mine, LKS_UINT8);
    }
    LKS__THEN(st, report(comm, what, list, alone, all));
    free(all);
    return st;
}
