/* tools/bench.h - what `lockstep bench` measures, a file each. */
#ifndef LKS_TOOLS_BENCH_H
#define LKS_TOOLS_BENCH_H

#include "train/session.h"
#include "train/settings.h"

/* Sorts `times` [n]. */
double bench_median(double *times, int n);

/* Multiply-adds a second of `threads` threads of this rank, together. */
lks_status bench_peak_of(const lks__session *s, int threads, double *flops_p);

lks_status bench_step(lks__settings *s);
lks_status bench_comm(const lks__settings *s);
lks_status bench_kernels(const lks__settings *s);

#endif
