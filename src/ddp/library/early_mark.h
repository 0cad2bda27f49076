/* ddp/library/early_mark.h - finds gradients that a program marks ready before they are complete
 * (they are sent while backward still changes them, so the result depends on the number of ranks),
 * changes after they were added, or doesn't store although nothing zeroes them. Active only if the
 * environment has LOCKSTEP_CHECK=1, since it reads each gradient twice more. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lockstep/ddp.h"

/* *on_p: the environment has LOCKSTEP_CHECK=1. ERR_CONFIG: it has another value than 0 or 1. */
lks_status lks__check_is_on(bool *on_p);

/* Record the gradient of `p`, parameter number `i`, when it is complete; NULL does nothing. */
void lks__early_mark_note(uint64_t *hashes, size_t i, const lks_param *p);
/* Compare the gradient with the recorded one at the end of micro-step `m` (from 0) of virtual rank
 * `v`. ERR_ARG names the parameter. */
lks_status lks__early_mark_compare(uint64_t hash, const lks_param *p, int v, int m);

/* Compare a gradient of the caller's, in lks_ddp_step(), with the one that was recorded when the
 * rank's last micro-step ended. ERR_ARG names the parameter. */
lks_status lks__settled_compare(uint64_t hash, const lks_param *p);

/* For gradients that backward stores, and nothing zeroes. Fill the gradient of `p` with a NaN that
 * no computation gives; find one that is left at the end of virtual rank v's first micro-step.
 * ERR_ARG names parameter and element. */
void lks__unstored_fill(const lks_param *p);
lks_status lks__unstored_find(const lks_param *p, int v);
