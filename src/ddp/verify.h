/* ddp/verify.h - are the parameters the same on all ranks? */
#ifndef LKS_DDP_VERIFY_H
#define LKS_DDP_VERIFY_H

#include "base/status.h"
#include "lockstep/comm.h"
#include "model/table.h"

/* Rank 0 broadcasts its parameters and every rank compares its own: ERR_DIVERGED, on all ranks,
 * names the first rank, tensor and index that differ. Collective. (DDP compares shapes at
 * construction and broadcasts over the values; here a difference is a failure.) */
lks_status lks__ddp_verify(lks_comm *comm, const lks__table *table, const float *params);

#endif
