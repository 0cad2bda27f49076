/* optim/golf.h - the optimizers of the golf family, grouped as in parameter-golf's train_gpt.py:
 * Muon for the matrices of the layers, Adam with three rates for the rest. */
#ifndef LKS_OPTIM_GOLF_H
#define LKS_OPTIM_GOLF_H

#include "optim/muon.h"

typedef struct lks__golf_step {
    double embed_lr, head_lr, matrix_lr, scalar_lr; /* before the schedule; embed_lr: tied or not */
    double lr_scale;                                /* the schedule's factor on all rates */
    double beta1, beta2, eps;                       /* Adam */
    double momentum;                                /* Muon: lks__golf_momentum() */
    int ns_steps;                                   /* Muon: Newton-Schulz iterations */
    uint64_t t;  /* number of updates including this one: 1, 2, … */
    double clip; /* factor for all gradients */
} lks__golf_step;

/* One update of the Adam tensors in blocks [first, end), and of the matrices that belong to
 * `muon`'s rank. exp_avg holds Muon's momentum for matrices; their part of exp_avg_sq isn't
 * touched. */
void lks__golf_update(const lks__exec *ex, const lks__table *table, lks__muon *muon, size_t first,
                      size_t end, const lks__golf_step *step, float *params, float *exp_avg,
                      float *exp_avg_sq, const float *grads);

#endif
