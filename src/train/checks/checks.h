/* train/checks/checks.h - values that a rank keeps from step to step, but in no checkpoint. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* See divergence.h. */
typedef struct lks__divergence {
    uint64_t *hashes; /* [n_tensors] of this rank's part of each tensor */
    bool recorded;    /* taken after an update: compare them before the next */
} lks__divergence;

typedef struct lks__checks {
    lks__divergence divergence;
    double saved_at; /* lks__sys_now() of the last save, or of the start */
    /* The last save that ranks agreed on after a signal (votes.c): its lks__sys_now(), 0 if there
     * is none, its iteration, and whether this rank has noticed that signal. */
    double agreed_at;
    uint64_t agreed_iter;
    bool noticed;
    bool out_of_time;             /* rank 0's clock has ended the run: --max_wallclock_seconds */
    double loaded_val_loss;       /* of the newest loaded checkpoint; NAN: none */
    struct lks__recheck *recheck; /* recheck.h; NULL: off */
} lks__checks;
