/* model/optim/optimizer.h - what updates parameters: one struct for each optimizer, in a file of
 * its own, and what a rank has of it: which parts of the parameters it updates, and work memory. */
#ifndef LKS_MODEL_OPTIM_OPTIMIZER_H
#define LKS_MODEL_OPTIM_OPTIMIZER_H

#include <stdbool.h>

#include "compute/device.h"
#include "model/table/table.h"

/* All optimizers, in one list: each X(name) is a struct lks__optimizer_<name>. */
#define LKS__OPTIMIZER_MAP(X)                                                                      \
    X(adamw)                                                                                       \
    X(muon)                                                                                        \
    X(sgd)

/* The numbers of one update, as a procedure has them. An optimizer takes those that it needs. */
typedef struct lks__rates {
    double lr[LKS__N_PARAM_KINDS];
    double orthogonal_lr; /* of matrices whose update is orthogonalized (Muon) */
    double weight_decay;
    double beta1, beta2, eps; /* of Adam; beta1 is also SGD's momentum */
    double momentum;          /* of Muon */
    int ns_steps;             /* Newton-Schulz iterations of Muon */
    uint64_t t;               /* updates made, this one included: 1, 2, … */
    double clip;              /* all gradients are multiplied by this first */
} lks__rates;

enum { LKS__OPTIM_STATES = 2 };

/* A part of a tensor that this rank updates: `count` floats. They begin at `first` in arenas of the
 * table, and their state at state[i] in the memory of state i. */
typedef struct lks__piece {
    size_t tensor; /* its index in the table */
    size_t first, count;
    size_t state[LKS__OPTIM_STATES];
} lks__piece;

/* Memory of the device. Parameters and gradients are arenas of the table. */
typedef struct lks__optim_arenas {
    float *params, *state[LKS__OPTIM_STATES];
    const float *grads;
} lks__optim_arenas;

typedef struct lks__optim lks__optim;

typedef struct lks__optimizer {
    const char *name;  /* the word of --optimizer */
    const char *about; /* for --help */
    /* What is kept for a tensor of that kind, in arenas of its own: behind the tensor's name this
     * is its name in checkpoints. NULL: nothing in that arena. */
    const char *state[LKS__N_PARAM_KINDS][LKS__OPTIM_STATES];
    bool decays; /* it applies weight_decay */
    /* One rank updates a tensor of that kind as a whole; the others are divided by blocks. */
    bool whole[LKS__N_PARAM_KINDS];
    double (*cost)(const lks__tensor *t); /* of an update, for an even division; NULL: the size */
    /* Bytes of work memory for a tensor that is updated whole; NULL: none. */
    size_t (*work_bytes)(const lks__device *device, const lks__tensor *t);
    /* Put the update of all pieces of `o` on the compute queue. */
    void (*update)(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a);
} lks__optimizer;

#define X(name) extern const lks__optimizer lks__optimizer_##name;
LKS__OPTIMIZER_MAP(X)
#undef X

extern const lks__optimizer *const lks__optimizers[]; /* of the list, in its order, up to NULL */

/* The name behind a tensor's name for what arena `state` keeps of it; NULL: nothing, as of all
 * frozen tensors. */
const char *lks__optimizer_state(const lks__optimizer *optimizer, const lks__tensor *t, int state);

/* Can a tensor's state be divided over ranks block by block, whatever the tensor is? */
bool lks__optimizer_divides(const lks__optimizer *optimizer);

/* --- a rank's part --------------------------------------------------------------------------- */

/* Of the ranks that update one replica together this is `rank` of W. Blocks [first, end) of each
 * range are its own. A private replica is updated whole: W = 1 and one range of all blocks. */
typedef struct lks__optim_share {
    int W, rank;
    int n_ranges;
    const size_t (*ranges)[2];
} lks__optim_share;

struct lks__optim {
    const lks__optimizer *optimizer;
    lks__device *device;
    const lks__table *table;
    lks__piece
        *pieces; /* of trained tensors: whole tensors first, those that cost most before others */
    size_t n_pieces;
    /* Floats of each state. In host memory, which ranks share, it is an arena of the table. A
     * device with its own memory has the state of this rank's pieces alone. */
    size_t state_floats[LKS__OPTIM_STATES];
    void *work; /* of the device */
    size_t work_bytes;
    bool lent; /* work */
};

/* `device` and `table` outlive it. `lent`: `lent_bytes` of the device's memory, aligned to 64
 * bytes, that hold nothing during updates: they are its work memory if they are large enough. Which
 * rank updates what changes no bit. ERR_NOMEM. */
lks_status lks__optim_open(const lks__optimizer *optimizer, lks__device *device,
                           const lks__table *table, const lks__optim_share *share, void *lent,
                           size_t lent_bytes, lks__optim *o);
/* The state_floats that it would have; the device needs not be open. ERR_NOMEM. */
lks_status lks__optim_measure(const lks__optimizer *optimizer, const lks__device *device,
                              const lks__table *table, const lks__optim_share *share,
                              size_t floats[LKS__OPTIM_STATES]);
void lks__optim_close(lks__optim *o); /* a zeroed one does nothing */

void lks__optim_update(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a);

/* Which of W ranks updates each tensor whole: owner[n_tensors] out, -1 for one that is divided by
 * blocks or frozen. The tensor that costs most goes to the rank that has least so far, and so on;
 * equal on all ranks. ERR_NOMEM. */
lks_status lks__optim_assign(const lks__optimizer *optimizer, const lks__table *table, int W,
                             int *owner);

/* What torch.nn.utils.clip_grad_norm_ multiplies by: max / (norm + 1e-6), at most 1. max == 0: 1.
 */
double lks__clip_factor(double norm, double max);

/* For optimizers that leave some kinds to Adam: AdamW on the pieces of one kind. */
void lks__adamw_update(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a,
                       lks__param_kind kind, double weight_decay);

/* Floating-point operations of `steps` Newton-Schulz iterations: Gram matrix and polynomial are
 * symmetric, and half of each is enough. */
double lks__muon_flops(size_t rows, size_t cols, int steps);

#endif
