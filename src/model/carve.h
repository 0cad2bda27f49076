/* model/carve.h - hands out parts of an activation arena; with base == NULL it only measures. */
#ifndef LKS_MODEL_CARVE_H
#define LKS_MODEL_CARVE_H

#include "base/checked.h"

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

#endif
