/* tools/bench/bench.h - what `lockstep bench` measures, one file for each measurement. */
#ifndef LKS_TOOLS_BENCH_BENCH_H
#define LKS_TOOLS_BENCH_BENCH_H

#include "session/session.h"
#include "settings/settings.h"
#include "train/setup/trainer.h"

extern const char *const bench_words[]; /* what it measures: "peak", ...; NULL ends them */

/* Sorts `times` [n]. */
double bench_median(double *times, int n);

/* Multiply-adds per second of all `threads` threads of this rank together. */
lks_status bench_peak_of(const lks__session *s, int threads, double *flops_p);

/* Was a model chosen, by its settings or by a config file? */
bool bench_has_model(const lks__settings *s);
/* The first rank names the model on stdout, in one line. Sets the vocabulary if it is open. */
lks_status bench_print_model(lks__settings *s);

/* Open a trainer on random tokens, with so many micro-batches for each rank in a step; fills in
 * missing settings of `s`. */
lks_status bench_open_trainer(lks__settings *s, int micro_batches, lks__trainer *t);

/* --- bench comm ------------------------------------------------------------------------------- */

/* What the ranks of a group measure with. */
struct bench_group {
    lks_comm *comm;
    int rank, W, n_hosts, per_host; /* per_host: ranks of the first host */
    int other;                      /* the first rank of the second host */
    bool pretended;                 /* ranks of this one machine act as hosts */
    const char *engine;             /* "Gloo", "Open MPI"; NULL: one host, with shared memory */
    int iters, warm_up;
    double *gathered; /* [W] */
};

/* In a process that wasn't started as a rank: one launch for each backend. */
int bench_comm_launch(const lks__settings *s, int argc, char **argv);
/* In a rank. */
lks_status bench_comm(lks__settings *s);

/* The slowest rank's median; sorts `times`. Collective. */
lks_status bench_slowest(struct bench_group *b, double *times, int n, double *seconds_p);

/* Compare reductions of gradients with the limits, and measure a model's communication in a step.
 * Collective. */
struct bench_link;
lks_status bench_reduction(struct bench_group *b, const struct bench_link *link);
lks_status bench_verdict(struct bench_group *b, lks__trainer *t);
/* Reduce `count` floats so often; seconds and CPU seconds of this process for each. Collective. */
lks_status bench_reduce_times(lks_comm *comm, size_t count, int turns, double *seconds,
                              double *cpu_seconds);

struct bench_link {
    double rate;    /* bytes/s each way, both ways at once; 0: not measured */
    double round_s; /* round trip of one byte */
    double window;  /* bytes of the first round trip after a pause; 0: it doesn't limit */
    double burst;   /* bytes/s of what fits in the window; 0: as `rate` */
};

/* A TCP connection between rank 0 and rank `other`. Collective. */
lks_status bench_link(lks_comm *comm, int other, bool same_machine, struct bench_link *link);

/* Measure this host, and the link to another one, for `lockstep plan`. Collective. */
lks_status bench_machine(lks__settings *s);

lks_status bench_kernels(const lks__settings *s);

/* --- a device besides the CPU ----------------------------------------------------------------- */

/* What a device does at best in a second. */
struct bench_peaks {
    double bytes; /* of its memory, read and written by copies */
    double flops; /* of products */
    bool bf16;    /* of bfloat16 operands */
};

/* Of the session's device. ERR_SUPPORT if it doesn't count what its operations need. */
lks_status bench_device_peaks(lks__session *s, struct bench_peaks *peaks);
void bench_print_peaks(const lks__device *device, const struct bench_peaks *peaks);

/* The operations of the session's device, by the shapes of the settings' model. */
lks_status bench_device_kernels(lks__session *session, const lks__settings *s);

#endif
