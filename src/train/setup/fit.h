/* train/setup/fit.h - batch_size=auto: the largest micro-batch that fits into memory, with the
 * samples of a step held. */
#ifndef LKS_TRAIN_SETUP_FIT_H
#define LKS_TRAIN_SETUP_FIT_H

#include "plan/bytes/advice.h"
#include "session/session.h"
#include "train/run.h"

/* Where a run of checked settings runs: W ranks, `local` of them on this host. */
typedef struct lks__fit {
    int W, local;
    uint32_t vocab_size;
    double process;     /* Pss of each rank before it reserves arenas */
    lks__room rooms[2]; /* of the host, and, if n_rooms is 2, of a device */
    int n_rooms;
} lks__fit;

/* Add the room of a device with its own memory, of which `bytes` are free, or may be taken. */
void lks__fit_add_device(lks__fit *fit, const lks__device *device, double bytes, int ranks);

/* The largest batch_size whose bytes all rooms have, *batch_p; 0: none. Only sizes count that leave
 * a step its samples (gradient_accumulation_steps * batch_size) and virtual_ranks a divisor of the
 * micro-batches. *lacks_p: the room that the smallest of them doesn't fit into, and *least_p: what
 * it takes there. */
lks_status lks__fit_batch(const lks__settings *s, const lks__fit *fit, int64_t *batch_p,
                          const lks__room **lacks_p, double *least_p);
/* The same; ERR_NOMEM with the bytes needed, and what to change, if there is none. */
lks_status lks__fit_choose(const lks__settings *s, const lks__fit *fit, int64_t *batch_p);

/* Take that batch_size, and the gradient_accumulation_steps that go with it. */
lks_status lks__fit_take(lks__settings *s, int W, int64_t batch);

/* For a trainer whose settings are known: choose the smallest of all ranks' sizes. Collective. */
lks_status lks__train_fit(lks__run *run, lks__session *ses);

/* For a device with its own memory, before anything is allocated there: ERR_NOMEM with advice if
 * the run doesn't fit into what is free. Each rank looks; no rank may allocate before all have
 * looked. */
lks_status lks__train_check_device(const lks__run *run, const lks__session *ses);

/* ERR_NOMEM with advice if the run surely doesn't fit into this host: with the settings that a
 * checkpoint or weights have given it, whoever started the ranks. The first rank of a host looks
 * before anything is reserved. */
lks_status lks__train_check_fits(const lks__run *run, const lks__session *ses);

#endif
