/* tools/bench.h - what `lockstep bench` measures, a file each. */
#ifndef LKS_TOOLS_BENCH_H
#define LKS_TOOLS_BENCH_H

#include "session/session.h"
#include "settings/settings.h"
#include "train/trainer.h"

/* Sorts `times` [n]. */
double bench_median(double *times, int n);

/* Multiply-adds a second of `threads` threads of this rank, together. */
lks_status bench_peak_of(const lks__session *s, int threads, double *flops_p);

/* A trainer on random tokens, with one micro-batch for each rank a step; fills in `s` what isn't
 * given. */
lks_status bench_open_trainer(lks__settings *s, lks__trainer *t);

/* --- bench comm ------------------------------------------------------------------------------- */

/* What a group's ranks measure it with. */
struct bench_group {
    lks_comm *comm;
    int rank, W, n_hosts, per_host; /* per_host: of the first host */
    int other;                      /* the first rank of the second host */
    bool pretended;                 /* hosts are ranks of this one machine */
    const char *engine;             /* "Gloo", "Open MPI"; NULL: on one host by shared memory */
    int iters, warm_up;
    double *gathered; /* [W] */
};

/* In a process that no launcher of ours has started as a rank: one launch for each backend. */
int bench_comm_launch(const lks__settings *s, int argc, char **argv);
/* As a rank. */
lks_status bench_comm(lks__settings *s);

/* The slowest rank's median; sorts `times`. Collective. */
lks_status bench_slowest(struct bench_group *b, double *times, int n, double *seconds_p);

/* Reductions of gradients beside the limits, and a model's communication in a step. Collective. */
struct bench_link;
lks_status bench_reduction(struct bench_group *b, const struct bench_link *link);
lks_status bench_verdict(struct bench_group *b, lks__trainer *t);

struct bench_link {
    double rate;    /* bytes/s each way, both ways at once; 0: it couldn't be measured */
    double round_s; /* one byte, there and back */
};

/* A TCP connection between rank 0 and rank `other`. Collective. */
lks_status bench_link(lks_comm *comm, int other, bool same_machine, struct bench_link *link);

lks_status bench_kernels(const lks__settings *s);

#endif
