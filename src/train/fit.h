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
    double process;            /* Pss of each rank before it reserves arenas */
    double room;               /* bytes that the ranks of this host may take */
} lks__fit;

/* Bytes that the ranks of this host take. */
lks_status lks__fit_bytes(const lks__settings *s, const lks__fit *fit, double *bytes_p);

/* The largest batch_size whose bytes are at most fit->room, *batch_p; 0: none. Only sizes count
 * that leave a step its samples (gradient_accumulation_steps * batch_size) and virtual_ranks a
 * divisor of the micro-batches. *least_p: bytes with the smallest of them. */
lks_status lks__fit_batch(const lks__settings *s, const lks__fit *fit, int64_t *batch_p,
                          double *least_p);
/* The same; ERR_NOMEM with the bytes needed, and what to change, if there is none. */
lks_status lks__fit_choose(const lks__settings *s, const lks__fit *fit, int64_t *batch_p);

/* Take that batch_size, and the gradient_accumulation_steps that go with it. */
lks_status lks__fit_take(lks__settings *s, int W, int64_t batch);

/* For a trainer whose settings are known: choose the smallest of all ranks' sizes. Collective. */
lks_status lks__train_fit(lks__trainer *t);

/* ERR_NOMEM with advice if the run surely doesn't fit into this host: with the settings that a
 * checkpoint or weights have given it, whoever started the ranks. The first rank of a host looks
 * before anything is reserved. */
lks_status lks__train_check_fits(const lks__trainer *t);

#endif
