/* parity.h - shared by the tests against the scripts' figures. */
#pragma once

#include "support.h"

#include "compute/cpu/device.h"
#include "data/read/sampler.h"
#include "model/model.h"
#include "model/optim/optimizer.h"

/* The machine's best kernels (or LOCKSTEP_CPU's), for lks_test_run_all(). They use two
 * threads, or from a call of parity_threads() on as many as it asks for; it closes the old pool. */
extern lks__exec parity_ex;
extern lks__device parity_device;
int parity_open_exec(void **state);
int parity_close_exec(void **state);
void parity_threads(int n);

/* One update of all of `params`; moments: the optimizer's arenas, one behind the other. */
void parity_update(const lks__optimizer *optimizer, const lks__table *table,
                   const lks__rates *rates, float *params, float *moments, const float *grads);

float *parity_floats(size_t n); /* zeros; free() them */

/* What lks__model_train() and lks__model_loss() (bw NULL) give, on the CPU. */
double parity_loss(lks__model *model, const float *params, const lks__micro_batch *mb,
                   const lks__backward *bw);

/* The model of a figure's `config`, with the initial weights of its seed. */
typedef struct parity_model {
    const char *name; /* of the figure */
    const json_t *figure;
    lks__model_config config;
    lks__table table;
    float *params; /* arena */
    uint64_t seed, init_draws;
    int V, A, B, T; /* virtual ranks (the script's processes), micro-steps of each */
} parity_model;

parity_model parity_open(const char *figure_name);
void parity_close(parity_model *m);

/* Data of a tensor in a figure's section ("init", "grad0", "final"), in which nanoGPT's names lack
 * the prefix "transformer.". */
const json_t *parity_tensor(const json_t *figure, const char *section, const char *name);

/* Sums over a tensor in double, as the figures' `how` defines them. */
typedef struct parity_sums {
    double sum, sumsq, dots[2];
} parity_sums;

parity_sums parity_sum(const float *x, size_t n);

/* The place of a comparison: a quantity of a figure, as listed in tests/figures/tolerances.h;
 * `section` and `of` (a tensor, for example) are for messages. */
typedef struct parity_place {
    const char *figure, *quantity, *section, *of;
} parity_place;

/* |got - want| <= limit * scale, with the limit of tests/figures/tolerances.h; otherwise the test
 * fails, naming place and `what`. The worst error of every quantity is printed at the end. */
void parity_hold(const parity_place *at, const char *what, double got, double want, double scale);

/* The first and last values of a tensor in the figure, compared in the same way. */
void parity_hold_values(const parity_place *at, const float *x, size_t n, double scale,
                        const json_t *want);

/* Shapes and initial values. These come from log, cos and sin; libraries differ in the last bit.
 * Over n elements such differences add up like noise in the sum, and in the sum of squares to at
 * most |x - y| * |x + y|. */
void parity_hold_init(const char *figure);

void parity_hold_gradients(const parity_model *m, const char *section, const float *grads);

/* The slope of the loss along a tensor's gradient is that gradient's norm. The loss is a float,
 * accurate to about 2e-7, so the slope has an error of 2e-7 / h. The error of the five-point
 * formula is of order h^4, except at the kink of relu's second derivative. */
void parity_hold_slopes(const char *family, const lks__table *table, float *params,
                        const float *grads, double h, double least, double (*loss_of)(void *model),
                        void *model);

/* A number that a run reports, and element `i` of a figure's list. */
void parity_hold_run(const char *figure, const char *quantity, const char *section, double got,
                     double want, double scale);
double parity_of_list(const json_t *list, size_t i);

/* Check the table itself: every limit has a reason and exceeds the worst error seen; those of
 * golf's evaluations, round trip and norms are at most three times the worst seen or the figure's
 * own spread. */
void parity_check_table(void);

/* For lks_test_run_all(): prints the worst errors seen. */
int parity_print_worst(void **state);

/* Backward announces every group once, in order, and not before its gradient is complete:
 * parity_group_done() with a parity_groups checks that. `seen` holds copies of the gradients at
 * that time. */
typedef struct parity_groups {
    const lks__table *table;
    const float *grads;
    float *seen;
    int next;
} parity_groups;

void parity_group_done(void *groups, int group);
void parity_ignore_group(void *ctx, int group); /* for a pass that needs no such check */
void parity_all_done(parity_groups *groups);    /* after the pass: none is missing */

/* The absolute paths in an environment variable (with ':' between), ended by NULL: figures that a
 * recorder has written, for which tests/figures/tolerances.h has the rows of "*". */
enum { PARITY_MOST_GIVEN = 40 };
void parity_given_figures(const char *variable, const char *list[PARITY_MOST_GIVEN + 1]);

/* golf's figures on generated tokens, ended by NULL: those of the repository, and the paths in
 * LKS_TEST_GOLF_FIGURES, which golf_figure.py has recorded. */
const char *const *parity_golf_figures(void);

/* The sampler of the figure's script, over token files of these lengths. */
lks__batch_sampler *parity_sampler(const parity_model *m, uint64_t n_train, uint64_t n_val);
