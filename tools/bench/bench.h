/* tools/bench/bench.h - the measurements of `lockstep bench`, one file each. */
#pragma once

#include "session/session.h"
#include "settings/settings.h"
#include "train/setup/trainer.h"
#include "train/step.h"

/* The name of measurement i, "peak", "step", …; NULL after the last one. */
const char *bench_name(int i);

double bench_median(double *times, int n);

/* Floating-point operations per second of `threads` threads of this rank together. */
lks_status bench_peak_of(const lks__session *s, int threads, double *flops_p);

/* True if settings or a config file chose a model. */
bool bench_has_model(const lks__settings *s);
/* Choose the vocabulary if it is open, and print the model in one line on rank 0. */
lks_status bench_print_model(lks__settings *s);

/* Open a trainer on random tokens, with `micro_batches` per rank and step. Fills in missing
 * settings of `s`. */
lks_status bench_open_trainer(lks__settings *s, int micro_batches, lks__trainer *t);

/* --- bench comm ------------------------------------------------------------------------------- */

/* The state of `bench comm` in a rank. */
struct bench_group {
    lks_comm *comm;
    int rank, W, n_hosts;
    int other;      /* the first rank of the second host */
    bool pretended; /* ranks of this one machine act as hosts */
    int iters, warm_up;
};

/* Launch ranks once per backend. Returns the exit code. */
int bench_comm_launch(const lks__settings *s, int argc, char **argv);
/* Measure the backend of this rank's launch. Collective. */
lks_status bench_comm(lks__settings *s);

/* The slowest rank's median of `times`, which it sorts. Collective. */
lks_status bench_slowest(struct bench_group *b, double *times, int n, double *seconds_p);

/* Compare the reduction of gradients with the limits, and measure a model's reduction in its steps.
 * Collective. */
struct bench_link;
lks_status bench_reduction(struct bench_group *b, const struct bench_link *link);
lks_status bench_verdict(struct bench_group *b, lks__trainer *t);
/* Reduce `count` floats `turns` times. Returns the seconds, and CPU seconds of this process, of
 * each turn. Collective. */
lks_status bench_reduce_times(lks_comm *comm, size_t count, int turns, double *seconds,
                              double *cpu_seconds);

struct bench_link {
    double rate;    /* bytes per second each way, both ways at once; 0: not measured */
    double round_s; /* seconds of a one-byte round trip */
    double window;  /* bytes in the first round trip after a pause; 0: no limit */
    double burst;   /* bytes per second while the window isn't full; 0: as `rate` */
};

/* Measure a TCP connection between rank 0 and rank `other`. Collective. */
lks_status bench_link(lks_comm *comm, int other, bool same_machine, struct bench_link *link);

/* Measure this host, and the link to another one, for `lockstep plan`. Collective. */
lks_status bench_machine(lks__settings *s);

lks_status bench_kernels(lks__settings *s);

/* --- a device besides the CPU ----------------------------------------------------------------- */

/* The ceilings of a device, per second. */
struct bench_peaks {
    double bytes; /* read and written by copies */
    double flops; /* in matrix products */
    bool bf16;    /* products with bfloat16 operands */
};

/* Measure the session's device. ERR_SUPPORT if it doesn't count its operations. */
lks_status bench_device_peaks(lks__session *s, struct bench_peaks *peaks);
void bench_print_peaks(const lks__device *device, const struct bench_peaks *peaks);

/* Time the operations of the session's device by the shapes of the settings' model. */
lks_status bench_device_kernels(lks__session *session, const lks__settings *s);
