/* comm/suite.h - tests for every backend, as one program that each rank runs.
 *
 * Ranks are threads or child processes, in which cmocka's assertions can't be used: a check that
 * fails prints itself and makes the rank return false. */
#pragma once

#include <stdbool.h>

#include "lockstep/reduce.h"

/* All collectives with small and large sizes; `thorough` adds the large ones. */
bool suite_collectives(lks_comm *comm, bool thorough);

/* Collectives of every type; sums, minima and maxima of those that can be reduced (types.c). */
bool suite_types(lks_comm *comm);

/* Reduce-scatter, all-gather of different sizes, and every type and operation (scatter.c). */
bool suite_scatter(lks_comm *comm);

/* Reductions in flight over 1 to 16 leaves, divided evenly and unevenly, against a plain sum. */
bool suite_reductions(lks_comm *comm);

/* A reduction `r` of `count` floats in one block, of one leaf per rank, at `own`. */
struct suite_sum {
    void *own;
    size_t start[2];
    lks_part part;
    lks_reduction r;
};
/* Allocate its memory and fill it, except the floats at `own`. */
bool suite_sum(lks_comm *comm, size_t count, struct suite_sum *s);

/* A call that doesn't match the others': all ranks get ERR_ARG with the same text, which contains
 * `a` and `b`, and the group has failed. */
bool suite_mismatch(lks_comm *comm, lks_status st, const char *a, const char *b);

/* The same for calls of two ranks that differ in one argument each; NULL behind the last. */
extern bool (*const suite_others[])(lks_comm *comm);
/* The same for calls in which the second half of the ranks differs from the first. */
extern bool (*const suite_halves[])(lks_comm *comm);

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            suite_failed(comm, __FILE__, __LINE__, #cond);                                         \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

void suite_failed(lks_comm *comm, const char *file, int line, const char *what);

/* The sum of `n` values by the definition: neighbours are added, a last one without neighbour moves
 * up. Destroys `v`. */
float suite_tree_sum(float *v, int n);
