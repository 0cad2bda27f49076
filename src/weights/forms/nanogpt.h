/* weights/forms/nanogpt.h - nanoGPT's ckpt.pt: {"model", "optimizer", "model_args", "iter_num",
 * "best_val_loss", "config"}. Its weights are a form like others; a run can also be continued, with
 * Adam's moments. */
#ifndef LKS_WEIGHTS_FORMS_NANOGPT_H
#define LKS_WEIGHTS_FORMS_NANOGPT_H

#include "weights/weights.h"

#define LKS__NANOGPT_FILE "ckpt.pt"

/* What a continued run takes beside the weights. */
typedef struct lks__nanogpt_run {
    uint64_t iter; /* updates that have been done */
    double best_val_loss;
    double beta1, beta2, weight_decay; /* of the optimizer's state, which brings them along */
} lks__nanogpt_run;

/* Does this folder have nanoGPT's ckpt.pt? */
bool lks__nanogpt_in(const char *folder);
/* `w` was opened from a ckpt.pt: check its optimizer's state, and read what is small in it. */
lks_status lks__nanogpt_run_of(lks__weights *w, lks__nanogpt_run *run);
/* Both moments of every tensor of the table into arenas. */
lks_status lks__nanogpt_moments(lks__weights *w, const lks__table *table, float *exp_avg,
                                float *exp_avg_sq);

#endif
