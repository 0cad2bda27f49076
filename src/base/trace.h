/* base/trace.h - measures a rank's time: nested spans on the thread that drives the rank.
 *
 * A recorder keeps the newest spans in a ring, which `--trace` writes to a file. It also sums, per
 * part, the time of each span without the spans inside it, so the parts of a step add up to the
 * step. Without a recorder a mark costs one branch. Recording only reads the clock and writes to
 * the ring: it changes no bit of a run. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* X(NAME, "part"): the parts that a step's time is divided into. */
#define LKS__PART_MAP(X)                                                                           \
    X(DATA, "data")                                                                                \
    X(FORWARD, "forward")                                                                          \
    X(HEAD, "head") /* classifier, loss and their backward, in one pass */                         \
    X(BACKWARD, "backward")                                                                        \
    X(REDUCE, "reduce")                                                                            \
    X(WAIT, "wait")                                                                                \
    X(UPDATE, "update")                                                                            \
    X(OTHER, "other")

/* X(NAME, "text", PART). An index >= 0 follows the text: "forward layer 3". */
#define LKS__SPAN_MAP(X)                                                                           \
    X(SET_UP, "set-up", OTHER)                                                                     \
    X(STEP, "step", OTHER)                                                                         \
    X(DATA, "data", DATA)                                                                          \
    X(FORWARD, "forward", FORWARD)                                                                 \
    X(FORWARD_LAYER, "forward layer", FORWARD)                                                     \
    X(HEAD, "head", HEAD)                                                                          \
    X(BACKWARD, "backward", BACKWARD)                                                              \
    X(BACKWARD_LAYER, "backward layer", BACKWARD)                                                  \
    X(AGAIN_LAYER, "forward again layer", FORWARD) /* for backward: --recompute=block */           \
    X(ACCUMULATE, "accumulate", REDUCE) /* zeroing, and adding a rank's own virtual ranks */       \
    X(REDUCE, "reduce bucket", REDUCE)  /* a rank's share of the sum over ranks */                 \
    X(BUCKET, "bucket", REDUCE)         /* from its start until its completion is known */         \
    X(WAIT, "wait", WAIT)                                                                          \
    X(UPDATE, "update", UPDATE)                                                                    \
    X(EVALUATION, "evaluation", OTHER)                                                             \
    X(CHECKPOINT, "checkpoint", OTHER)

typedef enum lks__trace_part {
#define X(name, text) LKS__PART_##name,
    LKS__PART_MAP(X)
#undef X
        LKS__N_PARTS
} lks__trace_part;

typedef enum lks__trace_span {
#define X(name, text, part) LKS__SPAN_##name,
    LKS__SPAN_MAP(X)
#undef X
        LKS__N_SPANS
} lks__trace_span;

const char *lks__trace_part_name(lks__trace_part part);
const char *lks__span_name(lks__trace_span span);
lks__trace_part lks__span_part(lks__trace_span span);

typedef struct lks__trace_event {
    double start, seconds; /* lks__sys_now() */
    int32_t span, index;   /* index -1: none */
} lks__trace_event;

typedef struct lks__trace lks__trace; /* opaque; close with lks__trace_close() */

/* Open a recorder for the calling thread, which records until it is closed. It keeps the `n_events`
 * newest events (0: only the sums). ERR_NOMEM. */
lks_status lks__trace_open(size_t n_events, lks__trace **trace_p);
void lks__trace_close(lks__trace *trace); /* NULL does nothing */

/* Seconds of each part since the last call. */
void lks__trace_take_parts(lks__trace *trace, double seconds[LKS__N_PARTS]);

double lks__trace_opened(const lks__trace *trace); /* lks__sys_now() */
/* Copy the ring to `out` unless it is NULL: events [0, *n_p) in the order of their ends. Returns
 * the number of older events that were dropped. */
uint64_t lks__trace_events(const lks__trace *trace, lks__trace_event *out, size_t *n_p);

/* --- marks ------------------------------------------------------------------------------------ */

extern _Thread_local lks__trace *lks__trace_current;

/* Spans nest: end closes the span that was begun last. A span that an error leaves open is never
 * closed; the run ends then, and with it the recording. */
void lks__trace_begin(lks__trace_span span, int64_t index);
void lks__trace_end(void);
/* Record a span from `start` until now that may overlap others. It is kept but not summed. */
void lks__trace_past(lks__trace_span span, int64_t index, double start);
