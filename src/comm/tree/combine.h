/* comm/tree/combine.h - combines several arrays of one type element by element (sum, mean, product,
 * minimum or maximum), in the order of a plan (tree.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/cpu/exec.h"
#include "lockstep/comm.h"

struct lks__combine {
    lks_dtype dtype; /* a type that lks__can_combine() allows */
    lks_op op;
    const void *const *parts; /* [n_parts] each with the same count, aligned as its type */
    const uint8_t *merges;    /* [n_parts] from lks__tree_plan() */
    int n_parts;              /* >= 1 */
    void *dst;                /* out; may be parts[0] */
    const lks__exec *exec;    /* its kernel adds floats */
    /* Partial results have the type lks__partial_type(), and means aren't divided yet. */
    bool parts_are_partial, dst_is_partial;
    int mean_of; /* number of ranks, for LKS_MEAN */
};

bool lks__can_combine(lks_dtype dtype, lks_op op);
const char *lks__op_name(lks_op op); /* "sum", "min" and so on; "no operation" for others */
/* float32 for 16-bit floats, so that only the final result is rounded; else `dtype`. */
lks_dtype lks__partial_type(lks_dtype dtype);

/* Compute elements [first, first + n) of dst. The way a range is divided doesn't change an
 * element's bits. */
void lks__combine_range(const struct lks__combine *c, size_t first, size_t n);
