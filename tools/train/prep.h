/* tools/train/prep.h - a preparation by another command than `prep`. */
#ifndef LKS_TOOLS_TRAIN_PREP_H
#define LKS_TOOLS_TRAIN_PREP_H

#include "data/prep/prep.h"

/* Prepare `input` in `out`, with the defaults of `lockstep prep KIND` and its progress; notes begin
 * with "lockstep COMMAND". */
lks_status prep_text(const char *command, const char *kind, const char *input, const char *out,
                     lks__prep_result *result);

#endif
