/* data/read/sampler.h - chooses the tokens of each micro-batch.
 *
 * Every rank computes the offsets of all virtual ranks: this is cheap, and no state has to be sent.
 * An offset is the first token of a sample: sample = tokens[ix, ix + T), with targets one token
 * further. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/read/start.h"

typedef enum lks__batch_sampler_kind {
    /* Uniform with replacement, keyed by (seed, step, v, micro-step). Element b is the high word of
     * draw * (n_tokens - T). Its draw is the (b % 2)-th 64-bit half (high word first) of
     * Philox(seed; step, v << 16 | micro-step, LKS__SITE_DATA_TRAIN, b / 2). In an evaluation:
     * Philox(seed; step, batch, LKS__SITE_DATA_EVAL + split, b / 2). */
    LKS__SAMPLER_RANDOM,
    LKS__SAMPLER_NANOGPT, /* nanoGPT's draws: one MT19937 per virtual rank */
    /* Whole passes: sample i is tokens [iT, iT + T]. lockstep/sampler.h deals them to virtual
     * ranks, in a new permutation each epoch. A virtual rank's micro-batches use B samples each; a
     * remainder of less than a batch is left out. */
    LKS__SAMPLER_EPOCH
} lks__batch_sampler_kind;

typedef struct lks__batch_sampler_config {
    lks__batch_sampler_kind kind;
    uint64_t seed;
    int V, A; /* virtual ranks, micro-steps of each */
    int B, T;
    uint64_t n_tokens[2]; /* train, val; each > T; val 0: no evaluations */
    bool drop_last;       /* epoch: drop samples that don't divide by V, instead of padding */
    uint64_t init_draws;  /* nanogpt: 32-bit draws that the model's initialisation consumes */
} lks__batch_sampler_config;

enum { LKS__SPLIT_TRAIN = 0, LKS__SPLIT_VAL = 1 };

typedef struct lks__batch_sampler lks__batch_sampler; /* opaque */

/* ERR_CONFIG if a split has fewer than T + 1 tokens (names split and both numbers), or if an epoch
 * has no batch for each virtual rank. V and A share a counter word: at most 65,536 each. */
lks_status lks__batch_sampler_open(const lks__batch_sampler_config *config,
                                   lks__batch_sampler **sampler_p);
void lks__batch_sampler_close(lks__batch_sampler *sampler); /* NULL does nothing */

/* Offsets of all micro-batches of `step`: [V][A][B], valid until the next call of this function.
 * Call it once per step, in order. nanogpt: virtual rank v's generator is seeded with seed + v and
 * advanced by init_draws. Batch n + 1 is drawn once batch n has been used, so an evaluation before
 * step s finds the first batch of s already drawn (the prefetch of nanoGPT's train.py). */
const uint64_t *lks__batch_sampler_step(lks__batch_sampler *sampler, uint64_t step);

/* Offsets of the evaluation before `step`: [2][n_batches][B], all of train, then all of val. Memory
 * is malloc'd for the largest n_batches so far; NULL if out of memory. random: keyed by (seed,
 * step, split, batch), no state. nanogpt: drawn from virtual rank 0's generator, which advances, as
 * in the script. */
const uint64_t *lks__batch_sampler_eval(lks__batch_sampler *sampler, uint64_t step, int n_batches);

/* Bytes of the order of an epoch sampler's samples, in each rank. */
uint64_t lks__batch_sampler_order_bytes(uint64_t n_tokens, int T);

/* epoch: the samples that each pass leaves out with batches of B, because they don't fill a batch
 * for each virtual rank. *samples_p: all samples. For other kinds both are 0. */
uint64_t lks__batch_sampler_left_out(const lks__batch_sampler *sampler, int B, uint64_t *samples_p);

/* Read on from `from`, in a segment that isn't the first. Only epoch needs it: random and nanogpt
 * don't count samples. */
void lks__batch_sampler_start(lks__batch_sampler *sampler, const lks__data_start *from);

/* The start of a segment that begins at `step`, after one that has read since `from` in batches of
 * B for each micro-step of V virtual ranks with A micro-steps. */
lks__data_start lks__batch_sampler_at(const lks__batch_sampler *sampler, int V, int A, int B,
                                      const lks__data_start *from, uint64_t step);

/* Save the state, and restore the last saved state to discard steps and evaluations. NULL does
 * nothing. */
void lks__batch_sampler_mark(lks__batch_sampler *sampler);
void lks__batch_sampler_back(lks__batch_sampler *sampler);

/* State between steps, for checkpoints. random and epoch have none (0 bytes). Layout: for each
 * virtual rank 625 little-endian u32 (state, pos), then B little-endian u64 (the batch already
 * drawn). Loading checks length, positions and offsets. If they are wrong, it changes nothing
 * (ERR_FORMAT). */
size_t lks__batch_sampler_state_bytes(const lks__batch_sampler *sampler);
void lks__batch_sampler_state_save(const lks__batch_sampler *sampler, void *out);
lks_status lks__batch_sampler_state_load(lks__batch_sampler *sampler, const void *data,
                                         size_t bytes);
