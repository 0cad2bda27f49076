#include "train/setup/continue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint/folder.h"
#include "settings/family.h"
#include "settings/settings_table.h"
#include "train/checkpoint.h"
#include "weights/forms/nanogpt.h"

bool lks__continue_can(const char *out_dir)
{
    bool any;
    return lks__nanogpt_in(out_dir) && lks__ckpt_any(out_dir, &any) == LKS_OK && !any;
}

static lks_status restore_setting(lks__run *run, int setting, const char *text)
{
    if (run->s.from[setting] >= LKS__FROM_FILE)
        return LKS_OK;
    const char *name = lks__setting_table[setting].name;
    const lks_status st = lks__settings_set(&run->s, LKS__CMD_TRAIN, name, text,
                                            LKS__FROM_CHECKPOINT, run->weights->shown);
    return st != LKS_ERR_CONFIG
               ? st
               : lks__fail(st, "%s; --%s=VALUE replaces it", lks_last_error(), name);
}

static lks_status restore_number(lks__run *run, int setting, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return restore_setting(run, setting, text);
}

/* Keep the settings of nanoGPT's run that its model and optimizer don't have. */
static lks_status restore_config(lks__run *run)
{
    static const int kept[] = {
        LKS__SETTING_batch_size,     LKS__SETTING_gradient_accumulation_steps,
        LKS__SETTING_learning_rate,  LKS__SETTING_min_lr,
        LKS__SETTING_decay_lr,       LKS__SETTING_warmup_iters,
        LKS__SETTING_lr_decay_iters, LKS__SETTING_max_iters,
        LKS__SETTING_grad_clip,      LKS__SETTING_dropout,
        LKS__SETTING_eval_interval,  LKS__SETTING_eval_iters,
        LKS__SETTING_log_interval,   LKS__SETTING_always_save_checkpoint};
    char text[40];
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (lks__nanogpt_setting(run->weights, lks__setting_table[kept[i]].name, text))
            LKS__TRY(restore_setting(run, kept[i], text));
    return LKS_OK;
}

lks_status lks__continue_open(lks__run *run)
{
    char path[LKS__SETTING_STR + 16];
    lks__nanogpt_run *from = &run->from_nanogpt;
    snprintf(path, sizeof path, "%s/" LKS__NANOGPT_FILE, run->s.out_dir);
    LKS__TRY(lks__weights_open(path, NULL, &run->weights));
    LKS__TRY(lks__nanogpt_run_of(run->weights, from));
    LKS__TRY(lks__settings_begin(&run->s, &run->weights->model, run->weights->shown));
    LKS__TRY(restore_number(run, LKS__SETTING_beta1, from->beta1));
    LKS__TRY(restore_number(run, LKS__SETTING_beta2, from->beta2));
    LKS__TRY(restore_number(run, LKS__SETTING_weight_decay, from->weight_decay));
    LKS__TRY(restore_config(run));
    if (run->weights->model.dataset[0] != '\0')
        LKS__TRY(restore_setting(run, LKS__SETTING_dataset, run->weights->model.dataset));
    lks__choose_optimizer(&run->s);
    if (strcmp(lks__optimizer_of(&run->s)->name, "adamw") != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has the state of AdamW: a run with optimizer=%s can't continue it; "
                         "leave --optimizer out",
                         run->weights->shown, lks__optimizer_of(&run->s)->name);
    run->continued = true;
    return LKS_OK;
}

uint64_t lks__continue_left_at(const char *out_dir)
{
    char path[LKS__SETTING_STR + 16];
    lks__weights *w;
    lks__nanogpt_run run = {.iter = 0};
    snprintf(path, sizeof path, "%s/" LKS__NANOGPT_FILE, out_dir);
    if (!lks__nanogpt_in(out_dir) || lks__weights_open(path, NULL, &w) != LKS_OK)
        return 0;
    const lks_status st = lks__nanogpt_run_of(w, &run);
    lks__weights_close(w);
    return st == LKS_OK ? run.iter : 0;
}

lks_status lks__continue_load(lks__trainer *t)
{
    const lks__nanogpt_run *from = &t->run.from_nanogpt;
    t->state.iter = from->iter;
    t->state.best_val_loss = from->best_val_loss;
    if (t->run.shared && t->ses.world.local_rank != 0)
        return LKS_OK;
    LKS__TRY(lks__weights_read(t->run.weights, &t->run.model_config, &t->run.table,
                               (uint64_t)t->run.s.seed, t->state.memory->params.host));
    LKS__TRY(lks__nanogpt_moments(t->run.weights, &t->run.table, t->state.memory->moments[0].host,
                                  t->state.memory->moments[1].host));
    return lks__state_params_hash(t, t->run.init_hash);
}
