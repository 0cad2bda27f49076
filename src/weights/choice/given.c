#include "weights/choice/given.h"

#include <inttypes.h>

#include "base/system/sys.h"
#include "settings/family.h"
#include "settings/settings_table.h"

lks_status lks__given_alone(const lks__settings *s, int setting)
{
    const char *other = lks__setting_name(setting);
    if (!lks__settings_uses_weights(s) || s->from[setting] != LKS__FROM_ARG)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "--init_from=%s and --%s were given, but --%s does not belong to those "
                     "weights: leave one of them out",
                     lks__shown(s->init_from, 512), other, other);
}

lks_status lks__given_heads(const lks__settings *s, const lks__settings *model)
{
    if (s->from[LKS__SETTING_n_head] != LKS__FROM_ARG || s->n_head == model->n_head)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "n_head=%" PRId64 " was given, but the model has n_head=%" PRId64
                     ": leave the setting out",
                     s->n_head, model->n_head);
}

static lks_status given_number(const lks__settings *s, int setting, double given,
                               const lks__settings *model, double *own)
{
    const char *name = lks__setting_name(setting);
    if (s->from[setting] == LKS__FROM_DEFAULT || given == *own)
        return LKS_OK;
    const lks__family *family = lks__family_of(model);
    const bool used = family->settings & lks__setting_table[setting].flags;
    if (used && model->from[setting] == LKS__FROM_DEFAULT) {
        *own = given;
        return LKS_OK;
    }
    if (s->from[setting] != LKS__FROM_ARG) /* the environment is for other models, too */
        return LKS_OK;
    if (!used)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s=%g was given, but models of family=%s don't use it: leave it out",
                         name, given, family->name);
    return lks__fail(LKS_ERR_CONFIG, "%s=%g was given, but the model has %s=%g: leave it out", name,
                     given, name, *own);
}

lks_status lks__given_golf(const lks__settings *s, lks__settings *model)
{
    const int length = LKS__SETTING_block_size;
    if (s->from[length] == LKS__FROM_ENV && model->from[length] == LKS__FROM_DEFAULT &&
        lks__family_of(model)->names != NULL)
        model->block_size = s->block_size;
    LKS__TRY(given_number(s, LKS__SETTING_rope_base, s->rope_base, model, &model->rope_base));
    return given_number(s, LKS__SETTING_logit_softcap, s->logit_softcap, model,
                        &model->logit_softcap);
}

lks_status lks__given_weights(const char *out_dir, const lks__settings *s, lks__weights **w_p)
{
    const bool given = s->from[LKS__SETTING_n_head] == LKS__FROM_ARG;
    const lks__weights_want want = {.checkpoint = s->checkpoint, .n_head = given ? s->n_head : 0};
    const bool run = !lks__settings_uses_weights(s);
    lks__weights *w;
    LKS__TRY(lks__given_alone(s, LKS__SETTING_out_dir));
    LKS__TRY(run ? lks__weights_open_run(out_dir, &want, &w)
                 : lks__weights_open(s->init_from, &want, &w));
    lks_status st = lks__given_heads(s, &w->model);
    LKS__THEN(st, lks__given_golf(s, &w->model));
    if (st == LKS_OK && lks__weights_checkpoint(w) == NULL)
        st = lks__given_alone(s, LKS__SETTING_checkpoint);
    if (st == LKS_OK)
        *w_p = w;
    else
        lks__weights_close(w);
    return st;
}

lks_status lks__given_elsewhere(const lks__weights *w, const char *out_dir)
{
    if (!lks__sys_same(w->run_dir[0] != '\0' ? w->run_dir : w->path, out_dir))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        "init_from and out_dir are the same folder, %s: a new run would move its "
        "files away. Give another --out_dir, or continue the run with --init_from=resume",
        w->shown);
}

lks_status lks__given_tokenizer_of(const lks__meta *data, const char *dir, const lks__meta *given,
                                   const char *path)
{
    if (!lks__meta_differ(data, given))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the tokens of %s were not made with the tokenizer %s, so its bits per byte "
                     "would be wrong: give the tokens' own tokenizer, or none",
                     lks__shown(dir, 256), lks__shown(path, 256));
}

lks_status lks__given_same_meaning(const lks__meta *data, const char *path, const lks__meta *model,
                                   const char *shown)
{
    if (!lks__meta_differ(data, model))
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the tokens of %s are not those of the weights in %s: the same ids stand for "
                     "other text. Prepare the data with the weights' tokenizer",
                     lks__shown(path, 256), shown);
}
