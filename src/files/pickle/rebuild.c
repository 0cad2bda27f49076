#include "files/pickle/value.h"

#include <string.h>

#include "base/number/checked.h"
#include "base/text/utf8.h"

static bool is(const lks__pickle_value *v, size_t i, lks__pickle_kind kind)
{
    return v->u.items.at[i]->kind == kind;
}

/* Read integers from 0 to 2^63. */
static bool read_counts(const lks__pickle_value *tuple, uint64_t *out)
{
    for (size_t i = 0; i < tuple->u.items.n; i++) {
        const lks__pickle_value *v = tuple->u.items.at[i];
        if (v->kind != LKS__PICKLE_INT || v->u.whole < 0)
            return false;
        out[i] = (uint64_t)v->u.whole;
    }
    return true;
}

/* ---- tensors ----------------------------------------------------------------------------- */

/* True if every element is inside the storage, and the tensor has at most as many elements as the
 * storage: otherwise a few bytes could claim any number of elements. */
static bool fits(lks__pickle_tensor *t)
{
    uint64_t last = t->first, step;
    t->count = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (t->shape[d] == 0)
            t->count = 0;
    if (t->count == 0)
        return t->first <= t->storage->count;
    for (int d = 0; d < t->n_dims; d++)
        if (!lks__mul(t->count, t->shape[d], &t->count) ||
            !lks__mul(t->shape[d] - 1, t->stride[d], &step) || !lks__add(last, step, &last))
            return false;
    return last < t->storage->count && t->count <= t->storage->count;
}

/* (storage, first, shape, stride, requires_grad, backward_hooks) */
static lks__pickle_value *rebuild_tensor(lks__pickle_heap *heap, const lks__pickle_value *args,
                                         const char **why_p)
{
    lks__pickle_value *const *at = args->u.items.at;
    *why_p = "a tensor has other arguments than (storage, offset, shape, stride, requires_grad, "
             "hooks)";
    if (args->u.items.n != 6 || !is(args, 0, LKS__PICKLE_STORAGE) ||
        !is(args, 1, LKS__PICKLE_INT) || at[1]->u.whole < 0 || !is(args, 2, LKS__PICKLE_TUPLE) ||
        !is(args, 3, LKS__PICKLE_TUPLE) || !is(args, 4, LKS__PICKLE_BOOL) ||
        !is(args, 5, LKS__PICKLE_DICT) || at[5]->u.items.n != 0)
        return NULL;
    size_t n_dims = at[2]->u.items.n;
    *why_p = "a tensor has more than 8 dimensions, or another number of strides";
    if (n_dims > LKS__PICKLE_MAX_DIMS || at[3]->u.items.n != n_dims)
        return NULL;
    *why_p = NULL;
    lks__pickle_value *v = lks__pickle_new(heap, LKS__PICKLE_TENSOR);
    if (!v)
        return NULL;
    lks__pickle_tensor *t = v->u.tensor;
    t->storage = &at[0]->u.storage;
    t->n_dims = (int)n_dims;
    t->first = (uint64_t)at[1]->u.whole;
    *why_p = "a tensor's shape and strides are not whole numbers of at least 0";
    if (!read_counts(at[2], t->shape) || !read_counts(at[3], t->stride))
        return NULL;
    *why_p = "a tensor reaches beyond its storage";
    if (!fits(t))
        return NULL;
    return v;
}

