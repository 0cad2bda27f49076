/* ddp/library/update/optimizer.h - the state of an lks_optimizer: optimizer_open.c makes it,
 * optimizer.c updates, exchange.c sends the updates to the other ranks. */
#pragma once

#include "compute/cpu/device.h"
#include "ddp/library/checkpoint_files.h"
#include "lockstep/optimizer.h"
#include "model/optim/optimizer.h"

struct lks_optimizer {
    lks_comm *comm;  /* NULL: not divided */
    uint16_t number; /* of lks__call.object */
    int W, rank;
    lks_optimizer_param *params; /* [n_params] with our copies of names */
    size_t n_params;
    lks__table table;
    lks__kernels kernels;
    lks__pool *pool;
    lks__exec ex;
    lks__device device;
    lks__optim optim;               /* this rank's pieces */
    lks__optim_place *places;       /* [optim.n_pieces] */
    lks__optim *shares;             /* [W] all ranks' pieces, for exchanges */
    struct lks__exchange *exchange; /* NULL on one rank */
    float *state[LKS__OPTIM_STATES];
    lks_tensor *tensors; /* [n_tensors] with their names */
    size_t n_tensors;
    int64_t steps;
    /* "optimizer.steps" in the list: `steps` after lks_optimizer_state(), or the value that a load
     * stores. After a step of a group lks__stale_steps(), because the list lacks moments of other
     * ranks. */
    int64_t listed_steps;
    bool checks; /* LOCKSTEP_CHECK=1: each step compares its inputs over ranks */
};

/* It differs from that of other steps, so that a load of one is noticed. */
static inline int64_t lks__stale_steps(const lks_optimizer *o)
{
    return (int64_t)((uint64_t)LKS__STALE_STEPS << 40 | ((uint64_t)o->steps & UINT64_MAX >> 24));
}

/* Call it on several ranks when their shares are known. ERR_NOMEM. */
lks_status lks__exchange_open(lks_optimizer *o);
void lks__exchange_close(struct lks__exchange *exchange); /* NULL does nothing */
/* Send this rank's pieces of the parameters (state -1) or of a state to the others, and receive
 * theirs. Collective. */
lks_status lks__exchange_pieces(const lks_optimizer *o, int state);
/* Return the memory of the other ranks' moments, which lks_optimizer_state() or a load has filled.
 * They may be zero afterwards: no step reads them. */
void lks__exchange_drop(const lks_optimizer *o);
