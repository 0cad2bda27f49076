/* model/table/freeze.h - tensors that a run doesn't train (--freeze): they have no gradient and no
 * moments, and are never exchanged. */
#pragma once

#include "model/table/table.h"

/* Freeze the tensors whose names contain a match of `pattern`, a POSIX extended regular expression;
 * "": none. Lays out the table again. ERR_CONFIG if the expression is invalid or would be costly to
 * match, or if it matches no tensor or all of them. */
lks_status lks__table_freeze(lks__table *table, const char *pattern);

/* Freeze all tensors, for a run that only evaluates. */
lks_status lks__table_freeze_all(lks__table *table);

enum { LKS__FROZEN_TEXT = 96 };

/* For messages: one line per frozen tensor, or one for all layers in which it is frozen
 * ("transformer.h.0-3,6.ln_1.weight"). *next is 0 before the first call; false: there are no
 * more. */
bool lks__frozen_next(const lks__table *table, size_t *next, char text[LKS__FROZEN_TEXT]);
