/* ddp/memory/exchange.h - exchanges gradients and parameters from device to device
 * (compute/exchange.h), as in ZeRO-1: each rank sums and updates its own blocks of every bucket,
 * and then sends their parameters to all. The bits are those of the group's reduction (comm.h).
 *
 * All of it is put on the copy queue, in the same order on all ranks. */
#pragma once

#include "compute/exchange.h"
#include "ddp/buckets.h"

typedef struct lks__ddp_exchange lks__ddp_exchange;

typedef struct lks__ddp_exchange_config {
    int V, W, rank;
    float scale;         /* factor of the sum */
    const int *owners;   /* as in lks__reducer_config; only read during open */
    float *const *arena; /* [nodes that this rank has after its last leaf] */
    const lks__buckets *buckets;
} lks__ddp_exchange_config;

/* `device` has joined; it and `table` outlive the exchange. ERR_NOMEM, ERR_DEVICE. */
lks_status lks__ddp_exchange_open(const lks__ddp_exchange_config *config, const lks__table *table,
                                  lks__device *device, lks__ddp_exchange **x_p);
/* Bytes of device memory that an exchange needs; `config` needs no arenas. ERR_NOMEM. */
lks_status lks__ddp_exchange_bytes(const lks__ddp_exchange_config *config, const lks__table *table,
                                   double *bytes_p);
void lks__ddp_exchange_close(lks__ddp_exchange *x); /* with nothing queued; NULL does nothing */

/* Bucket b of this rank's nodes is complete on the compute queue: send its blocks to their owners,
 * which sum them into arena[0]. */
void lks__ddp_exchange_start(lks__ddp_exchange *x, int b);

/* Call it when all buckets have been started: waits for the squares of all blocks, and therefore
 * for the sums. */
lks_status lks__ddp_exchange_finish(lks__ddp_exchange *x);
double lks__ddp_exchange_squares(const lks__ddp_exchange *x, size_t block); /* after finish() */

/* Put on the copy queue: send the owners' blocks of `arena`, device memory with the table's
 * offsets, to all ranks. */
void lks__ddp_exchange_spread(lks__ddp_exchange *x, float *arena);
