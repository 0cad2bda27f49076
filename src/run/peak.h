/* run/peak.h - the share of the machine's peak that a run uses (MFU). The peak is measured at the
 * start, when something else may have the cores: a step that is faster proves it wrong. */
#ifndef LKS_RUN_PEAK_H
#define LKS_RUN_PEAK_H

#include "base/status.h"

typedef struct lks__peak {
    double flops; /* of all ranks together, in FLOP/s; 0 before it is measured */
    double own;   /* this rank's share of it */
    lks_status (*measure)(void *ctx, double *own_p); /* this rank's peak, now; not collective */
    void *ctx;
} lks__peak;

/* `flops` (FLOP/s of all ranks) as a share of the peak, at most 1. If it is more, this rank's peak
 * is measured again, and those of all ranks are raised in the same proportion; what the step has
 * reached is the least that the peak can be, whatever is measured. */
double lks__peak_share(lks__peak *peak, double flops);

#endif
