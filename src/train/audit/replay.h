/* train/audit/replay.h - an execution of steps of a run again (steps.h), and its results. */
#pragma once

#include <stdio.h>

#include "report/diff/claims.h"
#include "report/record/leaves.h"
#include "settings/settings.h"

typedef struct lks__replay {
    const lks__settings *asked; /* threads and dataset of the audit */
    bool own_data;              /* use asked->dataset only if the run's own folder is gone */
    const char *run;            /* the run's folder */
    const lks__claims *claims;
    FILE *out;                      /* NULL, with files_checked: nothing is printed */
    bool evaluates;                 /* compute the record's evaluations, too */
    int leaf;                       /* >= 0: the only virtual rank to compute in the last step */
    const struct lks__trail *trail; /* NULL, or the trail of the last step (train/audit/trail.h) */
    /* Results, added up. */
    uint64_t steps, gradients, saves, evals; /* compared */
    uint64_t unhashed, first_unhashed;       /* steps without hashes of gradients, and the first */
    uint64_t hashed;            /* saves without files, of which the hash is compared */
    uint64_t findings, printed; /* claims that are false */
    char first[800];            /* the first of them */
    bool lacks_bpb;             /* golf's tokenizer isn't here, so val_bpb wasn't compared */
    bool files_checked;         /* token files have the hash in the record */
    lks__leaves leaves;
    uint64_t leaves_first, next_unhashed; /* first step in leaves.bin; the last unhashed one + 1 */
} lks__replay;

/* Describe who computed virtual rank v of V in step `iter`: " by rank 2 on c17"; "" if the record
 * doesn't tell. Returns `out`. */
enum { LKS__REPLAY_MAKER = 320 };
const char *lks__replay_maker(const lks__claims *c, uint64_t iter, int V, int v,
                              char out[LKS__REPLAY_MAKER]);

/* Print a false claim, and count it. Only the first 20 are printed, and the first one is kept. */
void lks__replay_false(lks__replay *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
