/* train/audit/replay.h - executes steps of a run again, on this process only, and compares them
 * with the run's record. Nothing is written. */
#ifndef LKS_TRAIN_AUDIT_REPLAY_H
#define LKS_TRAIN_AUDIT_REPLAY_H

#include <stdio.h>

#include "report/record/leaves.h"
#include "settings/settings.h"
#include "train/audit/claims.h"

typedef struct lks__replay {
    const lks__settings *asked; /* threads and dataset of the audit */
    const char *run;            /* the run's folder */
    const lks__claims *claims;
    FILE *out;
    int leaf; /* >= 0: the only virtual rank to compute in the last step */
    /* Results, added up. */
    uint64_t steps, gradients, saves; /* compared */
    uint64_t unhashed;                /* steps without hashes of gradients */
    uint64_t findings;                /* claims that are false; each was printed */
    lks__leaves leaves;
} lks__replay;

/* The setting, changed by a resume at this iteration, for which steps from there on must start from
 * its checkpoint; NULL: none. */
const char *lks__replay_reopens(const lks__claims *claims, uint64_t iter);

/* Execute the run from checkpoint `start` (0: from the seed) to iteration `end`, and compare all
 * steps from there on, and all checkpoints in the folder. The run may be in progress. ERR_SUPPORT:
 * that can't be done here, for the reason in lks_last_error(). */
lks_status lks__replay_steps(lks__replay *r, uint64_t start, uint64_t end);

#endif
