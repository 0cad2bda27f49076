/* train/audit/diff.h - the parts of `lockstep diff` that open a run's data or execute its steps:
 * the first token in which the data of two runs differ, and the first step that has read such a
 * token; the place in a step where the runs part; the command that makes them equal. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "report/diff/history.h"
#include "settings/settings.h"

/* --- reads.c ---------------------------------------------------------------------------------- */

/* If the report of lks__diff() on two runs says that their data differ, read both datasets,
 * and compute from the samplers which steps read the tokens that differ. Adds
 *
 *     "data": {"unknown": why the data can't be compared, "splits": [{"split": "train" or "val",
 *         "files": [path, path], "offsets": [bytes, bytes], "token": position, "ids": [a, b],
 *         "different": number of tokens, "tokens": [in A, in B], "read": [{"step": the first
 *         that reads such a token, "virtual_rank": …, "micro_batch": …, "token": its position,
 *         "ids": [a, b]}, or null for each side], "unread_why": [why this isn't
 *         known, or null for each side]}]}
 *
 * If no step has read one, and all evaluations are equal, the data's rows move from
 * "can_change_bits" to "changes_no_bit", otherwise to "changes_evaluations". Nothing is executed.
 * s->dataset has the data of each run whose own folder is gone. */
lks_status lks__reads_diff(lks__history both[2], const lks__settings *s, json_t *report);

/* Open the data of both[k]. An error says why they aren't available here. */
lks_status lks__reads_check(lks__history both[2], int k, const lks__settings *s);

/* --- place.c ---------------------------------------------------------------------------------- */

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

/* --- remedy.c --------------------------------------------------------------------------------- */

/* If settings or data explain the difference between two runs, add to lks__diff()'s report
 *
 *     "remedy": {"run": "a" or "b", "resumed": the iteration from which this run continues as the
 *         other run, or null if it begins again in another folder, "command": [words]},
 *     or {"why_not": the data that a command needs aren't available}
 *
 * Call it after lks__place_diff(). ERR_NOMEM. */
lks_status lks__remedy_add(lks__history both[2], const lks__settings *asked, json_t *report);
