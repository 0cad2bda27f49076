/* base/beat.h - long computations report progress, which counts as a heartbeat. */
#pragma once

#include <stddef.h>

/* `call` is called from any thread, also from several at once. NULL: no one listens. */
typedef struct lks__beat {
    void (*call)(void *ctx);
    void *ctx;
} lks__beat;

static inline void lks__beat_now(const lks__beat *beat)
{
    if (beat->call != NULL)
        beat->call(beat->ctx);
}
