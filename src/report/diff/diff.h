/* report/diff/diff.h - the first difference between two runs, or between two checkpoints. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "report/diff/history.h"

/* Compare two runs' folders, two checkpoints, two files of weights (.safetensors), or two trails.
 * Nothing is executed, and nothing is written. *report_p is one object (docs/guides/diff.md), which
 * the caller frees. `both`: records of runs, read as far as the comparison needed, or zeroed; the
 * caller closes them, also after errors. ERR_CONFIG if the two can't be compared; other errors name
 * a file that can't be read. Call it and the functions below in lks__json_in_memory(). */
lks_status lks__diff(const char *a, const char *b, lks__history both[2], json_t **report_p);

bool lks__diff_same(const json_t *report);
/* True if all steps are equal, and only evaluations differ. */
bool lks__diff_same_steps(const json_t *report);
/* The rows that can explain the difference, which the caller frees. If this program has executed
 * the step and found the difference, the runs' programs and machines don't explain it. */
json_t *lks__diff_causes(const json_t *report);
/* The rows of "state" that are results of evaluations, not causes; the caller frees the array. */
json_t *lks__diff_outcomes(const json_t *report);
/* Print it in two parts, because a step may be executed in between (train/audit/diff.h). The
 * second contains the place in that step, and the cause. */
void lks__diff_print(FILE *out, const json_t *report);
void lks__diff_print_cause(FILE *out, const json_t *report);
