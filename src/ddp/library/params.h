/* ddp/library/params.h - the state of an lks_ddp: params_open.c makes it, params.c runs its steps.
 */
#pragma once

#include <stdbool.h>

#include "compute/cpu/device.h"
#include "ddp/library/early_mark.h"
#include "ddp/reducer.h"
#include "lockstep/ddp.h"

struct lks__ddp_param {
    lks_param p; /* with our copy of its name, and the address of our gradient if `own` */
    int tensor;  /* index in the table of trained parameters; -1: frozen */
    bool ready;  /* marked in this micro-step */
};

/* Sums over the micro-batches of one virtual rank. */
struct lks__ddp_tally {
    double weight, loss;
};

struct lks_ddp {
    lks_comm *comm;
    uint16_t number; /* of lks__call.object */
    /* All virtual ranks, and micro-steps of each; this rank's virtual ranks are [first, end). */
    int V, A, first, end;
    struct lks__ddp_param *params;
    size_t n_params;
    int *param_of; /* [n_tensors] */
    lks__table table;
    lks__exec ex;
    lks__device device;
    lks__reducer *inner;
    uint64_t *early; /* [n_params] hashes of complete gradients; NULL: not checked */

    double norm;    /* of the mean gradient, until it is clipped or the next step begins; else -1 */
    uint64_t steps; /* completed, for messages */
    int v, m;       /* next in turn: micro-step m of virtual rank v */
    bool begun;     /* v has begun */
    lks_status failed; /* a step failed for the reason in why[] */
    char why[512];
    bool own;        /* the gradients are in the reducer's last arena, and the caller's are NULL */
    bool overwrites; /* a virtual rank's first micro-step stores gradients */
    double weight;   /* of each micro-step, and the reducer divides; 0: they may differ */
    float *leaf;     /* sum of v's gradients */
    int next_group;  /* next to announce in the last micro-step */
    unsigned char *exchange, *all; /* buffers of gather() */
    unsigned char *used;     /* [n_params] in the current step; used[n_params]: any was marked */
    unsigned char *was_used; /* `used` of the last step, over all ranks */
};

/* Bytes that a rank contributes to the gathering of weights, losses and marks. */
size_t lks__ddp_tally_bytes(const lks_ddp *d);

/* Compare over ranks, before a step, the steps that programs have noted and the values of trained
 * parameters. Collective. ERR_DIVERGED names two ranks (step_check.c). */
lks_status lks__ddp_check_step(const lks_ddp *d);
