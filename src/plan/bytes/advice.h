/* plan/bytes/advice.h - checks whether a run fits into this host and its devices, and finds
 * settings that make it fit. */
#pragma once

#include "plan/bytes/needs.h"

enum { LKS__ADVICE_TEXT = 900 };

/* The memory into which a run on `device` must fit: the host's, or that of one such device. */
typedef struct lks__room {
    const lks__device *device; /* need not be open */
    double bytes;
    int ranks; /* the host's ranks on the device whose memory this is; 0: it is the host's memory */
} lks__room;

/* Find the rooms of a host of `host_bytes` and, if it has separate memory, of one such device.
 * `limit` (--memory, 0: none) is the size of the memory in which models compute; INFINITY for a
 * device without a limit. Returns their number. */
int lks__rooms_find(const lks__device *device, double host_bytes, uint64_t limit,
                    lks__room rooms[2]);

/* Bytes of that memory that the run needs. */
double lks__room_needs(const lks__room *room, const lks__needs *needs);
/* The first of n rooms that is too small; NULL: none. */
const lks__room *lks__rooms_lack(const lks__room *rooms, int n, const lks__needs *needs);

/* ERR_NOMEM with the bytes needed, those of the room, and the advice, if the run surely doesn't
 * fit: by more than the error of the needs. */
lks_status lks__advice_check(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                             const lks__place *place, const lks__process *process);

/* Settings that fit instead, with their savings and costs; "" if there are none. */
void lks__advice_find(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                      const lks__place *place, const lks__process *process,
                      char text[LKS__ADVICE_TEXT]);
