/* ddp/memory/memory.h - where a run's gradients, parameters and moments are, and how they travel
 * between ranks, the host and the device. There are three modes, one per file (mode.h):
 *
 *           device's memory     gradients                      updated parameters
 *   host    is the host's       ranks add them in place        are where all ranks read them
 *   staged  is its own          copies, which the ranks of     this rank's to the host, and from
 *                               a host add in its memory       there everybody's to each device
 *   joined  is its own          from device to device          from device to device
 *
 * Parameters and moments on the host are in memory of the group: one replica for all ranks of a
 * host, or one for each rank (--replicas). Checkpoints, hashes and other hosts use that one. A
 * device with its own memory has a replica of the parameters, and the moments of this rank's pieces
 * alone; these moments reach the host only for a checkpoint. With `zero` a host keeps and updates
 * only its share of each bucket's moments, as in ZeRO-1: a property of host and staged. */
#ifndef LKS_DDP_MEMORY_MEMORY_H
#define LKS_DDP_MEMORY_MEMORY_H

#include "compute/mirror.h"
#include "ddp/buckets.h"
#include "ddp/nodes.h"
#include "lockstep/comm.h"
#include "model/optim/optimizer.h"

struct lks__memory_mode;

typedef struct lks__memory_config {
    int V;             /* leaves of the sum: virtual ranks */
    float scale;       /* of the sum */
    int wire;          /* LKS_WIRE_... */
    bool zero;         /* each host updates only its share of every bucket */
    const int *owners; /* as in lks__ddp_config; read while it is opened */
    const lks__buckets *buckets;
    lks__nodes nodes;      /* this rank's, after its last leaf */
    int n_arenas, n_nodes; /* of gradients; of the rank that has most of each */
} lks__memory_config;

/* What the optimizer keeps, in one state. */
typedef struct lks__moments {
    float *host; /* an arena of the table */
    float *dev;  /* where the optimizer's pieces say; the same memory in the mode `host` */
    size_t dev_bytes;
} lks__moments;

typedef struct lks__memory {
    const struct lks__memory_mode *mode;
    lks__memory_config config;
    lks_comm *comm;
    const lks__table *table;
    lks__device *device;

    /* Gradients. arena[n_arenas] is memory of the device. sent[] is memory of the group: the arenas
     * themselves, or buffers for copies of this rank's nodes. */
    float *arena[LKS__MAX_ARENAS], *sent[LKS__MAX_ARENAS];
    struct lks__under_way *under_way; /* [buckets->n] */
    int n_started;                    /* buckets whose reduction has started */
    double *block_sumsq;              /* shared by all ranks of the host */
    struct lks__ddp_exchange *exchange;

    /* The replica; not in a memory for gradients alone. */
    bool shared;        /* one for all ranks of the host */
    lks__mirror params; /* an arena of the table */
    lks__moments moments[LKS__OPTIM_STATES];
    const lks__optim *optim; /* what this rank updates */
    lks__mirror piece;       /* for hashes of the device's memory */
} lks__memory;

/* --- opening --------------------------------------------------------------------------------- */

/* The mode of an open device. */
const struct lks__memory_mode *lks__memory_mode_of(const lks__device *device);
/* The mode that a run would have. `may_join`: its settings let devices exchange gradients, and the
 * module for that is taken to be there. */
const struct lks__memory_mode *lks__memory_mode_planned(const lks__device *device, bool may_join);

/* How an update is divided: `parts` parts of the trained blocks or of each bucket, and each of them
 * over `local` ranks. Tensors that are updated as a whole are divided over `whole` ranks. */
typedef struct lks__division {
    int parts, local, whole;
    bool in_buckets;
} lks__division;

lks__division lks__memory_division(const struct lks__memory_mode *mode, bool shared, bool zero,
                                   int n_hosts, int local);

/* Collective. Opens arenas for gradients. Borrows all but `owners`. ERR_NOMEM. */
lks_status lks__memory_open(const lks__memory_config *config, lks_comm *comm,
                            const lks__table *table, lks__device *device, lks__memory *m);
