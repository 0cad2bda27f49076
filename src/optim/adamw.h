/* optim/adamw.h - AdamW and Adam over the blocks of a table (Loshchilov and Hutter, 2019; the
 * formula and order of operations of torch.optim.AdamW, which nanoGPT uses; Adam is AdamW without
 * decay). */
#ifndef LKS_OPTIM_ADAMW_H
#define LKS_OPTIM_ADAMW_H

#include "layers/device.h"
#include "model/table.h"

typedef struct lks__adamw_step {
    double lr, beta1, beta2, eps, weight_decay; /* decay: on tensors that the table marks */
    uint64_t t;                                 /* updates made, this one included: 1, 2, … */
    double clip;                                /* the gradient is multiplied by this first */
} lks__adamw_step;

/* Update blocks [first, end) of params and both moments (arenas of the table). */
void lks__adamw_update(const lks__device *device, const lks__table *table, size_t first, size_t end,
                       const lks__adamw_step *step, float *params, float *exp_avg,
                       float *exp_avg_sq, const float *grads);

typedef struct lks__adam_step {
    double lr[LKS__N_PARAM_KINDS]; /* Muon's matrices are left alone, whatever stands there */
    double beta1, beta2, eps;
    uint64_t t;  /* updates made, this one included: 1, 2, … */
    double clip; /* the gradient is multiplied by this first */
} lks__adam_step;

/* torch.optim.Adam without decay, each kind of tensor with its own rate, on blocks [first, end). */
void lks__adam_update(const lks__device *device, const lks__table *table, size_t first, size_t end,
                      const lks__adam_step *step, float *params, float *exp_avg, float *exp_avg_sq,
                      const float *grads);

/* What torch.nn.utils.clip_grad_norm_ multiplies by: max / (norm + 1e-6), at most 1. max == 0: 1.
 */
double lks__clip_factor(double norm, double max);

#endif
