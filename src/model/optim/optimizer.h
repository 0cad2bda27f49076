/* model/optim/optimizer.h - optimizers update parameters. Each is one struct in a separate file. A
 * rank's lks__optim contains the parts of the parameters that it updates, and work memory. */
#pragma once

#include <stdbool.h>

#include "compute/device.h"
#include "model/table/table.h"

/* All optimizers, in one list: each X(name) is a struct lks__optimizer_<name>. */
#define LKS__OPTIMIZER_MAP(X)                                                                      \
    X(adamw)                                                                                       \
    X(muon)                                                                                        \
    X(sgd)

/* The numbers of one update. An optimizer uses those that it needs. */
typedef struct lks__rates {
    double lr[LKS__N_PARAM_KINDS];
    double orthogonal_lr; /* for matrices whose update is orthogonalized (Muon) */
    double weight_decay;
    double beta1, beta2, eps; /* of Adam; beta1 is also SGD's momentum */
    double momentum;          /* of Muon */
    double orthogonal_decay;  /* decoupled weight decay of Muon's matrices */
    int ns_steps;             /* Newton-Schulz iterations of Muon */
    uint64_t t; /* 1, 2, …: the iteration + 1. Skipped updates count, unlike in torch, whose `step`
                   counts only the updates that were made */
    double clip; /* factor that is first applied to all gradients */
} lks__rates;

enum { LKS__OPTIM_STATES = 2 };

/* A part of a tensor that this rank updates: `count` floats. They begin at `first` in arenas of the
 * table, and their state at state[i] in the memory of state i. */
typedef struct lks__piece {
    size_t tensor; /* its index in the table */
    size_t first, count;
    size_t state[LKS__OPTIM_STATES];
} lks__piece;

/* Addresses of a piece. */
typedef struct lks__optim_place {
    float *params;
    const float *grads;
} lks__optim_place;

/* Memory of the device. Parameters and gradients are arenas of the table, or `places` [n_pieces]
 * has their addresses. */
typedef struct lks__optim_arenas {
    float *params, *state[LKS__OPTIM_STATES];
    const float *grads;
    const lks__optim_place *places;
} lks__optim_arenas;

typedef struct lks__optim lks__optim;

typedef struct lks__optimizer {
    const char *name;  /* the word of --optimizer */
    const char *about; /* for --help */
    /* Suffix of the tensor's name in checkpoints, for each state that is kept for a tensor of that
     * kind. Each state has a separate arena. NULL: the arena contains nothing for it. */
    const char *state[LKS__N_PARAM_KINDS][LKS__OPTIM_STATES];
    bool decays; /* it applies weight_decay */
    bool adam;   /* it uses beta2 and eps */
    /* True if one rank updates a tensor of that kind as a whole. Tensors of other kinds are
     * divided by blocks. */
    bool whole[LKS__N_PARAM_KINDS];
    double (*cost)(
        const lks__table_tensor *t); /* cost of an update, for an even division; NULL: the size */
    /* Bytes of work memory for a tensor that is updated whole; NULL: none. */
    size_t (*work_bytes)(const lks__device *device, const lks__table_tensor *t);
    /* Put the update of all pieces of `o` on the compute queue. */
    void (*update)(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a);
} lks__optimizer;

#define X(name) extern const lks__optimizer lks__optimizer_##name;
LKS__OPTIMIZER_MAP(X)
#undef X

extern const lks__optimizer *const lks__optimizers[]; /* in the order of the list, ended by NULL */

/* Suffix of the tensor's name for its state in arena `state`; NULL if it has none, like all frozen
 * tensors. */
const char *lks__optimizer_state(const lks__optimizer *optimizer, const lks__table_tensor *t,
                                 int state);

/* True if every tensor's state can be divided over ranks by blocks. */
bool lks__optimizer_divides(const lks__optimizer *optimizer);

/* --- a rank's part --------------------------------------------------------------------------- */

/* The share of rank `rank` of the W ranks that together update one replica: blocks [first, end) of
 * each range. A private replica is updated whole: W = 1 and one range of all blocks. */
