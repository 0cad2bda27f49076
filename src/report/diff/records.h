/* report/diff/records.h - the first step in which the records of two runs differ. */
#pragma once

#include <jansson.h>

#include "report/diff/history.h"

/* Read two histories side by side up to the first difference or to the end, and add to `report`:
 *
 *     "steps": number of steps that are equal in both, "from": the first iteration,
 *     "steps_a", "steps_b": steps that were read; after the last equal one only to the end of a run
 *         that is longer,
 *     "checkpoints": number of checkpoints with equal hashes, "params_hash": of the last of these,
 *     "first": null, or {"iter": …, "kind": "train", "skip", "rollback" or "checkpoint", "figures":
 *         [{"name": …, "a": …, "b": …, "same": bool}]},
 *     "evaluation": the same for the first evaluation that differs; evaluations don't change steps
 *
 * ERR_CONFIG if the runs have no step in common. */
lks_status lks__records_diff(lks__history *a, lks__history *b, json_t *report);

/* Compare the hashes of gradients in both runs' leaves.bin, up to the step of "first", and add
 *
 *     "gradients": null if no step is in both files, or {"steps": number of steps whose hashes are
 *         equal, "virtual_ranks": …, "last": iteration of the last step that was compared, "first":
 *         null, or {"iter": …, "virtual_rank": …, "different": number of virtual ranks, "a": …,
 *         "b": …}} */
lks_status lks__hashes_diff(const char *a, const char *b, json_t *report);
