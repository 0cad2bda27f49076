#include "train/setup/continue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint/folder.h"
#include "train/checkpoint.h"
#include "train/optimizer.h"
#include "weights/forms/nanogpt.h"

bool lks__continue_can(const char *out_dir)
{
    lks__entry *entries;
    size_t n;
    if (!lks__nanogpt_in(out_dir) || lks__ckpt_scan(out_dir, &entries, &n) != LKS_OK)
        return false;
    free(entries);
    return n == 0;
}

/* As on a resume, a value that was given stays. */
static lks_status take(lks__trainer *t, int setting, const char *name, double value)
{
    char text[40];
    if (t->run.s.from[setting] >= LKS__FROM_FILE)
        return LKS_OK;
    snprintf(text, sizeof text, "%.17g", value);
    return lks__settings_set(&t->run.s, LKS__CMD_TRAIN, name, text, LKS__FROM_CHECKPOINT,
                             t->run.weights->shown);
}

lks_status lks__continue_open(lks__trainer *t)
{
    char path[LKS__SETTING_STR + 16];
    lks__nanogpt_run *run = &t->run.from_nanogpt;
    snprintf(path, sizeof path, "%s/" LKS__NANOGPT_FILE, t->run.s.out_dir);
    LKS__TRY(lks__weights_open(path, NULL, &t->run.weights));
    LKS__TRY(lks__nanogpt_run_of(t->run.weights, run));
    LKS__TRY(lks__settings_begin(&t->run.s, &t->run.weights->model, t->run.weights->shown));
    LKS__TRY(take(t, LKS__SETTING_beta1, "beta1", run->beta1));
    LKS__TRY(take(t, LKS__SETTING_beta2, "beta2", run->beta2));
    LKS__TRY(take(t, LKS__SETTING_weight_decay, "weight_decay", run->weight_decay));
    lks__train_choose_optimizer(&t->run.s);
    if (strcmp(lks__train_optimizer(&t->run.s)->name, "adamw") != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has the state of AdamW: a run with optimizer=%s can't continue it; "
                         "leave --optimizer out",
                         t->run.weights->shown, lks__train_optimizer(&t->run.s)->name);
    t->run.continued = true;
    return LKS_OK;
}

lks_status lks__continue_load(lks__trainer *t)
{
    const lks__nanogpt_run *run = &t->run.from_nanogpt;
    t->state.iter = run->iter;
    t->state.best_val_loss = run->best_val_loss;
    if (t->run.shared && t->ses.world.local_rank != 0)
        return LKS_OK;
    LKS__TRY(lks__weights_read(t->run.weights, &t->run.model_config, &t->run.table,
                               (uint64_t)t->run.s.seed, t->state.memory->params.host));
    LKS__TRY(lks__nanogpt_moments(t->run.weights, &t->run.table, t->state.memory->moments[0].host,
                                  t->state.memory->moments[1].host));
    return lks__state_params_hash(t, t->run.init_hash);
}
