/* ddp/verify.h - checks that the parameters are the same on all ranks. */
#pragma once

#include "base/status.h"
#include "lockstep/comm.h"
#include "model/table/table.h"

typedef struct lks__named_floats {
    const char *name;
    const float *at;
    size_t count;
} lks__named_floats;

/* Rank 0 broadcasts its values and every rank compares its own: ERR_DIVERGED, on all ranks, names
 * the first rank, tensor and index that differ. All ranks give the same counts. Collective.
 * (PyTorch's DDP compares shapes at construction and overwrites the values; here a difference is a
 * failure.) */
lks_status lks__named_floats_verify(lks_comm *comm, const lks__named_floats *values, size_t n);

/* lks__named_floats_verify() for the tensors of a table, in its arena `params`. */
lks_status lks__params_verify(lks_comm *comm, const lks__table *table, const float *params);
