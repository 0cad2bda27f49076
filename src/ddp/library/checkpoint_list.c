/* lks_checkpoint_list(): rank 0 packs the list of tensors, and broadcasts it. */
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "comm/backend.h"
#include "ddp/library/checkpoint_files.h"

static const char call[] = "lks_checkpoint_list";

static const lks__st_tensor *tensor_at(const lks__ckpt *ckpt, size_t i)
{
    const size_t n = lks__st_count(ckpt->model);
    return i < n ? lks__st_get(ckpt->model, i) : lks__st_get(ckpt->optimizer, i - n);
}

/* The list that is sent: the tensors, then their names. */
static lks_status pack(const lks__ckpt *ckpt, char **list_p, struct lks__outcome *o)
{
    o->n = lks__st_count(ckpt->model) + lks__st_count(ckpt->optimizer);
    o->bytes = o->n * sizeof(struct lks__packed_tensor) + 1;
    for (size_t i = 0; i < o->n; i++)
        o->bytes += strlen(tensor_at(ckpt, i)->name) + 1;
    struct lks__packed_tensor *list = calloc(1, o->bytes);
    LKS__MEMORY(list, "for a list of %zu tensors", (size_t)o->n);
    char *name = (char *)(list + o->n);
    for (size_t i = 0; i < o->n; i++) {
        const lks__st_tensor *t = tensor_at(ckpt, i);
        memcpy(list[i].shape, t->shape, sizeof list[i].shape);
        list[i].dtype = lks__st_dtype_of(t->dtype);
        list[i].n_dims = t->n_dims;
        name = stpcpy(name, t->name) + 1;
    }
    *list_p = (char *)list;
    return LKS_OK;
}

/* One block: the tensors, then their names. */
static lks_status unpack(const char *list, const struct lks__outcome *o, lks_tensor **tensors_p)
{
    const struct lks__packed_tensor *packed = (const struct lks__packed_tensor *)(const void *)list;
    const size_t names = o->bytes - o->n * sizeof *packed;
    lks_tensor *tensors = malloc(o->n * sizeof *tensors + names);
    if (tensors == NULL)
        return lks__fail(LKS_ERR_NOMEM, "%s: no memory for a list of %zu tensors", call,
                         (size_t)o->n);
    char *name = memcpy(tensors + o->n, packed + o->n, names);
    for (size_t i = 0; i < o->n; i++, name += strlen(name) + 1) {
        tensors[i] = (lks_tensor){
            .name = name, .dtype = (lks_dtype)packed[i].dtype, .n_dims = packed[i].n_dims};
        memcpy(tensors[i].shape, packed[i].shape, sizeof tensors[i].shape);
    }
    *tensors_p = tensors;
    return LKS_OK;
}

lks_status lks_checkpoint_list(lks_comm *comm, const char *dir, lks_tensor **tensors_p, size_t *n_p,
                               uint64_t *step_p)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(CHECKPOINT_LIST);
    struct lks__outcome o = {0};
    lks_tensor *tensors = NULL;
    char *list = NULL;
    LKS__NEED(call, tensors_p);
    *tensors_p = NULL;
    LKS__NEED(call, n_p);
    *n_p = 0;
    LKS__TRY(lks__read_block(comm, call, dir, "a list of tensors", pack, &list, &o));
    lks_status st = o.found ? unpack(list, &o, &tensors) : LKS_OK;
    free(list);
    LKS__TRY(st);
    *tensors_p = tensors;
    *n_p = o.n;
    if (o.found && step_p != NULL)
        *step_p = o.step;
    return LKS_OK;
}
