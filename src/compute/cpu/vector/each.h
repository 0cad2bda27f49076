/* compute/cpu/vector/each.h - loops of kernels that compute each element from those at its place.
 * `f` is a constant, so that it becomes part of the loop. */
#pragma once

#include "compute/cpu/vector/vec.h"

#define EACH_INLINE static inline __attribute__((always_inline))

/* y = f(x); y may be x. */
EACH_INLINE void each(float *y, const float *x, size_t n, vf (*f)(vf))
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, f(v_load(x + i)));
    if (i < n) {
        const vmask mask = v_mask(n - i);
        v_store_mask(y + i, mask, f(v_load_mask(x + i, mask)));
    }
}

/* y = f(a, b); y may be a or b. */
EACH_INLINE void each_pair(float *y, const float *a, const float *b, size_t n, vf (*f)(vf, vf))
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, f(v_load(a + i), v_load(b + i)));
    if (i < n) {
        const vmask mask = v_mask(n - i);
        v_store_mask(y + i, mask, f(v_load_mask(a + i, mask), v_load_mask(b + i, mask)));
    }
}

#undef EACH_INLINE
