/* model/carve.h - divides an activation arena, which is memory of the device, into parts; with base
 * == NULL it only measures. */
#ifndef LKS_MODEL_CARVE_H
#define LKS_MODEL_CARVE_H

#include "base/checked.h"
#include "layers/device.h"

typedef struct lks__carver {
    char *base;
    uint64_t used;
    bool too_large; /* for memory to address: measured only */
} lks__carver;

/* [n, width] floats. */
static inline float *lks__carve(lks__carver *c, size_t n, size_t width)
{
    uint64_t bytes = 0, end = 0;
    float *p = c->base == NULL ? NULL : (float *)(void *)(c->base + c->used);
    if (!lks__mul((uint64_t)n, (uint64_t)width, &bytes) ||
        !lks__mul(bytes, sizeof(float), &bytes) || !lks__add(bytes, 63, &bytes) ||
        !lks__add(c->used, bytes / 64 * 64, &end) || end > SIZE_MAX / 2)
        c->too_large = true;
    else
        c->used = end;
    return p;
}

#endif