lks__pickle_value *lks__pickle_storage_of(lks__pickle_heap *heap, const lks__pickle_value *id,
                                          const char **why_p)
{
    *why_p = "a storage is not described by ('storage', type, key, device, count)";
    if (id->kind != LKS__PICKLE_TUPLE || id->u.items.n != 5)
        return NULL;
    lks__pickle_value *const *at = id->u.items.at;
    if (!lks__pickle_is(at[0], "storage") || !is(id, 1, LKS__PICKLE_GLOBAL) ||
        at[1]->u.global->role != LKS__PICKLE_STORAGE_TYPE || !is(id, 2, LKS__PICKLE_TEXT) ||
        !is(id, 3, LKS__PICKLE_TEXT) || !is(id, 4, LKS__PICKLE_INT) || at[4]->u.whole < 0)
        return NULL;
    *why_p = NULL;
    lks__pickle_value *v = lks__pickle_new(heap, LKS__PICKLE_STORAGE);
    if (v)
        v->u.storage = (lks__pickle_storage){.dtype = at[1]->u.global->dtype,
                                             .item_bytes = at[1]->u.global->item_bytes,
                                             .count = (uint64_t)at[4]->u.whole,
                                             .key = at[2]->u.text.at,
                                             .key_bytes = at[2]->u.text.bytes};
    return v;
}

/* (tensor, requires_grad, backward_hooks): the tensor itself. */
static lks__pickle_value *rebuild_parameter(const lks__pickle_value *args, const char **why_p)
{
    *why_p = "a parameter has other arguments than (tensor, requires_grad, hooks)";
    if (args->u.items.n != 3 || !is(args, 0, LKS__PICKLE_TENSOR) ||
        !is(args, 1, LKS__PICKLE_BOOL) || !is(args, 2, LKS__PICKLE_DICT) ||
        args->u.items.at[2]->u.items.n != 0)
        return NULL;
    return args->u.items.at[0];
}

/* ---- the others -------------------------------------------------------------------------- */

/* encode(text, 'latin1') */
static lks__pickle_value *encode(lks__pickle_heap *heap, const lks__pickle_value *args,
                                 const char **why_p)
{
    *why_p = "_codecs.encode has other arguments than (text, 'latin1')";
    if (args->u.items.n != 2 || !is(args, 0, LKS__PICKLE_TEXT) ||
        !lks__pickle_is(args->u.items.at[1], "latin1"))
        return NULL;
    size_t bytes, n = 0;
    const char *text = lks__pickle_text(args->u.items.at[0], &bytes);
    *why_p = "_codecs.encode makes more than 8 MiB";
    if (bytes > LKS__PICKLE_MAX_BYTES - heap->copied)
        return NULL;
    *why_p = NULL;
    lks__pickle_value *v = lks__pickle_new(heap, LKS__PICKLE_BYTES);
    char *out = v ? lks__pickle_copy_room(heap, bytes) : NULL;
    if (!out)
        return NULL;
    for (size_t i = 0; i < bytes;) {
        uint32_t cp;
        i += lks__utf8_decode(text + i, bytes - i, &cp);
        if (cp > 255) {
            *why_p = "_codecs.encode has a character that is not a byte";
            return NULL;
        }
        out[n++] = (char)cp;
    }
    v->u.text.at = out;
    v->u.text.bytes = n;
    return v;
}

lks__pickle_value *lks__pickle_rebuild(lks__pickle_heap *heap, const lks__pickle_global *global,
                                       const lks__pickle_value *args, const char **why_p)
{
    switch (global->role) {
    case LKS__PICKLE_REBUILD_TENSOR:
        return rebuild_tensor(heap, args, why_p);
    case LKS__PICKLE_REBUILD_PARAMETER:
        return rebuild_parameter(args, why_p);
    case LKS__PICKLE_ENCODE:
        return encode(heap, args, why_p);
    case LKS__PICKLE_ORDERED_DICT:
    case LKS__PICKLE_BYTES_TYPE:
        *why_p = "OrderedDict and bytes take no arguments here";
        if (args->u.items.n != 0)
            return NULL;
        *why_p = NULL;
        return lks__pickle_new(heap, global->role == LKS__PICKLE_ORDERED_DICT ? LKS__PICKLE_DICT
                                                                              : LKS__PICKLE_BYTES);
    case LKS__PICKLE_STORAGE_TYPE:
        break;
    }
    *why_p = "a storage type is called, but nothing in a pickle is ever called";
    return NULL;
}
