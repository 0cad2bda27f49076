/* plan/bytes/needs.h - the memory that a run needs, by kind, computed before it starts. All sizes
 * come from the functions with which the run itself allocates. */
#pragma once

#include "compute/device.h"
#include "model/table/table.h"
#include "settings/settings.h"

/* Hosts with the same number of ranks each. */
typedef struct lks__place {
    int n_hosts, local;
} lks__place;

static inline int lks__place_world(const lks__place *p)
{
    return p->n_hosts * p->local;
}

/* Nodes of the tree of V virtual ranks that a host sends, when it has added all it can. */
int lks__place_nodes(const lks__place *p, int V, int host);

/* The memory of a rank before it opens a model: threads, their stacks and scratch, kernels. */
typedef struct lks__process {
    double own;       /* bytes per rank */
    double libraries; /* pages of programs and libraries, which all ranks of a host share */
} lks__process;

/* Bytes of the separate memory of a device, for the rank that needs most. For other devices all are
 * 0. */
typedef struct lks__device_needs {
    double params, moments, gradients, activations;
    double work;     /* that its operations allocate for themselves */
    double exchange; /* for gradients from other devices */
    double buffers;  /* for micro-batches, losses and hashes */
    double samples;  /* as below */
    double opened;   /* used by an open device before all that; an estimate */
    double total;
} lks__device_needs;

/* Bytes. Upper limits for every host; which host reaches them depends only on uneven ranks. */
typedef struct lks__needs {
    lks__place place;
    size_t n_params, n_tensors;
    int n_arenas; /* of gradients, per rank */
    int replicas; /* of parameters and moments, per host */
    /* of a replica; ZeRO-1 divides its moments over hosts */
    double params, moments;
    /* per rank; staging: of `stagers`. activations: of the host or of the rank's device; host_bytes
     * excludes them if the device's memory is separate */
    double gradients, staging, activations, process;
    int stagers; /* ranks per host with a staging buffer */
    lks__device_needs device;
    /* The part of the gradients of the first host's ranks that is reserved but never touched: ranks
     * with fewer virtual ranks than others may need fewer arenas. */
    double untouched;
    double libraries;  /* per host */
    double control;    /* per host: descriptors and buffers in shared memory */
    double inter_host; /* of a host's first rank: gradients that arrive from other hosts */
    double samples;    /* of the first rank: memory for drawing the texts of sample_tokens */
    double checkpoint; /* added on the first host while it gathers a checkpoint's moments */
    double rank_bytes; /* a rank's part of host_bytes */
    double host_bytes;
} lks__needs;

/* `s` has been checked for the place's number of ranks. The device need not be open
 * (lks__session_describe()). */
lks_status lks__needs_on(const lks__device *device, const lks__settings *s, uint32_t vocab_size,
                         const lks__place *place, const lks__process *process, lks__needs *needs);
/* The same for the device that `s` names. */
lks_status lks__needs_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                           const lks__process *process, lks__needs *needs);

/* True if the passes use a device with separate memory; otherwise they use the host's. */
bool lks__needs_has_device(const lks__needs *needs);

/* Bytes that `ranks` ranks together allocate on one device that they share, after opening it. */
double lks__needs_of_device(const lks__needs *needs, int ranks);

/* Bytes per trained parameter on the first host, with all ranks' gradients. The usual count is
 * 16. */
double lks__needs_per_parameter(const lks__needs *needs);
