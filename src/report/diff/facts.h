/* report/diff/facts.h - the recorded circumstances in which two runs differ: settings, data,
 * machine, program. */
#ifndef LKS_REPORT_DIFF_FACTS_H
#define LKS_REPORT_DIFF_FACTS_H

#include <jansson.h>

#include "report/diff/history.h"

/* Add two arrays to `report`, whose rows are {"name": …, "a": value, "b": value}; a value that a
 * run lacks is null:
 *
 *     "changes_no_bit": ranks, threads, hosts, and in float32 the kernels' level
 *     "can_change_bits": settings, data, versions, device; a row of a setting has "setting": true,
 * and "since_a" or "since_b" if a resume of that run changed the setting, at that iteration */
lks_status lks__facts_add(json_t *report, const lks__history *a, const lks__history *b);

/* Append a row for each member of two objects that differs, except `kind`. */
void lks__facts_members(json_t *rows, const json_t *a, const json_t *b);

#endif
