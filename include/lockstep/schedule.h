/* lockstep/schedule.h - learning rates as functions of the step: the same bits as those of
 * `lockstep train`. Any thread may call them, and so may a child of fork(). */
#ifndef LOCKSTEP_SCHEDULE_H
#define LOCKSTEP_SCHEDULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Linear warm-up over `warmup_steps`, a cosine down to `min_lr` at step `decay_steps`, then
 * `min_lr`: get_lr() of nanoGPT. Steps count from 0. */
double lks_lr_cosine(double learning_rate, double min_lr, uint64_t warmup_steps,
                     uint64_t decay_steps, uint64_t step);

/* A factor of the learning rate: 1, then linearly down to 0 over the last `warmdown_steps` of
 * `steps`, as in modded-nanogpt and parameter-golf. 1 if warmdown_steps is 0, and from step `steps`
 * on, as in parameter-golf. */
double lks_lr_warmdown(uint64_t steps, uint64_t warmdown_steps, uint64_t step);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
