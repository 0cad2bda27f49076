/* train/advice.h - does a run fit into this host, and what would make it fit. */
#ifndef LKS_TRAIN_ADVICE_H
#define LKS_TRAIN_ADVICE_H

#include "train/needs.h"

enum { LKS__ADVICE_TEXT = 900 };

/* `layers`: the device's. ERR_NOMEM with the bytes needed, those that `room` has, and the advice,
 * if the run surely doesn't fit: by more than the error of the needs. */
lks_status lks__advice_check(const lks__layers *layers, const lks__settings *s, uint32_t vocab_size,
                             const lks__place *place, const lks__process *process, double room);

/* What fits into `room` instead, with what it saves and costs; "" if nothing does. */
lks_status lks__advice_find(const lks__layers *layers, const lks__settings *s, uint32_t vocab_size,
                            const lks__place *place, const lks__process *process, double room,
                            char text[LKS__ADVICE_TEXT]);

#endif
