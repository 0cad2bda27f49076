/* data/read/start.h - the place in the data at which a segment of a run begins.
 *
 * A resume that changes the batch begins a new segment, which reads on where the old one ended. */
#pragma once

#include <stdint.h>

/* All zero for the first segment. */
typedef struct lks__data_start {
    uint64_t step;     /* the segment's first step, with the data that rollbacks left out */
    uint64_t epoch;    /* epoch: the pass */
    uint64_t position; /* epoch: samples of this pass that were dealt; stream: the first token */
} lks__data_start;
