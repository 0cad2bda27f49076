/* model/table/parts.h - lists of parts of tensors' names, between commas, as parameter-golf's
 * script has them: "attn_scale,q_gain". Empty parts count for nothing. */
#ifndef LKS_MODEL_TABLE_PARTS_H
#define LKS_MODEL_TABLE_PARTS_H

#include <stdbool.h>

#include "model/table/table.h"

/* Does `name` contain one of the parts? */
bool lks__parts_match(const char *parts, const char *name);

/* The next part, from *parts on, that no tensor's name contains and that isn't a part of `known`;
 * *n_p is its length, and *parts moves behind it. NULL: there are no more. */
const char *lks__parts_unused(const char **parts, const lks__table *table, const char *known,
                              size_t *n_p);

#endif
