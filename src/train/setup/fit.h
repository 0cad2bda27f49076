/* train/setup/fit.h - batch_size=auto: the largest micro-batch that fits into memory, with the same
 * number of samples per step. */
#pragma once

#include "plan/bytes/advice.h"
#include "session/session.h"
#include "train/run.h"

/* A run of W ranks, `local` of them on this host. */
typedef struct lks__fit {
    int W, local;
    uint32_t vocab_size;
    double process;     /* bytes (Pss) per rank before it reserves arenas */
    lks__room rooms[2]; /* of the host, then of a device */
    int n_rooms;
} lks__fit;

/* *batch_p: the largest batch_size that fits into all rooms. Only sizes count that leave a step its
 * samples (gradient_accumulation_steps * batch_size) and virtual_ranks a divisor of the
 * micro-batches. ERR_NOMEM, with the bytes needed and advice, if none fits. */
lks_status lks__fit_choose(const lks__settings *s, const lks__fit *fit, int64_t *batch_p);

/* Set that batch_size, and gradient_accumulation_steps to match. */
lks_status lks__fit_set_batch(lks__settings *s, int W, int64_t batch);

/* Set the smallest batch_size that any rank has chosen. Collective. */
lks_status lks__train_fit(lks__run *run, lks__session *ses);

/* For a device with its own memory: ERR_NOMEM with advice if the run doesn't fit into the free
 * part. Each rank checks before any rank allocates. */
lks_status lks__train_check_device(const lks__run *run, const lks__session *ses);

/* ERR_NOMEM with advice if the run surely doesn't fit into this host with its final settings. The
 * first rank of a host checks before anything is reserved. */
lks_status lks__train_check_fits(const lks__run *run, const lks__session *ses);