typedef struct lks__optim_share {
    int W, rank;
    int n_ranges;
    const size_t (*ranges)[2];
} lks__optim_share;

struct lks__optim {
    const lks__optimizer *optimizer;
    lks__device *device;
    const lks__table *table;
    lks__piece *pieces; /* of trained tensors: whole tensors first, the most expensive first */
    size_t n_pieces;
    /* Floats of each state. In host memory, which ranks share, a state is an arena of the table. A
     * device with separate memory stores only the state of this rank's pieces. */
    size_t state_floats[LKS__OPTIM_STATES];
    void *work; /* device memory */
    size_t work_bytes;
    bool lent;      /* work is borrowed */
    lks__beat beat; /* set after open, or none: progress of a long update */
};

/* `device` and `table` outlive it. `lent`: `lent_bytes` of the device's memory, aligned to 64
 * bytes, that are free during updates; they become its work memory if they are large enough. The
 * division of updates over ranks changes no bit. ERR_NOMEM. */
lks_status lks__optim_open(const lks__optimizer *optimizer, lks__device *device,
                           const lks__table *table, const lks__optim_share *share, void *lent,
                           size_t lent_bytes, lks__optim *o);
/* List the pieces only. lks__optim_close() it. ERR_NOMEM. */
lks_status lks__optim_list(const lks__optimizer *optimizer, const lks__table *table,
                           const lks__optim_share *share, lks__optim *o);
/* Fill a list of an update (compute/layers.h): of[] out, the next pieces of one kind, as many as a
 * list has room for. *next is 0 for the first ones. Returns their number, 0 at the end. */
size_t lks__optim_next(const lks__optim *o, lks__param_kind kind, size_t *next,
                       size_t of[LKS__UPDATE_PIECES]);
lks__optim_place lks__optim_place_of(const lks__optim *o, const lks__optim_arenas *a, size_t piece);
/* Compute state_floats; the device need not be open. ERR_NOMEM. */
lks_status lks__optim_measure(const lks__optimizer *optimizer, const lks__device *device,
                              const lks__table *table, const lks__optim_share *share,
                              size_t floats[LKS__OPTIM_STATES]);
void lks__optim_close(lks__optim *o); /* a zeroed one does nothing */

void lks__optim_update(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a);

/* Call every product of an update, on this rank or another, for a rehearsal (compute/device.h).
 * `memory` of the device stands for all arenas. ERR_NOMEM. */
lks_status lks__optim_rehearse(const lks__optim *o, const lks__rates *rates, float *memory);

/* Decide which of W ranks updates each tensor whole: owner[n_tensors] out, -1 for one that is
 * divided by blocks or frozen. The most expensive tensor goes to the rank with least work so far,
 * and so on; equal on all ranks. ERR_NOMEM. */
lks_status lks__optim_assign(const lks__optimizer *optimizer, const lks__table *table, int W,
                             int *owner);

/* The factor of torch.nn.utils.clip_grad_norm_: max / (norm + 1e-6), at most 1. max == 0: 1. */
double lks__clip_factor(double norm, double max);

/* AdamW on the pieces of one kind, for optimizers that leave some kinds to Adam. */
void lks__adamw_update(const lks__optim *o, const lks__rates *rates, const lks__optim_arenas *a,
                       lks__param_kind kind, double weight_decay);

/* y = a y + b x on the pieces of one kind. y is LKS__PARAMS or LKS__MOMENTUM (state 0). */
typedef enum lks__operand { LKS__PARAMS, LKS__GRADS, LKS__MOMENTUM } lks__operand;
void lks__optim_blend(const lks__optim *o, const lks__optim_arenas *arenas, lks__param_kind kind,
                      double a, lks__operand y, double b, lks__operand x);

/* Floating-point operations of `steps` Newton-Schulz iterations. Gram matrix and polynomial are
 * symmetric, so only half of each is counted. */
double lks__muon_flops(size_t rows, size_t cols, int steps);
