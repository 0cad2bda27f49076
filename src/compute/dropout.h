/* compute/dropout.h - one dropout mask. */
#pragma once

#include "base/number/rng.h"

/* Element i of the tensor is kept if word (i % 4) of Philox(key, {step, vm, site, i / 4}) is at
 * least threshold = (uint32_t)(p * 2^32), and is then multiplied by scale = 1/(1-p). threshold == 0
 * means no dropout. */
typedef struct lks__dropout {
    lks__philox_key key;
    uint32_t step, vm, site;
    uint32_t threshold;
    float scale;
} lks__dropout;

/* The most elements of a tensor with a mask: the counter's last word has 32 bits. */
#define LKS__DROPOUT_MOST (UINT64_C(1) << 34)
