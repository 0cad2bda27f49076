/* comm/tree/sum.h - sums parts in the order of a plan, times a factor, in one pass over memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/cpu/exec.h"

struct lks__sum {
    const float *const *parts; /* [n_parts] each [count] */
    const uint8_t *merges;     /* [n_parts] from lks__tree_plan() */
    int n_parts;               /* >= 1 */
    float *dst;                /* [count] out; may be one of the parts */
    bool dst_is_late_part; /* dst is parts[1] or later, so it is written only after all parts have
                              been read */
    float scale;
    lks__sum_scaled_fn *last; /* the kernel of the last addition, which also scales; of any level */
};

/* dst[first, first + n) = scale * (sum of the parts there). The way a range is divided doesn't
 * change an element's bits. With lanes != NULL, lane i % 8 gets the square of dst[first + i]. */
void lks__sum_range(const struct lks__sum *s, size_t first, size_t n, double lanes[8]);
