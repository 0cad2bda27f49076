/* plan/bytes/advice.h - does a run fit into this host and its devices, and what would make it fit.
 */
#ifndef LKS_PLAN_BYTES_ADVICE_H
#define LKS_PLAN_BYTES_ADVICE_H

#include "plan/bytes/needs.h"

enum { LKS__ADVICE_TEXT = 900 };

/* Memory that a run on `device` is to fit into: the host's, or that of one such device. */
typedef struct lks__room {
    const lks__device *device; /* needs not be open */
    double bytes;
    int ranks; /* of the host that have the device, whose memory this is; 0: it is the host's */
} lks__room;

/* Bytes of that memory. */
double lks__room_needs(const lks__room *room, const lks__needs *needs);

/* ERR_NOMEM with the bytes needed, those of the room, and the advice, if the run surely doesn't
 * fit: by more than the error of the needs. */
lks_status lks__advice_check(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                             const lks__place *place, const lks__process *process);

/* What fits instead, with what it saves and costs; "" if nothing does. */
lks_status lks__advice_find(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                            const lks__place *place, const lks__process *process,
                            char text[LKS__ADVICE_TEXT]);

#endif
