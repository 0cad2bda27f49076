/* tests/kernels/guard.h - buffers that show any access outside them.
 *
 * A buffer stands in pages of its own between two that can't be touched, and the bytes left over
 * in its pages hold canaries. */
#ifndef LKS_TESTS_KERNELS_GUARD_H
#define LKS_TESTS_KERNELS_GUARD_H

#include <stddef.h>

typedef enum guard_place {
    GUARD_START, /* begins at a page's start: one element before is a fault; 64-byte aligned */
    GUARD_SHIFT, /* begins 4 bytes further: aligned for a float and no more */
    GUARD_END,   /* ends at a page's end: one element behind is a fault; odd sizes are unaligned */
    GUARD_PLACES,
} guard_place;

/* A guarded copy of x[n]; lives until guard_release(). */
float *guard_copy(const float *x, size_t n, guard_place place);

/* Fail the test where a canary has changed; then release all buffers. */
void guard_release(void);

/* n values in [-1, 1) * scale from a fixed generator; another `seed`, others. */
void fill_random(float *x, size_t n, float scale, unsigned seed);

#endif