/* Collective. Parameters on both sides, and the host's arenas of moments, for `optimizer`. */
lks_status lks__memory_open_replica(lks__memory *m, const lks__optimizer *optimizer, bool shared);
/* Open `optim` for the blocks that this rank updates (`lent`: as in lks__optim_open()), and its
 * moments on the device. `optim` is closed by the caller, after all updates. ERR_NOMEM. */
lks_status lks__memory_open_optimizer(lks__memory *m, const lks__optimizer *optimizer, void *lent,
                                      size_t lent_bytes, lks__optim *optim);
/* Waits for the device. Reductions in flight complete without this rank (lks__ddp_close()). A
 * zeroed one does nothing. */
void lks__memory_close(lks__memory *m);

/* --- gradients of a step, for ddp.c ---------------------------------------------------------- */

void lks__memory_begin(lks__memory *m);
/* Bucket `b` of this rank's nodes is complete on the compute queue. */
void lks__memory_ready(lks__memory *m, int b);
/* Start the reductions of those of the first `n_ready` buckets that the group can read by now;
 * `wait`: of all of them. */
lks_status lks__memory_progress(lks__memory *m, int n_ready, bool wait);
/* Start all others, whatever is in them. */
lks_status lks__memory_start_rest(lks__memory *m);
/* Wait for all sums. *grads_p: the whole gradient in host memory, or NULL if each device has its
 * rank's part, in arena[0]. */
lks_status lks__memory_sum(lks__memory *m, const float **grads_p);
/* After that: the sum of a block's squares. */
double lks__memory_squares(const lks__memory *m, size_t block);
/* All ranks have read the gradient, so its memory may be written again. Collective. */
lks_status lks__memory_release(lks__memory *m);

/* --- an update ------------------------------------------------------------------------------- */

/* The gradient as memory of the device, complete for this rank's pieces. */
const float *lks__memory_begin_update(lks__memory *m, const float *grads);
/* The update is on the compute queue. On return its parameters are on the host, or on their way to
 * all devices. */
lks_status lks__memory_end_update(lks__memory *m);
/* Every rank has made its part: all parameters reach all ranks, and the gradient's memory is free.
 * Collective. */
lks_status lks__memory_publish(lks__memory *m);

/* This rank's part [*first, *end) of n blocks, for work that is divided over the ranks that share
 * one replica. */
void lks__memory_part(const lks__memory *m, size_t n, size_t *first, size_t *end);

/* --- checkpoints and checks ------------------------------------------------------------------ */

/* Bring everything to the host of rank 0. Collective. */
lks_status lks__memory_fetch(lks__memory *m);
/* With `zero`, free this host's copy of other hosts' moments. Call it on one rank of a host. */
void lks__memory_fetched(lks__memory *m);
/* The host's replica is complete (after a barrier). On return all parameters, and with `moments`
 * this rank's pieces of the moments, are on the device. */
lks_status lks__memory_upload(lks__memory *m, bool moments);

/* The whole gradient as memory of the device, from lks__memory_sum()'s. */
const float *lks__memory_whole(lks__memory *m, const float *grads);
/* A hash of `count` floats of the parameters that passes read, from `first` on: XXH3, of a device's
 * own memory in pieces of so many bytes, for which it has memory from the first hash on. */
enum { LKS__MEMORY_PIECE = 1 << 20 };
lks_status lks__memory_hash(lks__memory *m, size_t first, size_t count, uint64_t *hash_p);
/* Do passes of several ranks read the same replica? Then each hashes its part. */
bool lks__memory_is_shared(const lks__memory *m);
/* Does this rank hold a replica on the host of which others have copies? True for every rank with
 * private replicas, and for the first rank of each of several hosts with shared ones. */
bool lks__memory_has_copies(const lks__memory *m);
/* The same for the replica that its passes read. */
bool lks__memory_passes_have_copies(const lks__memory *m);

/* How gradients go from device to device, for people; NULL: there is no such way. `asked`: by name
 * (--exchange=nccl). */
const char *lks__memory_exchange(const lks__memory *m, bool asked);

#endif
