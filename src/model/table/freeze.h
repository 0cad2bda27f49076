/* model/table/freeze.h - tensors that a run leaves as they are (--freeze): they have no gradient
 * and no moments, and nothing of them travels. */
#ifndef LKS_MODEL_TABLE_FREEZE_H
#define LKS_MODEL_TABLE_FREEZE_H

#include "model/table/table.h"

/* Freeze the tensors whose names contain a match of `pattern`, a POSIX extended regular expression;
 * "": none. The table is laid out again. ERR_CONFIG if the expression is invalid or would be costly
 * to match, and if it matches no tensor or all of them. */
lks_status lks__table_freeze(lks__table *table, const char *pattern);

enum { LKS__FROZEN_TEXT = 96 };

/* For messages: one line for each frozen tensor, and one for all layers that have the same one
 * ("transformer.h.0-3,6.ln_1.weight"). *next is 0 before the first call; false: there are no
 * more. */
bool lks__frozen_next(const lks__table *table, size_t *next, char text[LKS__FROZEN_TEXT]);

#endif
