#include "weights/forms/torch.h"

#include <string.h>

static bool is_type(const lks__pickle_tensor *t, const char *dtype)
{
    return strcmp(t->storage->dtype, dtype) == 0;
}

lks_status lks__weights_torch_add(lks__weights *w, const char *name, const lks__pickle_value *value,
                                  bool tied)
{
    const char *shown = lks__shown(name, 120);
    if (lks__pickle_kind_of(value) != LKS__PICKLE_TENSOR)
        return lks__fail(LKS_ERR_FORMAT, "%s: %s is %s, but a tensor is expected", w->shown, shown,
                         lks__pickle_kind_name(lks__pickle_kind_of(value)));
    const lks__pickle_tensor *from = lks__pickle_tensor_of(value);
    if (!is_type(from, "F32") && !is_type(from, "F16") && !is_type(from, "BF16"))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: tensor %s is of type %s; lockstep reads F32, F16 and BF16", w->shown,
                         shown, from->storage->dtype);
    lks__weights_tensor *t = lks__weights_add(w, "", name);
    if (t == NULL)
        return LKS_ERR_NOMEM;
    t->n_dims = from->n_dims;
    for (int d = 0; d < 2 && d < from->n_dims; d++)
        t->shape[d] = from->shape[d];
    t->tied = tied;
    t->from = from;
    return LKS_OK;
}

lks_status lks__weights_torch_read(lks__torchfile *file, const lks__weights_tensor *t,
                                   uint64_t first, size_t n, float *out)
{
    const lks__pickle_tensor *from = t->from;
    const bool wide = from->storage->item_bytes == sizeof *out;
    char *to = (char *)out + (wide ? 0 : n * sizeof(uint16_t)); /* widened in place */
    LKS__TRY(lks__torchfile_read_part(file, from, first, n, to));
    if (!wide)
        lks__weights_widen(out, n, !is_type(from, "BF16"));
    return LKS_OK;
}

const char *lks__weights_torch_key(const lks__pickle_value *dict, size_t i)
{
    static _Thread_local char text[200];
    size_t bytes;
    const lks__pickle_value *key = lks__pickle_key(dict, i);
    if (lks__pickle_kind_of(key) != LKS__PICKLE_TEXT)
        return NULL;
    const char *at = lks__pickle_text(key, &bytes);
    if (bytes >= sizeof text || memchr(at, '\0', bytes) != NULL)
        return NULL;
    memcpy(text, at, bytes);
    text[bytes] = '\0';
    return text;
}
