/* optim/schedule.h - learning rates. */
#ifndef LKS_OPTIM_SCHEDULE_H
#define LKS_OPTIM_SCHEDULE_H

#include <stdint.h>

typedef struct lks__cosine {
    double learning_rate, min_lr;
    uint64_t warmup_iters, lr_decay_iters;
} lks__cosine;

/* Linear warm-up, cosine down to min_lr at lr_decay_iters, min_lr after it (nanoGPT's get_lr). */
double lks__cosine_lr(const lks__cosine *c, uint64_t iter);

/* What parameter-golf multiplies all rates by in step `iter`: 1, and over the last warmdown_iters
 * steps down to 0 in a line. warmdown_iters <= 0: always 1. */
double lks__golf_lr_scale(int64_t iterations, int64_t warmdown_iters, int64_t iter);

/* The same by the clock, max_wallclock_ms > 0: warmdown_iters steps of the time that steps took so
 * far are held back for the line down to 0. `iterations` plays no part. */
double lks__golf_lr_scale_clock(double max_wallclock_ms, int64_t warmdown_iters, int64_t iter,
                                double elapsed_ms);

/* Muon's momentum in step `iter`: from `start` to `end` in a line over warmup_steps (0: `end`). */
double lks__golf_momentum(double start, double end, int64_t warmup_steps, int64_t iter);

#endif
