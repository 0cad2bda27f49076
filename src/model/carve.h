/* model/carve.h - divides an activation arena, which is memory of the device, into parts; with base
 * == NULL it only measures. */
#ifndef LKS_MODEL_CARVE_H
#define LKS_MODEL_CARVE_H

#include "base/checked.h"
#include "layers/device.h"

typedef struct lks__carver {
    char *base;
    size_t used;
} lks__carver;

static inline float *lks__carve(lks__carver *c, size_t floats)
{
    float *p = c->base == NULL ? NULL : (float *)(void *)(c->base + c->used);
    c->used += lks__round_up(floats * sizeof(float), 64);
    return p;
}

/* Zeroed memory; release it through the device. */
static inline lks_status lks__activations_open(lks__device *device, size_t bytes, int batch,
                                               int block_size, void **arena_p)
{
    lks_status st = device->ops->alloc(device, bytes, arena_p);
    if (st != LKS_ERR_NOMEM)
        return st;
    return lks__fail(LKS_ERR_NOMEM,
                     "no memory for %.1f MB of activations (%d sequences of %d tokens): use fewer "
                     "sequences in a micro-batch and more gradient_accumulation_steps",
                     (double)bytes / 1e6, batch, block_size);
}

#endif
