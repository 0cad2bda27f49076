/* train/fit.h - batch_size=auto: the largest micro-batch that fits into memory, with the samples of
 * a step held. */
#ifndef LKS_TRAIN_FIT_H
#define LKS_TRAIN_FIT_H

#include "layers/layers.h"
#include "train/trainer.h"

/* Where a run of checked settings runs: W ranks, `local` of them on this host. */
typedef struct lks__fit {
    int W, local;
    uint32_t vocab_size;
    const lks__layers *layers; /* the device's */
    double process;            /* bytes of each rank beside its arenas */
} lks__fit;

/* Bytes that the ranks of this host take. */
lks_status lks__fit_bytes(const lks__settings *s, const lks__fit *fit, double *bytes_p);

/* The largest batch_size whose bytes are at most `room`, *batch_p; 0: none. Only sizes count that
 * leave a step its samples (gradient_accumulation_steps * batch_size) and virtual_ranks a divisor
 * of the micro-batches. *least_p: bytes with the smallest of them. */
lks_status lks__fit_batch(const lks__settings *s, const lks__fit *fit, double room,
                          int64_t *batch_p, double *least_p);

/* Take that batch_size, and the gradient_accumulation_steps that go with it. */
lks_status lks__fit_take(lks__settings *s, int W, int64_t batch);

/* For a trainer whose settings are known: choose the smallest of all ranks' sizes. Collective. */
lks_status lks__train_fit(lks__trainer *t);

#endif
