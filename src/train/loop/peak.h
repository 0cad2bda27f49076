/* train/loop/peak.h - how much of the machine's peak a run uses (MFU). The peak is measured at the
 * start, when other programs may use the cores. If a step is faster than the measured peak, that
 * was too low. */
#ifndef LKS_TRAIN_LOOP_PEAK_H
#define LKS_TRAIN_LOOP_PEAK_H

#include "base/status.h"

typedef struct lks__peak {
    double flops; /* of all ranks together, in FLOP/s; 0 before it is measured */
    double own;   /* this rank's share of it */
    /* Measures this rank's peak again; not collective. */
    lks_status (*measure)(void *ctx, double *own_p);
    void *ctx;
} lks__peak;

/* `flops` (FLOP/s of all ranks) divided by the peak, at most 1. If it exceeds the peak, this rank's
 * peak is measured again, and those of all ranks are raised in proportion. The peak is at least
 * what the step has reached, whatever is measured. */
double lks__peak_share(lks__peak *peak, double flops);

#endif
