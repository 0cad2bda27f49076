#include "weights/choice/which.h"

#include <stdio.h>
#include <string.h>

#include "files/checkpoint/name.h"
#include "weights/forms/saved.h"

/* True if the run keeps checkpoints only for their validation loss. Its newest checkpoint records
 * this; if that can't be read, opening it will report why. */
static bool only_for_loss(const char *out_dir)
{
    lks__ckpt ckpt = {.iter = 0};
    lks__settings run;
    lks__settings_defaults(&run);
    bool only = lks__ckpt_open(out_dir, LKS__CKPT_ONLY_STATE, &ckpt) == LKS_OK && !ckpt.itself &&
                lks__state_settings(&ckpt, &run) == LKS_OK && !run.always_save_checkpoint;
    lks__ckpt_close(&ckpt);
    return only;
}

static lks_status open_default(const char *out_dir, lks__ckpt *ckpt, const char **how_p)
{
    bool only = only_for_loss(out_dir);
    if (only) {
        lks_status st = lks__ckpt_open_best(out_dir, LKS__CKPT_ONLY_MODEL, ckpt);
        *how_p = "best";
        if (st != LKS_ERR_CONFIG)
            return st;
    }
    LKS__TRY(lks__ckpt_open(out_dir, LKS__CKPT_ONLY_MODEL, ckpt));
    *how_p = ckpt->itself ? "" : only ? "latest, as there is no best checkpoint" : "latest";
    return LKS_OK;
}

lks_status lks__which_open(const char *out_dir, const char *which, lks__ckpt *ckpt, char took[64])
{
    const char *how = which;
    int64_t iter;
    lks_status st;
    if (which[0] == '\0') {
        st = open_default(out_dir, ckpt, &how);
    } else if (strcmp(which, LKS__NAME_BEST) == 0) {
        st = lks__ckpt_open_best(out_dir, LKS__CKPT_ONLY_MODEL, ckpt);
    } else if (strcmp(which, LKS__NAME_LATEST) == 0) {
        st = lks__ckpt_open(out_dir, LKS__CKPT_ONLY_MODEL, ckpt);
    } else if (lks__parse_int(which, &iter) && iter >= 0) {
        st = lks__ckpt_open_iter(out_dir, (uint64_t)iter, LKS__CKPT_ONLY_MODEL, ckpt);
        how = "";
    } else {
        st = lks__fail(LKS_ERR_CONFIG,
                       "--checkpoint must be best, latest or the iteration of a checkpoint");
    }
    LKS__TRY(st);
    snprintf(took, 64, how[0] != '\0' ? "%s (%s)" : "%s", ckpt->name, how);
    return LKS_OK;
}
