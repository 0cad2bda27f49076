/* report/diff/claims.h - claims of a run's record about each step and checkpoint. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A `train` or `skip` line. If a rollback repeated the step, the newest one. */
typedef struct lks__claim {
    uint64_t iter;
    uint64_t data_shift; /* it read the data of iteration iter + data_shift */
    double loss, lr, grad_norm, tokens, ms;
    bool skipped; /* no update, and none of these figures */
    bool again;   /* a line of this or a later step precedes it, without a rollback between them */
} lks__claim;

/* An `eval` or `final` line. NAN: it doesn't have the figure. */
typedef struct lks__claimed_eval {
    uint64_t iter;
    double train_loss, val_loss, val_bpb;
    bool final;
} lks__claimed_eval;

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
    lks__claimed_eval *evals; /* [n_evals] in the same order */
    size_t n_evals, evals_room;
    uint64_t data_shift; /* of the next step */
    uint64_t next;       /* the least iteration that the next step can have */
    uint64_t longest;    /* `next` at most, before rollbacks */
    size_t n_rollbacks;
    uint64_t odd_rollback; /* step + 1 of a `rollback` line that no run can have written; 0: none */
    json_t *config;        /* the config line */
    /* The host line of the start and of each resume, in order. If a rollback returns to a step
     * before some resumes, their lines become one, which has all of their changes. */
    json_t *starts;
    /* Starts that a later one at the same iteration replaced. They made no step that counts, but
     * can have saved that iteration's checkpoint again. */
    json_t *replaced;
} lks__claims;

/* Add the host line of a start. If it has `config`, all settings that it had, its `changed` becomes
 * the difference to the start before. Lines of older versions lack it, and can repeat at one
 * iteration: then it is unknown which settings the first ones left. */
lks_status lks__claims_add_start(lks__claims *c, const json_t *line);

/* Add the claims of a line that has an iteration. */
lks_status lks__claims_add(lks__claims *c, const json_t *line);
void lks__claims_free(lks__claims *c); /* a zeroed one does nothing */

const lks__claim *lks__claims_step(const lks__claims *c, uint64_t iter);        /* or NULL */
const lks__claimed_save *lks__claims_save(const lks__claims *c, uint64_t iter); /* or NULL */
const lks__claimed_eval *lks__claims_eval(const lks__claims *c, uint64_t iter); /* or NULL */

/* The record describes steps [*first_p, *end_p), though lines of steps may be missing. */
void lks__claims_range(const lks__claims *c, uint64_t *first_p, uint64_t *end_p);

/* A new object with the config line's members after all starts; NULL if out of memory. */
json_t *lks__claims_settings(const lks__claims *c);
/* The record's value of a setting after the resumes before iteration `end`; NULL: none. */
const json_t *lks__claims_setting(const lks__claims *c, const char *key, uint64_t end);

/* The iteration from which a start of this host line continued; 0 for the first start. */
uint64_t lks__claims_resumed(const json_t *host);
/* The host line of the start that made step `iter`, and its first iteration. */
const json_t *lks__claims_start(const lks__claims *c, uint64_t iter, uint64_t *first_p);
/* The settings that resumes at exactly this iteration changed; NULL: none. */
const json_t *lks__claims_changed(const lks__claims *c, uint64_t iter);
