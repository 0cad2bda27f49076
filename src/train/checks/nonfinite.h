/* train/checks/nonfinite.h - a loss or gradient that isn't finite: all ranks together find the
 * cause and follow --on_nan. */
#pragma once

#include "train/result.h"
#include "train/trainer.h"

/* Set r->outcome: DONE if all losses and the norm are finite. Otherwise find the first micro-batch,
 * in the order of virtual ranks, that isn't: each rank computes its own again. Parameters stay
 * unchanged. With on_nan=stop, or at the limit, ERR_NAN names the place on all ranks. Collective.
 */
lks_status lks__nonfinite_check(lks__trainer *t, lks__step_result *r);

/* "the loss of micro-batch 1 of virtual rank 3 (rank 1) is nan; …" */
void lks__nonfinite_text(const lks__trainer *t, const lks__step_result *r, char text[320]);
