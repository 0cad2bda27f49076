/* train/audit/points.h - iterations from which steps of a run can be executed: the seed and the
 * checkpoints. */
#pragma once

#include "report/diff/claims.h"

typedef struct lks__points {
    uint64_t *at; /* [n] in order */
    size_t n;
} lks__points;

/* True if the run began with new weights, which its seed determines. */
bool lks__points_seed(const lks__claims *c);
/* Find the points in the record, but not at its end. Free them after errors, too. */
lks_status lks__points_find(const char *run, const lks__claims *c, lks__points *p);
void lks__points_free(lks__points *p); /* a zeroed one does nothing */

/* The last point up to step `from`. ERR_SUPPORT if there is none. */
lks_status lks__points_before(const lks__points *p, uint64_t from, uint64_t *start_p);

/* "the seed" or "checkpoint 10". Returns `out`. */
enum { LKS__POINT_TEXT = 40 };
const char *lks__point_text(uint64_t point, char out[LKS__POINT_TEXT]);
