/* tools/train/prep.h - `lockstep prep` for other commands. */
#ifndef LKS_TOOLS_TRAIN_PREP_H
#define LKS_TOOLS_TRAIN_PREP_H

#include "data/prep/prep.h"

/* Prepare `input` in `out` with the defaults and the progress line of `lockstep prep KIND`; with a
 * `tokenizer` (else ""), a tenth of the text is for validation. Notes begin with "lockstep
 * COMMAND".
 */
lks_status prep_text(const char *command, const char *kind, const char *input,
                     const char *tokenizer, const char *out, lks__prep_result *result);

#endif
