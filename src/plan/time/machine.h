/* plan/time/machine.h - a machine file, measured by `lockstep bench machine` or written by hand
 * (docs/reference/formats.md). */
#pragma once

#include <stdbool.h>

#include "base/status.h"

enum { LKS__MACHINE_VERSION = 1, LKS__MACHINE_LAYERS = 1024, LKS__MACHINE_TEXT = 16384 };

/* A measured number, and the range in which most of its measurements lie. */
typedef struct lks__figure {
    double value, low, high;
} lks__figure;

/* When a file has a figure: always; together with the other figures of a link; or if it was
 * measured. A figure that wasn't measured is 0. */
enum { LKS__MACHINE_ALWAYS, LKS__MACHINE_LINK, LKS__MACHINE_MAYBE };

/* X(name, lowest, highest, when): the figures of a file. Seconds are per micro-batch of the
 * measured model, on one rank while all ranks of the host compute. */
#define LKS__MACHINE_FIGURES(X)                                                                    \
    X(peak_flops, 1e3, 1e18, LKS__MACHINE_ALWAYS)                                                  \
    /* bytes/s: gradients that a rank adds to others; to a file, until it is on the disk */        \
    X(add_bandwidth, 1e3, 1e15, LKS__MACHINE_ALWAYS)                                               \
    X(write_bandwidth, 1e2, 1e15, LKS__MACHINE_ALWAYS)                                             \
    X(forward_s, 1e-9, 1e6, LKS__MACHINE_ALWAYS)                                                   \
    X(head_s, 1e-9, 1e6, LKS__MACHINE_ALWAYS) /* classifier and loss with their backward */        \
    X(backward_s, 1e-9, 1e6, LKS__MACHINE_ALWAYS)                                                  \
    X(other_s, 0, 1e6, LKS__MACHINE_ALWAYS)      /* reading of tokens and other work */            \
    X(update_rate, 1, 1e15, LKS__MACHINE_ALWAYS) /* parameters per second, per rank */             \
    /* parts of micro_batch_flops, forward_s and backward_s: one layer */                          \
    X(layer_flops, 1, 1e24, LKS__MACHINE_MAYBE)                                                    \
    X(layer_forward_s, 1e-9, 1e6, LKS__MACHINE_MAYBE)                                              \
    X(layer_backward_s, 1e-9, 1e6, LKS__MACHINE_MAYBE)                                             \
    X(memory_bandwidth, 1e3, 1e15, LKS__MACHINE_MAYBE) /* bytes/s of all ranks together */         \
    X(reduce_bandwidth, 1e3, 1e15, LKS__MACHINE_MAYBE) /* gradients of a rank, among the host's */ \
    X(link_bandwidth, 1, 1e13, LKS__MACHINE_LINK)      /* bytes/s each way, both ways at once */   \
    X(round_trip_s, 0, 100, LKS__MACHINE_LINK)         /* of a small message between two hosts */  \
    /* bytes that a connection sends in its first round trip after a pause */                      \
    X(link_window, 1, 1e13, LKS__MACHINE_MAYBE)                                                    \
    X(link_burst, 1, 1e13, LKS__MACHINE_MAYBE)       /* bytes/s of data within the window */       \
    X(engine_bandwidth, 1, 1e15, LKS__MACHINE_MAYBE) /* a backend's work, without the link */

typedef struct lks__machine {
    int cores, ranks, threads, layers; /* ranks per host, threads per rank; layers of the model */
    double memory_bytes;
    double micro_batch_flops, micro_batch_tokens;
#define X(name, ...) lks__figure name;
    LKS__MACHINE_FIGURES(X)
#undef X
    bool has_link;
} lks__machine;

/* Read and check a file: ERR_IO, or ERR_FORMAT that names file and member. */
lks_status lks__machine_read(const char *path, lks__machine *machine);
/* The file's text. ERR_NOMEM if it doesn't fit, which can't happen with checked figures. */
lks_status lks__machine_write(const lks__machine *machine, char text[LKS__MACHINE_TEXT]);
