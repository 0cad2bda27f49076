/* report/view/compare.h - runs side by side: settings that differ, losses at equal steps and at
 * equal times, speed, and whether a difference over seeds is more than chance. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "report/view/series.h"

/* The value that is compared over seeds. */
typedef enum lks__compare_metric {
    LKS__COMPARE_VAL_LOSS, /* the last one, or if a run has no evaluation, the last training loss
                              of all runs */
    LKS__COMPARE_VAL_BPB,
    LKS__COMPARE_ARTIFACT_LOSS, /* of golf's artifact at the end */
    LKS__COMPARE_ARTIFACT_BPB,
} lks__compare_metric;

typedef struct lks__compare_how {
    lks__compare_metric metric;
    bool one_sided; /* test if the later group's mean is lower by more than `margin` */
    double margin;
    double alpha; /* a smaller p is more than chance */
} lks__compare_how;

/* Compare runs: one object (docs/guides/watch.md), which the caller frees. ERR_NOMEM; ERR_CONFIG if
 * no run has the metric. */
lks_status lks__compare(const lks__series *runs, size_t n, const lks__compare_how *how,
                        json_t **report_p);

/* The settings that differ: an array of {"setting": name, "values": [one text per run]}, which the
 * caller frees. NULL if out of memory. */
json_t *lks__compare_settings(const lks__series *runs, size_t n);

typedef enum lks__compare_form {
    LKS__COMPARE_TEXT,
    LKS__COMPARE_MARKDOWN,
    LKS__COMPARE_CSV, /* table,row,run,value */
} lks__compare_form;

/* Tables in text have lines of at most `columns`, unless a name and one run need more. ERR_NOMEM.
 */
lks_status lks__compare_print(FILE *out, const json_t *report, lks__compare_form form, int columns);
