/* train/audit/reads.h - the first token in which the data of two runs differ, and the first step
 * that has read such a token. */
#ifndef LKS_TRAIN_AUDIT_READS_H
#define LKS_TRAIN_AUDIT_READS_H

#include <jansson.h>

#include "report/diff/history.h"
#include "settings/settings.h"

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

#endif
