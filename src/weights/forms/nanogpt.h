/* weights/forms/nanogpt.h - nanoGPT's ckpt.pt: {"model", "optimizer", "model_args", "iter_num",
 * "best_val_loss", "config"}. Its weights are a form like others; a run can also be continued, with
 * Adam's moments. */
#pragma once

#include "weights/weights.h"

#define LKS__NANOGPT_FILE "ckpt.pt"

/* The data that a continued run needs in addition to the weights. */
typedef struct lks__nanogpt_run {
    uint64_t iter; /* completed updates */
    double best_val_loss;
    double beta1, beta2, weight_decay; /* from the optimizer's state */
} lks__nanogpt_run;

/* True if this folder contains nanoGPT's ckpt.pt. */
bool lks__nanogpt_in(const char *folder);
/* Check the optimizer's state and read its small members. ERR_FORMAT if `w` has another form. */
lks_status lks__nanogpt_run_of(lks__weights *w, lks__nanogpt_run *run);
/* The number or boolean of this name in the run's config, as text. False if there is none. */
bool lks__nanogpt_setting(const lks__weights *w, const char *name, char text[40]);
/* Read both moments of every trained tensor of the table into arenas. */
lks_status lks__nanogpt_moments(lks__weights *w, const lks__table *table, float *exp_avg,
                                float *exp_avg_sq);
