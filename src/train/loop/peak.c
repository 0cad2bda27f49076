#include "train/loop/peak.h"

/* All ranks measured at the same time, so whatever slowed this rank also slowed the others. */
static void measure_again(lks__peak *p)
{
    double own = 0.0;
    if (p->measure(p->ctx, &own) != LKS_OK || !(own > p->own))
        return;
    p->flops = p->own > 0.0 ? p->flops / p->own * own : own;
    p->own = own;
}

double lks__peak_share(lks__peak *p, double flops)
{
    if (flops > p->flops)
        measure_again(p);
    if (flops > p->flops)
        p->flops = flops;
    return p->flops > 0.0 ? flops / p->flops : 0.0;
}
