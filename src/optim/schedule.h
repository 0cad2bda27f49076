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

#endif
