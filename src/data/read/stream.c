#include "data/read/stream.h"

uint64_t lks__stream_start(const lks__stream *s, uint64_t step, int v, int m)
{
    /* A long run on large batches exceeds 2^64; the position is taken modulo the number of
     * tokens. */
    unsigned __int128 call =
        (unsigned __int128)(step - s->from.step) * (unsigned)s->A + (unsigned)m;
    unsigned __int128 span = call * (unsigned)s->V + (unsigned)v;
    uint64_t count = lks__shards_count(s->shards);
    uint64_t after = (uint64_t)(span % count * ((uint64_t)s->local_tokens + 1) % count);
    return (s->from.position % count + after) % count;
}
