/* base/beat.h - long computations report progress, which counts as a heartbeat. */
#ifndef LKS_BASE_BEAT_H
#define LKS_BASE_BEAT_H

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

#endif
