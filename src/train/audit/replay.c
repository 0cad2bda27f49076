#include "train/audit/replay.h"

#include <stdarg.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "ddp/nodes.h"

enum { MOST_PRINTED = 20 };

void lks__replay_false(lks__replay *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (++r->findings == 1) {
        va_list again;
        va_copy(again, args);
        vsnprintf(r->first, sizeof r->first, format, again);
        va_end(again);
    }
    if (r->out != NULL && r->printed < MOST_PRINTED) {
        r->printed++;
        fputs("FALSE     ", r->out);
        vfprintf(r->out, format, args);
        fputc('\n', r->out);
    }
    va_end(args);
}

const char *lks__replay_maker(const lks__claims *c, uint64_t iter, int V, int v,
                              char out[LKS__REPLAY_MAKER])
{
    uint64_t first;
    const json_t *host = lks__claims_start(c, iter, &first);
    const json_int_t W = lks__json_int(host, "world_size");
    json_int_t end = 0;
    out[0] = '\0';
    if (W < 1 || W > V)
        return out;
    const int rank = lks__leaf_rank(V, (int)W, v);
    lks__each(row, json_object_get(host, "hosts")) {
        const char *name = lks__json_str(row, "host");
        const json_int_t ranks = lks__json_int(row, "ranks");
        if (name == NULL || ranks < 1 || ranks > W)
            return out;
        end += ranks;
        if (rank >= end)
            continue;
        snprintf(out, LKS__REPLAY_MAKER, " by rank %d on %s", rank, lks__shown(name, 256));
        return out;
    }
    return out;
}
