#include "optim/schedule.h"

#include <math.h>

double lks__cosine_lr(const lks__cosine *c, uint64_t iter)
{
    if (iter < c->warmup_iters)
        return c->learning_rate * ((double)iter + 1.0) / ((double)c->warmup_iters + 1.0);
    if (iter > c->lr_decay_iters)
        return c->min_lr;
    /* warm-up may end where the decay does: then this is its one iteration, at the peak */
    double span = (double)c->lr_decay_iters - (double)c->warmup_iters;
    double done = span > 0.0 ? ((double)iter - (double)c->warmup_iters) / span : 0.0;
    double coeff = 0.5 * (1.0 + cos(M_PI * done));
    return c->min_lr + coeff * (c->learning_rate - c->min_lr);
}
