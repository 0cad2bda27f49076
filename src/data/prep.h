/* data/prep.h - text to token files: `lockstep prep char`. */
#ifndef LKS_DATA_PREP_H
#define LKS_DATA_PREP_H

#include <stdint.h>

#include "base/status.h"

typedef struct lks__prep_result {
    uint32_t vocab_size;
    uint64_t n_train, n_val;
} lks__prep_result;

/* Character tokens (design section 7): valid UTF-8 (ERR_FORMAT with the offset), CRLF and CR read
 * as LF, ids in code-point order, train = the first int(n * (1 - val_fraction)), computed as
 * int(n * 0.9) for val_fraction 0.1, as nanoGPT's prepare.py has it. Writes train.bin, val.bin
 * (uint16) and meta.json into `out_dir` (made where missing): all three are complete on the disk
 * before the first takes its name, and after a failure the folder is as it was.
 * More than 65,536 different characters, an empty text, a split left empty: ERR_FORMAT.
 * `val_fraction` outside (0, 1): ERR_CONFIG. */
lks_status lks__prep_char(const char *input, const char *out_dir, double val_fraction,
                          lks__prep_result *result);

#endif
