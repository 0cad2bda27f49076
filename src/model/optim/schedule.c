#include "model/optim/schedule.h"

#include <math.h>

#include "base/number/math.h"

double lks__cosine_lr(const lks__cosine *c, uint64_t iter)
{
    if (iter < c->warmup_iters)
        return c->learning_rate * ((double)iter + 1.0) / ((double)c->warmup_iters + 1.0);
    if (iter > c->lr_decay_iters)
        return c->min_lr;
    /* If warm-up ends where the decay ends, this single iteration is at the peak. */
    double span = (double)c->lr_decay_iters - (double)c->warmup_iters;
    double done = span > 0.0 ? ((double)iter - (double)c->warmup_iters) / span : 0.0;
    double coeff = 0.5 * (1.0 + lks__math_cos(M_PI * done));
    return c->min_lr + coeff * (c->learning_rate - c->min_lr);
}

double lks__golf_lr_scale(int64_t iterations, int64_t warmdown_iters, int64_t iter)
{
    if (iter >= iterations || iter < iterations - warmdown_iters)
        return 1.0;
    return (double)(iterations - iter) / (double)warmdown_iters;
}

double lks__golf_lr_scale_clock(double max_wallclock_ms, int64_t warmdown_iters, int64_t iter,
                                double elapsed_ms)
{
    if (warmdown_iters <= 0)
        return 1.0;
    double step_ms = elapsed_ms / (iter > 1 ? (double)iter : 1.0);
    double warmdown_ms = (double)warmdown_iters * step_ms;
    double left_ms = fmax(max_wallclock_ms - elapsed_ms, 0.0);
    return left_ms <= warmdown_ms ? left_ms / warmdown_ms : 1.0;
}

double lks__muon_momentum(double start, double end, int64_t warmup_steps, int64_t iter)
{
    double done = warmup_steps > 0 ? fmin((double)iter / (double)warmup_steps, 1.0) : 1.0;
    return (1.0 - done) * start + done * end;
}
