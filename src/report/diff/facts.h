/* report/diff/facts.h - the recorded circumstances in which two runs differ: settings, data,
 * machine, program. */
#pragma once

#include <jansson.h>

#include "report/diff/history.h"

/* Add rows to three arrays of `report`, which are {"name": …, "a": value, "b": value}; a value that
 * a run lacks is null:
 *
 *     "changes_no_bit": threads, hosts, ranks without wire=bfloat16, and in float32 the level of
 *         kernels; settings that change no step, as max_iters
 *
 *     "changes_evaluations": settings that only evaluations use
 *
 *     "can_change_bits": settings, data, versions, device; a row of a setting has "setting": true,
 *         and "since_a" or "since_b" if a resume of that run changed the setting, at that iteration
 */
void lks__facts_add(json_t *report, const lks__history *a, const lks__history *b);

/* True if a member of the config line follows from others, as golf's batch_size from its tokens. */
bool lks__facts_follow(const json_t *settings, const char *key);

bool lks__facts_data(const char *name);     /* true for the name of a row of data */
bool lks__facts_machine(const json_t *row); /* true for a row of the program or the machine */
bool lks__facts_given(const json_t *row);   /* true for a row of a setting or of data */

/* Append a row for each member of two objects that differs, except `kind`. */
void lks__facts_members(json_t *rows, const json_t *a, const json_t *b);
