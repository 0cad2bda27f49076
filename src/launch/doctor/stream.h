/* launch/doctor/stream.h - measures a link's speed for a run's data: one connection that is kept
 * full, in one direction. */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { LKS__STREAM_SECRET = 16 }; /* bytes */

typedef struct lks__stream_sink lks__stream_sink; /* opaque */

/* Accept streams at `host` on a free port, in a separate thread, one after the other. A sender that
 * first sends `secret` may send for some seconds, and then gets the number of bytes that have
 * arrived. */
lks_status lks__stream_serve(const char *host, const uint8_t secret[LKS__STREAM_SECRET],
                             lks__stream_sink **sink_p);
int lks__stream_port(const lks__stream_sink *sink);
void lks__stream_stop(lks__stream_sink *sink); /* NULL does nothing */

/* Send for about `seconds`. *rate_p is in bytes per second, until the other side has all.
 * LKS_ERR_PEER if no data arrives: a firewall drops it, or the path has a smaller MTU. */
lks_status lks__stream_send(const char *host, int port, const uint8_t secret[LKS__STREAM_SECRET],
                            double seconds, double *rate_p);
