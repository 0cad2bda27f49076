/* train/audit/claims.h - claims of a run's record about each step and checkpoint. */
#ifndef LKS_TRAIN_AUDIT_CLAIMS_H
#define LKS_TRAIN_AUDIT_CLAIMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A `train` or `skip` line. If a rollback repeated the step, the newest one. */
typedef struct lks__claim {
    uint64_t iter;
    uint64_t data_shift; /* it read the data of iteration iter + data_shift */
    double loss, lr, grad_norm, ms;
    bool skipped; /* no update, and none of these figures */
} lks__claim;

typedef struct lks__claimed_save {
    uint64_t iter;
    char params_hash[17];
} lks__claimed_save;

typedef struct lks__claims {
    lks__claim *steps; /* [n_steps] in the order of iterations */
    size_t n_steps, steps_room;
    lks__claimed_save *saves; /* [n_saves] of `checkpoint` lines; the newest of an iteration is the
                                 last one */
    size_t n_saves, saves_room;
    json_t *config; /* the config line */
    json_t *starts; /* host lines of the start and of each resume, in order */
} lks__claims;

/* Read RUN/metrics.jsonl, also while the run writes it. ERR_CONFIG if it has no step; errors of
 * report/diff/history.h. Free the claims after errors, too. */
lks_status lks__claims_read(const char *run, lks__claims *c);
void lks__claims_free(lks__claims *c); /* a zeroed one does nothing */

const lks__claim *lks__claims_step(const lks__claims *c, uint64_t iter);        /* or NULL */
const lks__claimed_save *lks__claims_save(const lks__claims *c, uint64_t iter); /* or NULL */

/* The host line of the start that made step `iter`, and its first iteration. */
const json_t *lks__claims_start(const lks__claims *c, uint64_t iter, uint64_t *first_p);
/* Describe who computed virtual rank v of V in step `iter`: " by rank 2 on c17"; "" if the record
 * doesn't tell. Returns `out`. */
enum { LKS__CLAIMS_MAKER = 320 };
const char *lks__claims_maker(const lks__claims *c, uint64_t iter, int V, int v,
                              char out[LKS__CLAIMS_MAKER]);
/* The settings that a resume at exactly this iteration changed; NULL: none. */
const json_t *lks__claims_changed(const lks__claims *c, uint64_t iter);

#endif
