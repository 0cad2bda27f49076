/* report/view/compare.h - runs side by side: settings that differ, losses at equal steps and at
 * equal times, speed, and whether a difference over seeds is more than chance. */
#ifndef LKS_REPORT_VIEW_COMPARE_H
#define LKS_REPORT_VIEW_COMPARE_H

#include <jansson.h>
#include <stdio.h>

#include "report/view/series.h"

/* Compare runs: one object (docs/guides/watch.md), which the caller frees. ERR_NOMEM. */
lks_status lks__compare(const lks__series *runs, size_t n, json_t **report_p);

/* The settings that differ: an array of {"setting": name, "values": [one text per run]}, which the
 * caller frees. NULL if out of memory. */
json_t *lks__compare_settings(const lks__series *runs, size_t n);

typedef enum lks__compare_form {
    LKS__COMPARE_TEXT,
    LKS__COMPARE_MARKDOWN,
    LKS__COMPARE_CSV, /* table,row,run,value */
} lks__compare_form;

void lks__compare_print(FILE *out, const json_t *report, lks__compare_form form);

/* Two-sided p of Student's t with `df` degrees of freedom (any positive number). */
double lks__t_test_p(double t, double df);

#endif
