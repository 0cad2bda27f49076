/* train/batch.h - from token files to the arrays of a micro-batch. */
#ifndef LKS_TRAIN_BATCH_H
#define LKS_TRAIN_BATCH_H

#include "data/tokens.h"

/* Read B samples: tokens[b*T + i] = data[offsets[b] + i], targets one token further. `tokens` has
 * room for B*T + 1 (each sample is one read of T + 1). */
lks_status lks__batch_read(const lks__tokens *data, const uint64_t *offsets, size_t B, size_t T,
                           int32_t *tokens, int32_t *targets);

#endif
