/* plan/bytes/needs.h - the memory that a run takes, by kind, before it is started. All sizes come
 * from the functions with which the run itself allocates. */
#ifndef LKS_PLAN_BYTES_NEEDS_H
#define LKS_PLAN_BYTES_NEEDS_H

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

/* What a rank takes before it opens a model: threads, their stacks and scratch, kernels. */
typedef struct lks__process {
    double own;       /* bytes of each rank */
    double libraries; /* pages of programs and libraries, which all ranks of a host share */
} lks__process;

/* Bytes of the memory of a device that has its own: of the rank that needs most of it. For other
 * devices all are 0. */
typedef struct lks__device_needs {
    double params, moments, gradients, activations;
    double work;     /* that its operations keep for themselves */
    double exchange; /* for gradients that come from other devices */
    double buffers;  /* for micro-batches, losses and hashes */
    double samples;  /* as below */
    double opened;   /* what an open device has taken before all that; an estimate */
    double total;
} lks__device_needs;

/* Bytes. Every host has at most so much; which one has most depends on uneven ranks alone. */
typedef struct lks__needs {
    lks__place place;
    size_t n_params, trained_params, n_tensors;
    int n_arenas; /* of gradients, on each rank */
    int replicas; /* of parameters and moments, on each host */
    /* of a replica, of which ZeRO-1 divides the moments over hosts */
    double params, moments;
    /* of each rank; staging: of `stagers`; activations: of the host, or of the rank's device, which
     * may be another memory: then host_bytes doesn't have them */
    double gradients, staging, activations, process;
    int stagers; /* ranks of a host with a staging buffer */
    lks__device_needs device;
    /* A part of the gradients of the first host's ranks is reserved, but never touched: ranks with
     * fewer virtual ranks than others may need fewer arenas. */
    double untouched;
    double libraries;  /* of a host */
    double control;    /* of a host: descriptors and buffers in shared memory */
    double inter_host; /* of a host's first rank: gradients that arrive from other hosts */
    double samples;    /* of the first rank: what draws the texts of sample_tokens */
    double checkpoint; /* more on the first host, while it gathers moments for a checkpoint */
    double rank_bytes; /* a rank's part of host_bytes */
    double host_bytes;
} lks__needs;

/* `s` has been checked for the place's number of ranks. The device needs not be open
 * (lks__session_ask()). */
lks_status lks__needs_on(const lks__device *device, const lks__settings *s, uint32_t vocab_size,
                         const lks__place *place, const lks__process *process, lks__needs *needs);
/* The same for the device that `s` names. */
lks_status lks__needs_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                           const lks__process *process, lks__needs *needs);

/* Of a device with its own memory, which has the passes; otherwise the host has them. */
bool lks__needs_has_device(const lks__needs *needs);

/* Bytes that `ranks` ranks allocate together when each has opened the device that all have. */
double lks__needs_of_device(const lks__needs *needs, int ranks);

/* Bytes of a trained parameter on the first host, with all ranks' gradients. The usual count is
 * 16. */
double lks__needs_per_parameter(const lks__needs *needs);

#endif
