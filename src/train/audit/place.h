/* train/audit/place.h - the place in a step where two runs part: `lockstep diff` executes that step
 * of each run again. */
#ifndef LKS_TRAIN_AUDIT_PLACE_H
#define LKS_TRAIN_AUDIT_PLACE_H

#include <jansson.h>
#include <stdio.h>

#include "report/diff/history.h"
#include "settings/settings.h"

/* If the report of lks__diff() on two runs names a step, execute it for each run, from the
 * nearest checkpoint or the seed, and add
 *
 *     "execution": {"step": …, "leaf": the only virtual rank that was computed, or null for all,
 *         "why_not": why it wasn't executed and "begun": true if that was found after the step's
 *         line was printed, or instead
 *         "entries": number of equal results before the first difference, "place": null if all
 *         results are equal, else as in report/diff/trails.h, with the members of a tensor's first
 *         element (report/diff/tensors.h), "false": [{"run": "a" or "b", "claim": a claim of that
 *         run's record that the execution refutes}]}
 *
 * Print the step and the number of steps to `out` before they are executed. At most s->execute
 * steps of each run. Nothing is written. ERR_NOMEM; other errors are the report's "why_not". */
lks_status lks__place_diff(lks__history both[2], const lks__settings *s, FILE *out, json_t *report);

#endif
