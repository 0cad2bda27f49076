/* optim/golf.h - the optimizers of the golf family, as parameter-golf's train_gpt.py groups them:
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
    uint64_t t;                                     /* updates made, this one included: 1, 2, … */
    double clip;                                    /* all gradients are multiplied by this first */
} lks__golf_step;

/* One update of blocks [first, end) as far as they are Adam's, and of the matrices of `muon`'s
 * rank. exp_avg holds Muon's momentum where a tensor is a matrix; exp_avg_sq stays untouched there.
 */
void lks__golf_update(const lks__device *device, const lks__table *table, lks__muon *muon,
                      size_t first, size_t end, const lks__golf_step *step, float *params,
                      float *exp_avg, float *exp_avg_sq, const float *grads);

#endif
