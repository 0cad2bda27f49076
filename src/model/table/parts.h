/* model/table/parts.h - comma-separated lists of parts of tensors' names, as in parameter-golf's
 * script: "attn_scale,q_gain". Empty parts are ignored. */
#pragma once

#include <stdbool.h>

#include "model/table/table.h"

/* True if `name` contains one of the parts. */
bool lks__parts_match(const char *parts, const char *name);

/* The next part, from *parts on, that no tensor's name contains and that isn't a part of `known`.
 * *n_p is its length, and *parts moves past it. NULL: there are no more. */
const char *lks__parts_unused(const char **parts, const lks__table *table, const char *known,
                              size_t *n_p);
