/* ddp/library/update/schedule.c - lockstep/schedule.h: the schedules of `lockstep train` for
 * programs. */
#include "lockstep/schedule.h"

#include "base/number/cpu.h"
#include "model/optim/schedule.h"

double lks_lr_cosine(double learning_rate, double min_lr, uint64_t warmup_steps,
                     uint64_t decay_steps, uint64_t step)
{
    LKS__FLOAT_MODE();
    const lks__cosine c = {learning_rate, min_lr, warmup_steps, decay_steps};
    return lks__cosine_lr(&c, step);
}

/* The schedule counts in int64. */
static int64_t limited(uint64_t n)
{
    return n < INT64_MAX ? (int64_t)n : INT64_MAX;
}

double lks_lr_warmdown(uint64_t steps, uint64_t warmdown_steps, uint64_t step)
{
    LKS__FLOAT_MODE();
    return lks__golf_lr_scale(limited(steps), limited(warmdown_steps), limited(step));
}
