/* report/diff/trails.h - trails: files with the results of one step in causal order, so that two
 * machines can compare steps that neither can execute for both (docs/guides/audit.md). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

/* Entries of a trail, in the order in which a step makes them: X(NAME, its "what", its phase). The
 * first entry is the head, the last one the end. */
#define LKS__TRAIL_MAP(X)                                                                          \
    X(HEAD, "trail", "")                                                                           \
    X(WEIGHTS, "weights", "before the step")                                                       \
    X(MOMENTS, "moments", "before the step")                                                       \
    X(TOKENS, "tokens", "data")                                                                    \
    X(TARGETS, "targets", "data")                                                                  \
    X(OUTPUT, "output", "forward")                                                                 \
    X(LOSS, "loss", "forward")                                                                     \
    X(GRADIENT, "gradient", "backward")                                                            \
    X(LEAF, "gradient's hash", "backward")                                                         \
    X(MEAN, "mean gradient", "sum of all gradients")                                               \
    X(NORM, "norm", "sum of all gradients")                                                        \
    X(RATE, "learning rate", "update")                                                             \
    X(NEW_MOMENTS, "updated moments", "update")                                                    \
    X(NEW_WEIGHTS, "updated weights", "update")                                                    \
    X(END, "end", "")

enum lks__trail_what {
#define X(name, what, phase) LKS__TRAIL_##name,
    LKS__TRAIL_MAP(X)
#undef X
};

const char *lks__trail_name(enum lks__trail_what what); /* its "what" */
const char *lks__trail_phase(const char *what);         /* of a "what"; "" if there is none */

bool lks__trail_entry_is(const json_t *entry, enum lks__trail_what what); /* false for NULL */

/* True if both entries are of the same result, such as the output of one module, whatever its
 * values are. */
bool lks__trail_same_result(const json_t *a, const json_t *b);

/* True if the file begins as a trail does. */
bool lks__trail_is(const char *path);

/* Compare two trails of the same step, and add to `report` the rows that lks__facts_add() adds, and
 *
 *     "step": …, "entries": number of equal entries before the first difference,
 *     "place": null, or {"a": entry, "b": entry}; an entry is null where a trail has ended
 *
 * ERR_CONFIG if they are of different steps, or if one is incomplete. */
lks_status lks__trails_diff(const char *a, const char *b, json_t *report);
