/* data/read/stream.h - the sampler `stream`: chooses the tokens of each micro-batch as
 * parameter-golf's loader does.
 *
 * Call m of the script reads V consecutive spans of local_tokens + 1 tokens from the stream, and
 * rank v keeps the v-th. So the span of virtual rank v in micro-step m of a step begins at ((step *
 * A + m) * V + v) * (local_tokens + 1). The spans of a step depend only on the product N = V * A; V
 * = 8 and A = 1 are the script's values on 1, 2, 4 and 8 workers. There is no state. In a later
 * segment of a run, steps and positions count from its start. */
#pragma once

#include "data/read/shards.h"
#include "data/read/start.h"

typedef struct lks__stream {
    const lks__shards *shards;
    int V, A;             /* virtual ranks, micro-steps of each */
    size_t local_tokens;  /* per micro-batch: B * T */
    lks__data_start from; /* steps and tokens count from here */
} lks__stream;

/* Position of the span's first token in the shards, below lks__shards_count(). */
uint64_t lks__stream_start(const lks__stream *stream, uint64_t step, int v, int m);
