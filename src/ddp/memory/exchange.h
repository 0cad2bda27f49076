/* ddp/memory/exchange.h - gradients and parameters that go from device to device
 * (compute/exchange.h), as in ZeRO-1: each rank sums and updates its own blocks of every bucket,
 * and then sends their parameters to all. The bits are those of the group's reduction (comm.h).
 *
 * All of it is put on the copy queue, in the same order on all ranks. */
#ifndef LKS_DDP_MEMORY_EXCHANGE_H
#define LKS_DDP_MEMORY_EXCHANGE_H

#include "compute/exchange.h"
#include "ddp/buckets.h"

typedef struct lks__ddp_exchange lks__ddp_exchange;

typedef struct lks__ddp_exchange_config {
    int V, W, rank;
    float scale;         /* of the sum */
    const int *owners;   /* as in lks__ddp_config; read while it is opened */
    float *const *arena; /* [as many as this rank has nodes after its last leaf] */
    const lks__buckets *buckets;
} lks__ddp_exchange_config;

/* `device` has joined; it and `table` outlive the exchange. ERR_NOMEM, ERR_DEVICE. */
lks_status lks__ddp_exchange_open(const lks__ddp_exchange_config *config, const lks__table *table,
                                  lks__device *device, lks__ddp_exchange **x_p);
/* Bytes of the device's memory that it takes; `config` needs no arenas. ERR_NOMEM. */
lks_status lks__ddp_exchange_bytes(const lks__ddp_exchange_config *config, const lks__table *table,
                                   double *bytes_p);
void lks__ddp_exchange_close(lks__ddp_exchange *x); /* nothing is queued; NULL does nothing */

/* Bucket b of this rank's nodes is complete on the compute queue: its blocks travel to their
 * owners, which sum them into arena[0]. */
void lks__ddp_exchange_start(lks__ddp_exchange *x, int b);

/* When all buckets have been started: wait for the squares of all blocks, and so for the sums. */
lks_status lks__ddp_exchange_finish(lks__ddp_exchange *x);
double lks__ddp_exchange_squares(const lks__ddp_exchange *x, size_t block); /* after that */

/* Put on the copy queue: the owners' blocks of `arena`, memory of the device with the table's
 * places, go to all ranks. */
void lks__ddp_exchange_spread(lks__ddp_exchange *x, float *arena);

#endif
