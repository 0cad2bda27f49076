/* train/guard/guard.h - what a rank keeps from step to step that no checkpoint has. */
#ifndef LKS_TRAIN_GUARD_GUARD_H
#define LKS_TRAIN_GUARD_GUARD_H

#include <stdbool.h>
#include <stdint.h>

/* For the check of parameters that change outside an update (divergence.h). */
typedef struct lks__divergence {
    uint64_t *hashes; /* [n_tensors] hashes of this rank's part of each tensor */
    bool sealed;      /* they were made after an update; the next look compares */
} lks__divergence;

typedef struct lks__guard {
    lks__divergence divergence;
    /* votes */
    double saved_at;      /* the time of the last save, or of the start; for checkpoint_minutes */
    bool asked;           /* this rank has taken part in the save that was agreed on last ... */
    double agreed_at;     /* ... and the time of that; 0: never */
    uint64_t agreed_iter; /* ... and its iteration */
    /* clock */
    uint64_t elapsed_from;  /* the state's elapsed_s counts from this iteration on */
    bool out_of_time;       /* the procedure's time limit has been reached */
    double loaded_val_loss; /* of the checkpoint that was loaded last; NAN: it has none */
} lks__guard;

#endif
