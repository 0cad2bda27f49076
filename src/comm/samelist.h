/* comm/samelist.h - collective: do all ranks have the same list, and if not, where is the first
 * difference? */
#ifndef LKS_COMM_SAMELIST_H
#define LKS_COMM_SAMELIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "lockstep/comm.h"

enum { LKS__LIST_TEXT = 160 };

typedef struct lks__list {
    const void *ctx;
    uint64_t n;
    uint64_t (*hash)(const void *ctx, uint64_t i);
    /* What entry i is, fit for a terminal: "w with 20 elements". */
    void (*text)(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT]);
} lks__list;

/* ERR_DIVERGED on every rank: "WHAT: number 3 is … on rank 1, and … on rank 0", of the first rank
 * that differs from rank 0. `alone`: lists have one entry, whose number nobody has to read. */
lks_status lks__list_compare(lks_comm *comm, const char *what, const lks__list *list, bool alone);

#endif
