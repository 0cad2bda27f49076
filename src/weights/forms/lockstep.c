/* weights/forms/lockstep.c - lockstep's own checkpoints: a run's folder, a checkpoint's, or the
 * model.safetensors in it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "files/checkpoint/name.h"
#include "weights/forms/form.h"
#include "weights/forms/saved.h"

/* The checkpoint folder that contains this model.safetensors. */
static bool folder_of(const char *path, char folder[LKS__CKPT_PATH])
{
    if (strcmp(lks__sys_name(path), LKS__CKPT_MODEL) != 0)
        return false;
    lks__ckpt_parent(path, folder);
    return lks__weights_has(folder, LKS__CKPT_STATE);
}

static bool looks(const lks__weights_path *p)
{
    char folder[LKS__CKPT_PATH];
    bool any;
    if (!p->folder)
        return folder_of(p->path, folder);
    return lks__weights_has(p->path, LKS__CKPT_STATE) ||
           (lks__ckpt_any(p->path, &any) == LKS_OK && any);
}

/* OUT of OUT/ckpt-…, also if that was opened as OUT/latest; "" for a checkpoint folder with another
 * name. */
static void find_run(const lks__ckpt *c, char run_dir[LKS__CKPT_PATH])
{
    char real[PATH_MAX];
    const char *path = c->path;
    if (lks__entry_parse(c->name).kind == LKS__ENTRY_OTHER && realpath(path, real) != NULL)
        path = real;
    lks__entry e = lks__entry_parse(lks__sys_name(path));
    if (e.kind != LKS__ENTRY_CKPT && e.kind != LKS__ENTRY_OLD)
        run_dir[0] = '\0';
    else
        lks__ckpt_parent(path, run_dir);
}

/* --- the choice of a checkpoint --------------------------------------------------------------- */

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

/* Open the weights of --checkpoint=`choice` in out_dir: "best", "latest" or an iteration; empty:
 * the best one if the run has always_save_checkpoint=false, else the latest. w->origin: its name
 * and the reason, as "ckpt-00000100 (best)". */
static lks_status open_chosen(const char *out_dir, const char *choice, lks__ckpt *ckpt,
                              lks__weights *w)
{
    const char *how = choice;
    int64_t iter;
    lks_status st;
    if (choice[0] == '\0') {
        st = open_default(out_dir, ckpt, &how);
    } else if (strcmp(choice, LKS__NAME_BEST) == 0) {
        st = lks__ckpt_open_best(out_dir, LKS__CKPT_ONLY_MODEL, ckpt);
    } else if (strcmp(choice, LKS__NAME_LATEST) == 0) {
        st = lks__ckpt_open(out_dir, LKS__CKPT_ONLY_MODEL, ckpt);
    } else if (lks__parse_int(choice, &iter) && iter >= 0) {
        st = lks__ckpt_open_iter(out_dir, (uint64_t)iter, LKS__CKPT_ONLY_MODEL, ckpt);
        how = "";
    } else {
        st = lks__fail(LKS_ERR_CONFIG,
                       "--checkpoint must be best, latest or the iteration of a checkpoint");
    }
    LKS__TRY(st);
    snprintf(w->origin, sizeof w->origin, how[0] != '\0' ? "%s (%s)" : "%s", ckpt->name, how);
    return LKS_OK;
}

/* --- its weights ------------------------------------------------------------------------------ */

static lks_status add_tensors(lks__weights *w, const lks__st_file *file)
{
    char name[120];
    for (size_t i = 0; i < lks__st_count(file); i++) {
        const lks__st_tensor *from = lks__st_get(file, i);
        lks__weights_tensor *t = lks__weights_add(w, "", from->name);
        if (t == NULL)
            return LKS_ERR_NOMEM;
        t->own = from->name;
        if (strcmp(from->dtype, "F32") != 0)
            return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s is not of type F32", w->shown,
                             lks__weights_own_name(t, name));
        t->n_dims = from->n_dims;
        t->shape[0] = from->shape[0];
        t->shape[1] = from->shape[1];
        t->from = from;
    }
    return LKS_OK;
}

static lks_status open_checkpoint(const lks__weights_want *want, lks__weights *w)
{
    char folder[LKS__CKPT_PATH];
    lks__ckpt *c = calloc(1, sizeof *c);
    LKS__MEMORY(c, "to open %s", w->shown);
    w->source = c;
    const char *out_dir = folder_of(w->path, folder) ? folder : w->path;
    LKS__TRY(open_chosen(out_dir, want->checkpoint, c, w));
    snprintf(w->path, sizeof w->path, "%s", c->path);
    lks__escape(w->shown, sizeof w->shown, w->path, strlen(w->path));
    const char *hash = json_string_value(json_object_get(c->state, "params_hash"));
    snprintf(w->params_hash, sizeof w->params_hash, "%s", hash == NULL ? "" : hash);
    w->iter = c->iter;
    find_run(c, w->run_dir);
    snprintf(w->vocabulary, sizeof w->vocabulary, "%s", w->run_dir);
    LKS__TRY(lks__state_settings(c, &w->model));
    LKS__TRY(lks__state_meta(c, &w->meta));
    return add_tensors(w, c->model);
}

static lks_status read_part(lks__weights *w, const lks__weights_tensor *t, uint64_t first, size_t n,
                            float *out)
{
    const lks__ckpt *c = w->source;
    const lks__st_tensor *from = t->from;
    if (first == 0 && n * sizeof *out == from->bytes) /* checks its hash */
        return lks__st_read(c->model, from, out);
    return lks__st_read_part(c->model, from, first * sizeof *out, out, n * sizeof *out);
}

static void close_checkpoint(lks__weights *w)
{
    if (w->source != NULL)
        lks__ckpt_close(w->source);
    free(w->source);
}

const lks__weights_form lks__weights_lockstep = {
    .about = "a folder of a run or a checkpoint of lockstep",
    .looks = looks,
    .open = open_checkpoint,
    .read = read_part,
    .close = close_checkpoint,
};
