/* train/loop/peak.h - model FLOPs utilization (MFU): the share of the machine's peak that a run
 * uses. The peak is measured at the start, when other programs may use the cores. If a step is
 * faster than the measured peak, that measurement was too low. */
#pragma once

#include "base/status.h"

typedef struct lks__peak {
    double flops; /* FLOP/s of all ranks together; 0 before it is measured */
    double own;   /* this rank's part of it */
    /* Measure this rank's peak again. Not collective. */
    lks_status (*measure)(void *ctx, double *own_p);
    void *ctx;
} lks__peak;

/* `flops` (FLOP/s of all ranks) divided by the peak, at most 1. If `flops` exceeds the peak,
 * measure this rank's peak again and raise all ranks' peaks in proportion, at least to `flops`. */
double lks__peak_share(lks__peak *peak, double flops);
