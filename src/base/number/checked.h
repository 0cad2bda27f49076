/* base/number/checked.h - arithmetic on sizes from outside. If the result doesn't fit, each
 * function returns false and leaves the output unchanged. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool lks__add(uint64_t a, uint64_t b, uint64_t *sum_p)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *sum_p = r;
    return true;
}

static inline bool lks__mul(uint64_t a, uint64_t b, uint64_t *product_p)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *product_p = r;
    return true;
}

/* Round up to a multiple of `unit` (a power of two). Only for the program's own sizes, far below
 * the limit. */
static inline size_t lks__round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

static inline size_t lks__min(size_t a, size_t b)
{
    return a < b ? a : b;
}
