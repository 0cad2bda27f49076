/* model/carve.h - divides an activation arena, which is memory of the device, into parts; with base
 * == NULL it only measures. */
#pragma once

#include "base/number/checked.h"
#include "compute/device.h"

typedef struct lks__carver {
    char *base;
    size_t act_bytes; /* bytes per element of activations */
    uint64_t used;
    bool too_large; /* the total exceeds the address space; possible only while measuring */
} lks__carver;

/* Reserve [n, width] elements of `bytes_each` bytes. */
static inline void *lks__carve(lks__carver *c, size_t n, size_t width, size_t bytes_each)
{
    uint64_t bytes = 0, end = 0;
    void *p = c->base == NULL ? NULL : c->base + c->used;
    if (!lks__mul((uint64_t)n, (uint64_t)width, &bytes) || !lks__mul(bytes, bytes_each, &bytes) ||
        !lks__add(bytes, 63, &bytes) || !lks__add(c->used, bytes / 64 * 64, &end) ||
        end > SIZE_MAX / 2)
        c->too_large = true;
    else
        c->used = end;
    return p;
}

static inline lks__act *lks__carve_acts(lks__carver *c, size_t n, size_t width)
{
    return lks__carve(c, n, width, c->act_bytes);
}

static inline float *lks__carve_floats(lks__carver *c, size_t n, size_t width)
{
    return lks__carve(c, n, width, sizeof(float));
}
