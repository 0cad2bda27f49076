/* lockstep/sampler.h - the samples of a dataset that each rank reads.
 *
 * Matches torch.utils.data.DistributedSampler index by index, its default generator included: an
 * epoch is a permutation of [0, n) drawn by seed + epoch (torch.randperm), padded from its own
 * front (or cut, drop_last) to a multiple of the replicas, and dealt one by one.
 *
 * Use a sampler from one thread at a time. It belongs to no group, so a child of fork() may use its
 * copy. */
#ifndef LOCKSTEP_SAMPLER_H
#define LOCKSTEP_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct lks_sampler lks_sampler; /* opaque; close with lks_sampler_close() */

typedef struct lks_sampler_options {
    uint64_t dataset_size; /* n: 1 .. 2^32 - 1 */
    int replicas;          /* at least 1; use the number of virtual ranks, so that bits don't
                            * depend on the number of ranks */
    bool in_order;         /* no permutation, like DistributedSampler with shuffle=False */
    bool drop_last;        /* cut the samples that don't divide evenly, instead of padding */
    uint64_t seed;         /* DistributedSampler's default is 0 */
} lks_sampler_options;

/* Starts with epoch 0. ERR_ARG if a field is out of range, or if drop_last leaves no sample.
 * ERR_NOMEM: a permutation takes 4 bytes per sample. */
lks_status lks_sampler_open(const lks_sampler_options *options, lks_sampler **sampler_p);
void lks_sampler_close(
    lks_sampler *sampler); /* here and below, NULL is a sampler without samples */

/* Choose the epoch, and therefore the permutation. Without this call every epoch has the
 * permutation of epoch 0, as in DistributedSampler. */
void lks_sampler_set_epoch(lks_sampler *sampler, uint64_t epoch);

uint64_t lks_sampler_count(const lks_sampler *sampler); /* samples per replica in an epoch */
/* The i-th sample of `replica`, both counted from 0. If one is out of range: UINT64_MAX, with the
 * reason in lks_last_error(). */
uint64_t lks_sampler_index(const lks_sampler *sampler, int replica, uint64_t i);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
