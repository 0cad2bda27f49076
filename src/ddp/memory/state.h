/* ddp/memory/state.h - a rank's memory, as its modes (mode.h) and users (memory.h) see it. */
#pragma once

#include "compute/mirror.h"
#include "ddp/buckets.h"
#include "ddp/nodes.h"
#include "lockstep/reduce.h"
#include "model/optim/optimizer.h"

struct lks__memory_mode;

enum { LKS__MEMORY_PIECE = 1 << 20 };

typedef struct lks__memory_config {
    int V;       /* virtual ranks: the leaves of the sum */
    float scale; /* factor of the sum */
    lks_wire wire;
    bool zero;         /* each host updates only its share of every bucket */
    const int *owners; /* as in lks__reducer_config; only read during open */
    const lks__buckets *buckets;
    lks__tree_nodes nodes; /* this rank's nodes after its last leaf */
    int n_arenas, n_nodes; /* largest numbers of gradient arenas and of nodes on any rank */
} lks__memory_config;

/* The optimizer's moments in one state. */
typedef struct lks__moments {
    float *host; /* an arena of the table */
    float *dev;  /* at the pieces' offsets; the same memory as `host` in mode `host` */
    size_t dev_bytes;
} lks__moments;

typedef struct lks__memory {
    const struct lks__memory_mode *mode;
    lks__memory_config config;
    lks_comm *comm;
    const lks__table *table;
    lks__device *device;

    /* Gradients. arena[n_arenas] is device memory. sent[] is memory of the group: the arenas
     * themselves, or buffers for copies of this rank's nodes. */
    float *arena[LKS__MAX_ARENAS], *sent[LKS__MAX_ARENAS];
    struct lks__under_way *under_way; /* [buckets->n] */
    int n_started;                    /* number of buckets whose reduction has started */
    double *block_sumsq;              /* shared by all ranks of the host */
    struct lks__ddp_exchange *exchange;

    /* The replica. Unused if the memory is only for gradients. */
    bool shared;        /* one replica for all ranks of the host */
    lks__mirror params; /* an arena of the table */
    lks__moments moments[LKS__OPTIM_STATES];
    const lks__optim *optim; /* the blocks that this rank updates */
    lks__mirror piece;       /* for hashes of the device's memory */
} lks__memory;

/* This rank's part [*first, *end) of n blocks, for work that is divided over the ranks that share
 * one replica. */
static inline void lks__memory_part(const lks__memory *m, size_t n, size_t *first, size_t *end)
{
    const lks_world *w = lks_comm_world(m->comm);
    lks__local_part(0, n, m->shared ? w->local_rank : 0, m->shared ? w->local_world_size : 1, first,
                    end);
}
