/* weights/use/draw.h - draw a token from its logits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__draw_options {
    uint64_t seed;
    double temperature; /* divides the logits; 0: always the first of the most likely tokens */
    uint32_t top_k;     /* only tokens whose logit reaches the k-th largest; 0: all */
    /* In (0, 1]: only the smallest set of tokens whose total probability reaches top_p, at least
     * one; likely tokens first, equally likely ones by id (Holtzman et al., 2019). */
    double top_p;
    const bool *has; /* [n] true for ids that may be drawn; NULL: all */
} lks__draw_options;

/* Bytes of work space for n tokens. */
size_t lks__draw_work_bytes(size_t n);

/* Draw from softmax(logits / temperature), cut by top_k and then by top_p, with the uniform number
 * Philox(seed; token, sample, SITE_SAMPLE). Overwrites `logits`. ERR_FORMAT for logits that aren't
 * numbers. */
lks_status lks__draw(const lks__draw_options *o, uint64_t token, uint32_t sample, float *logits,
                     size_t n, void *work, int32_t *id_p);
