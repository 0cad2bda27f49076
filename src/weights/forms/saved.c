#include "weights/forms/saved.h"

#include <stdio.h>
#include <string.h>

#include "settings/family.h"

bool lks__state_of_library(const lks__ckpt *ckpt)
{
    return json_object_get(ckpt->state, "settings") == NULL;
}

lks_status lks__state_settings(const lks__ckpt *ckpt, lks__settings *s)
{
    const char *shown = lks__shown(ckpt->path, 512);
    if (lks__state_of_library(ckpt))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is a checkpoint of a program that uses liblockstep, not of `lockstep "
                         "train`: that program loads it, and other programs can read its "
                         "model.safetensors",
                         shown);
    return lks__settings_from_json(json_object_get(ckpt->state, "settings"), shown, s);
}

lks_status lks__state_meta(const lks__ckpt *ckpt, lks__meta *meta)
{
    char where[600];
    snprintf(where, sizeof where, "%s/state.json", lks__shown(ckpt->path, 512));
    return lks__meta_from_json(json_object_get(ckpt->state, "tokenizer"), where, meta);
}

void lks__state_choose_dtype(lks__settings *s, const lks__device *device)
{
    if (s->dtype == LKS__dtype_auto)
        s->dtype = device->bf16 ? LKS__dtype_bfloat16 : LKS__dtype_float32;
}

lks__model_config lks__state_model_config(const lks__settings *s, uint32_t vocab_size)
{
    const lks__family *family = lks__family_of(s);
    lks__model_config config = {
        .ops = family->model,
        .n_layer = (int)s->n_layer,
        .n_head = (int)s->n_head,
        .n_embd = (int)s->n_embd,
        .block_size = (int)s->block_size,
        .vocab_size = (int)vocab_size,
        .bf16 = s->dtype == LKS__dtype_bfloat16,
        .recompute = s->recompute == LKS__recompute_block || s->eval_only ? LKS__RECOMPUTE_BLOCK
                     : s->recompute == LKS__recompute_rows                ? LKS__RECOMPUTE_ROWS
                                                                          : LKS__RECOMPUTE_NONE,
    };
    if (family->config != NULL)
        family->config(s, &config);
    return config;
}

/* The entry in `file` of a tensor of the table under that name. */
lks_status lks__state_find(const lks__st_file *file, const char *path, const lks__table_tensor *t,
                           const char *suffix, const lks__st_tensor **found_p)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    const lks__st_tensor *found = lks__st_find(file, name);
    bool fits = found != NULL && strcmp(found->dtype, "F32") == 0 && found->n_dims == t->n_dims;
    for (int d = 0; fits && d < t->n_dims; d++)
        fits = found->shape[d] == t->shape[d];
    if (!fits)
        return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s %s", lks__shown(path, 512), name,
                         found == NULL
                             ? "is missing"
                             : "has another type or shape than state.json's settings give");
    *found_p = found;
    return LKS_OK;
}

lks_status lks__state_check_params(const lks__st_file *file, const char *path,
                                   const lks__table *table)
{
    const lks__st_tensor *found;
    for (size_t i = 0; i < table->n_tensors; i++)
        LKS__TRY(lks__state_find(file, path, &table->tensors[i], "", &found));
    return LKS_OK;
}

lks_status lks__state_read_params(lks__st_file *file, const char *path, const lks__table *table,
                                  float *params)
{
    const lks__st_tensor *found;
    for (size_t i = 0; i < table->n_tensors; i++) {
        LKS__TRY(lks__state_find(file, path, &table->tensors[i], "", &found));
        LKS__TRY(lks__st_read(file, found, params + table->tensors[i].offset));
    }
    return LKS_OK;
}
