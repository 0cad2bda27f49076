/* lockstep export --format=safetensors: the parameters under their own names, as one file. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "weights/export/form.h"

lks_status lks__export_tensors(const char *path, const lks__st_tensor *tensors, size_t n)
{
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    LKS__MEMORY(metadata, "for the header of a safetensors file");
    unlink(path); /* left by a killed process with the same number */
    lks_status st = lks__st_write(path, tensors, n, metadata);
    json_decref(metadata);
    return st;
}

lks_status lks__export_safetensors(const lks__export_model *e)
{
    const size_t n = e->table.n_tensors;
    float *params;
    char target[PATH_MAX], part[PATH_MAX + 40];
    LKS__TRY(lks__sys_target(e->s->out, target));
    snprintf(part, sizeof part, "%s.%ld.part", target, (long)getpid());
    LKS__TRY(lks__export_params(e, &params));
    lks__st_tensor *list = calloc(n, sizeof *list);
    lks_status st = LKS_OK;
    if (list == NULL)
        st = lks__no_memory("to list %zu tensors", n);
    for (size_t i = 0; i < n && st == LKS_OK; i++) {
        const lks__table_tensor *t = &e->table.tensors[i];
        list[i] = (lks__st_tensor){.name = t->name,
                                   .dtype = "F32",
                                   .n_dims = t->n_dims,
                                   .shape = {t->shape[0], t->shape[1]},
                                   .data = params + t->offset,
                                   .bytes = t->count * sizeof *params};
    }
    LKS__THEN(st, lks__export_tensors(part, list, n));
    if (st == LKS_OK && lks__sys_rename(part, target) != 0) {
        st = lks__sys_fail("cannot rename to", e->s->out);
        lks__sys_unlink(part);
    }
    const char *gelu = lks__setting_word(&e->run, LKS__SETTING_gelu);
    if (st == LKS_OK && e->config.gelu_tanh)
        lks__export_note(e,
                         "the model has gelu=%s, which this file can't record: give --gelu=%s when "
                         "you use it",
                         gelu, gelu);
    free(list);
    free(params);
    return st;
}
