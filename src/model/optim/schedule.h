/* model/optim/schedule.h - learning rates. */
#pragma once

#include <stdint.h>

typedef struct lks__cosine {
    double learning_rate, min_lr;
    uint64_t warmup_iters, lr_decay_iters;
} lks__cosine;

/* Linear warm-up, cosine down to min_lr at lr_decay_iters, min_lr after it (nanoGPT's get_lr). */
double lks__cosine_lr(const lks__cosine *c, uint64_t iter);

/* Factor for all of parameter-golf's rates in step `iter`: 1, then linearly down to 0 over the last
 * warmdown_iters steps. warmdown_iters <= 0: always 1. */
double lks__golf_lr_scale(int64_t iterations, int64_t warmdown_iters, int64_t iter);

/* The same factor from elapsed time, for max_wallclock_ms > 0: the linear part takes as long as
 * warmdown_iters steps of the average duration so far. `iterations` isn't used. */
double lks__golf_lr_scale_clock(double max_wallclock_ms, int64_t warmdown_iters, int64_t iter,
                                double elapsed_ms);

/* Muon's momentum in step `iter`: linear from `start` to `end` over warmup_steps (0: `end`). */
double lks__muon_momentum(double start, double end, int64_t warmup_steps, int64_t iter);
