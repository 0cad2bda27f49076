#include "train/batch.h"

#include <string.h>

lks_status lks__batch_read(const lks__tokens *data, const uint64_t *offsets, size_t B, size_t T,
                           int32_t *tokens, int32_t *targets)
{
    for (size_t b = 0; b < B; b++) {
        /* Its last element is the first of the next row, which is read again. */
        int32_t *row = tokens + b * T;
        LKS__TRY(lks__tokens_read(data, offsets[b], T + 1, row));
        memcpy(targets + b * T, row + 1, T * sizeof *row);
    }
    return LKS_OK;
}
