/* tests/kernels/guard.h - buffers that detect any access outside them.
 *
 * A buffer has pages of its own between two inaccessible ones, and the unused bytes in its pages
 * hold canaries. */
#pragma once

#include <stddef.h>

typedef enum guard_place {
    GUARD_START, /* begins at a page's start: access one element before it is a fault; 64-byte
                    aligned */
    GUARD_SHIFT, /* begins 4 bytes later: aligned for a float and no more */
    GUARD_END,   /* ends at a page's end: access one element after it is a fault; odd sizes are
                    unaligned */
    GUARD_PLACES,
} guard_place;

/* A guarded copy of x[n]; valid until guard_release(). */
float *guard_copy(const float *x, size_t n, guard_place place);

/* Fail the test if a canary has changed; then release all buffers. */
void guard_release(void);

/* n values in [-1, 1) * scale from a fixed generator; each `seed` gives other values. */
void fill_random(float *x, size_t n, float scale, unsigned seed);
