/* model/batch.h - a micro-batch in memory of the device.
 *
 * The host reads the next micro-batch while the device computes with the current one. So there are
 * two slots in turn, or one if the device's memory is the host's. */
#pragma once

#include "compute/mirror.h"
#include "model/model.h"

/* Memory for one micro-batch. */
struct lks__batch_slot {
    lks__mirror tokens, targets;
    lks__mark used; /* recorded after the last work that reads the slot */
    lks__mark sent; /* recorded after the slot's last upload */
};

typedef struct lks__batch {
    lks__device *device;
    struct lks__batch_slot slots[2];
    int n_slots, at;
} lks__batch;

/* Allocate room for `most` tokens. ERR_NOMEM; close it in any case. */
lks_status lks__batch_open(lks__device *device, size_t most, lks__batch *b);
/* Bytes of device memory that lks__batch_open() allocates. */
size_t lks__batch_bytes(const lks__device *device, size_t most);
void lks__batch_close(lks__batch *b); /* a zeroed one does nothing */

/* The host's memory for the next micro-batch: tokens[most + 1], the last of which is not sent, and
 * targets[most]. Waits until the device has read the memory's previous contents. */
lks_status lks__batch_next(lks__batch *b, int32_t **tokens_p, int32_t **targets_p);

/* Send the tokens that were written there, B sequences of T tokens, to the device. Layer operations
 * may use the micro-batch if they are called before the next lks__batch_next(). */
lks__micro_batch lks__batch_send(lks__batch *b, int B, int T);
