#include "weights/forms/form.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/list.h"
#include "base/number/bf16.h"
#include "base/number/f16.h"

lks_status lks__weights_set(lks__weights *w, const char *setting, const char *value)
{
    return lks__settings_set(&w->model, LKS__CMD_TRAIN, setting, value, LKS__FROM_CHECKPOINT,
                             w->shown);
}

lks_status lks__weights_set_int(lks__weights *w, const char *setting, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return lks__weights_set(w, setting, text);
}

lks__weights_tensor *lks__weights_add(lks__weights *w, const char *prefix, const char *name)
{
    if (!lks__list_grow(&w->tensors, w->n_tensors, &w->room, sizeof *w->tensors)) {
        lks__no_memory("for the tensors of %s", w->shown);
        return NULL;
    }
    lks__weights_tensor *t = &w->tensors[w->n_tensors++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    return t;
}

const lks__weights_tensor *lks__weights_untied(const lks__weights *w, const char *name)
{
    size_t at = 0;
    return lks__weights_find(w, name, &at);
}

bool lks__weights_has(const char *folder, const char *name)
{
    char path[LKS__CKPT_PATH + 64];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Element i is written before those from i + 1 on are overwritten: they begin at byte
 * 2 n + 2 i + 2, and the floats up to i end at 4 i + 4. */
void lks__weights_widen(float *out, size_t n, bool half)
{
    const char *from = (const char *)out + n * sizeof(uint16_t);
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + i * sizeof bits, sizeof bits);
        const float x = half ? lks__f16_to_float(bits) : lks__bf16_to_float(bits);
        memcpy(out + i, &x, sizeof x);
    }
}

/* --- names and shapes ------------------------------------------------------------------------ */

lks__weights_tensor *lks__weights_find(const lks__weights *w, const char *name, size_t *at_p)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        const size_t at = (*at_p + i) % w->n_tensors;
        lks__weights_tensor *t = &w->tensors[at];
        if (!t->tied && strcmp(t->name, name) == 0) {
            *at_p = at + 1;
            return t;
        }
    }
    return NULL;
}

const char *lks__weights_own_name(const lks__weights_tensor *t, char out[120])
{
    const char *name = t->own != NULL ? t->own : t->name;
    return lks__escape(out, 120, name, strlen(name));
}

/* "[32, 96]", in the file's order. */
static const char *shape_text(int n_dims, uint64_t d0, uint64_t d1, bool transposed, char out[48])
{
    if (n_dims == 1)
        snprintf(out, 48, "[%" PRIu64 "]", d0);
    else if (n_dims == 2)
        snprintf(out, 48, "[%" PRIu64 ", %" PRIu64 "]", transposed ? d1 : d0, transposed ? d0 : d1);
    else
        snprintf(out, 48, "of %d dimensions", n_dims);
    return out;
}

lks_status lks__weights_check_shape(const lks__weights *w, const lks__weights_tensor *have,
                                    const lks__table_tensor *t, const char *whose)
{
    char name[120], is[48], needs[48];
    bool same = have->n_dims == t->n_dims && have->shape[0] == t->shape[0] &&
                (t->n_dims == 1 || have->shape[1] == t->shape[1]);
    if (same)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT, "%s: tensor %s is %s, but %s has %s there", w->shown,
                     lks__weights_own_name(have, name),
                     shape_text(have->n_dims, have->shape[0], have->shape[1], have->transposed, is),
                     whose,
                     shape_text(t->n_dims, t->shape[0], t->shape[1], have->transposed, needs));
}
