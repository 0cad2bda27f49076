/* ddp/memory/memory.h - stores a run's gradients, parameters and moments, and moves them between
 * ranks, the host and the device. There are three modes, one per file (mode.h):
 *
 *           device memory       gradients                      updated parameters
 *   host    is the host's       added in place by the ranks    are where all ranks read them
 *   staged  is separate         copied; the ranks of a host    from this rank to the host, and
 *                               add the copies in its memory   from there all of them to each
 *   joined  is separate         from device to device          from device to device
 *
 * Parameters and moments on the host are in the group's memory: one replica for all ranks of a
 * host, or one per rank (--replicas). Checkpoints, hashes and other hosts use this replica. A
 * device with its own memory has a replica of the parameters, and only the moments of this rank's
 * pieces, which reach the host only for a checkpoint. With `zero` (modes host and staged) a host
 * keeps and updates only its share of each bucket's moments, as in ZeRO-1. */
#pragma once

#include "ddp/memory/state.h"

/* --- opening --------------------------------------------------------------------------------- */

/* The mode of an open device. */
const struct lks__memory_mode *lks__memory_mode_of(const lks__device *device);
/* The mode that a run would use. `may_join`: its settings let devices exchange gradients; the
 * module for that is assumed to be available. */
const struct lks__memory_mode *lks__memory_mode_planned(const lks__device *device, bool may_join);

/* The division of an update: `parts` parts of the trained blocks or of each bucket, each divided
 * over `local` ranks. Tensors that are updated as a whole are divided over `whole` ranks. */
typedef struct lks__division {
    int parts, local, whole;
    bool in_buckets;
} lks__division;

lks__division lks__memory_division(const struct lks__memory_mode *mode, bool shared, bool zero,
                                   int n_hosts, int local);

/* Collective. Opens arenas for gradients. Borrows all arguments except `owners`; the caller holds
 * the group (lks__comm_hold()) until the memory is closed. ERR_NOMEM. */
lks_status lks__memory_open(const lks__memory_config *config, lks_comm *comm,
                            const lks__table *table, lks__device *device, lks__memory *m);
/* Collective. Opens the parameters on host and device, and the host's arenas of moments, for
 * `optimizer`. */
lks_status lks__memory_open_replica(lks__memory *m, const lks__optimizer *optimizer, bool shared);
/* Open `optim` for the blocks that this rank updates (`lent`: as in lks__optim_open()), and its
 * moments on the device. The caller closes `optim` after all updates. ERR_NOMEM. */
lks_status lks__memory_open_optimizer(lks__memory *m, const lks__optimizer *optimizer, void *lent,
                                      size_t lent_bytes, lks__optim *optim);
/* Waits for the device. Reductions in flight complete without this rank (lks__reducer_close()). A
 * zeroed memory does nothing. */
void lks__memory_close(lks__memory *m);

/* --- gradients of a step, for reducer.c ------------------------------------------------------- */

void lks__memory_begin(lks__memory *m);
/* Bucket `b` of this rank's nodes is complete on the compute queue. */
void lks__memory_ready(lks__memory *m, int b);
/* Start the reductions of those of the first `n_ready` buckets that the group can read now; with
 * `wait`: of all of them. */
lks_status lks__memory_progress(lks__memory *m, int n_ready, bool wait);
/* Start the reductions of all other buckets, whatever they contain. */
lks_status lks__memory_start_rest(lks__memory *m);
/* Wait for all sums. *grads_p: the whole gradient in host memory, or NULL if each device has its
 * rank's part, in arena[0]. */
lks_status lks__memory_sum(lks__memory *m, const float **grads_p);
/* The sum of a block's squares. Call it after lks__memory_sum(). */
double lks__memory_squares(const lks__memory *m, size_t block);
/* All ranks have read the gradient, so its memory may be written again. Collective. */
lks_status lks__memory_release(lks__memory *m);

/* --- an update ------------------------------------------------------------------------------- */

/* The gradient in device memory, complete for this rank's pieces. */
const float *lks__memory_begin_update(lks__memory *m, const float *grads);
/* Call it when the update is on the compute queue. On return its parameters are on the host, or on
 * their way to all devices. */
lks_status lks__memory_end_update(lks__memory *m);
/* Call it when every rank has updated its part: all parameters reach all ranks, and the gradient's
 * memory becomes free. Collective. */
lks_status lks__memory_publish(lks__memory *m);

/* --- checkpoints and checks ------------------------------------------------------------------ */

/* Copy parameters and moments to rank 0's host. Collective. */
lks_status lks__memory_fetch(lks__memory *m);
/* With `zero`, free this host's copy of other hosts' moments. Call it on one rank of a host. */
void lks__memory_fetched(lks__memory *m);
/* Call it when the host's replica is complete (after a barrier). On return all parameters, and with
 * `moments` this rank's pieces of the moments, are on the device. */
lks_status lks__memory_upload(lks__memory *m, bool moments);

/* The whole gradient in device memory. `grads` is from lks__memory_sum(). */
const float *lks__memory_whole(lks__memory *m, const float *grads);
/* XXH3 of `count` floats, from `first` on, of the parameters that passes read. A device's own
 * memory is hashed in pieces of LKS__MEMORY_PIECE bytes, with a buffer that is allocated at the
 * first hash. */
lks_status lks__memory_hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p);
/* True if passes use the host's memory. */
bool lks__memory_on_host(const lks__memory *m);
/* True if passes of several ranks read the same replica. Then each rank hashes its part. */
bool lks__memory_is_shared(const lks__memory *m);
/* True if this rank holds a replica on the host of which others have copies: every rank with
 * private replicas, and the first rank of each of several hosts with shared replicas. */
bool lks__memory_has_copies(const lks__memory *m);
/* True if others have copies of the replica that this rank's passes read. */
bool lks__memory_passes_have_copies(const lks__memory *m);

/* Name of the exchange of gradients from device to device, for messages; NULL: none. `asked`: the
 * user chose it by name (--exchange=nccl). */
const char *lks__memory_exchange(const lks__memory *m, bool asked);
