/* report/view/seeds.h - groups of runs that differ only in the seed, and whether the difference
 * between two groups is more than chance. */
#pragma once

#include "report/view/compare.h"

typedef struct lks__compared {
    const lks__series *runs;
    size_t n;
    bool evals; /* validation losses are compared: all runs have them. Else training losses */
    const lks__compare_how *how;
} lks__compared;

/* ERR_CONFIG if no run has the metric, because it was probably misspelt or the runs aren't done. */
lks_status lks__seeds_check(const lks__compared *c);

/* Add "seeds", "left_out", "tests", "margin" and "alpha" to `report`, which has "settings". */
lks_status lks__seeds_add(const lks__compared *c, json_t *report);

/* Two-sided p of Student's t with `df` degrees of freedom (any positive number). */
double lks__t_test_p(double t, double df);
