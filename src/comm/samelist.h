/* comm/samelist.h - a collective that checks that all ranks have the same list, and finds the first
 * difference. */
#pragma once

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
    /* Describe entry i, safe on a terminal: "w with 20 elements". */
    void (*text)(const void *ctx, uint64_t i, char out[LKS__LIST_TEXT]);
} lks__list;

/* ERR_DIVERGED on every rank: "WHAT: number 3 is … on rank 1, and … on rank 0", for the first rank
 * that differs from rank 0. `alone`: the lists have a single entry, so the message omits its
 * number. */
lks_status lks__list_compare(lks_comm *comm, const char *what, const lks__list *list, bool alone);
