/* Checkpoints of a small made-up model: everything in one is a function of (iter, variant). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "files/checkpoint/ckpt.h"

lks_status save_content(const char *out, uint64_t iter, int variant, int keep);
lks_status save_best(const char *out, uint64_t iter, int variant,
                     int keep); /* and it is the best */

/* Is the opened checkpoint exactly (iter, variant), byte for byte? */
bool has_content(lks__ckpt *ckpt, uint64_t iter, int variant);

/* Open OUT with the optimizer, compare, close. False also if it doesn't open. */
bool opens_as(const char *out, uint64_t iter, int variant);
