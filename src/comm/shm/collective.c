/* The blocking collectives. Small data travel in the descriptors, large data through the bounce
 * buffers, in pieces with one operation each. Operation s uses half s % 2 of the buffers: a rank
 * that arrives at s has completed s - 1, so all ranks have arrived there and are done with s -
 * 2. */
#include <string.h>

#include "base/number/checked.h"
#include "comm/shm/shm.h"
#include "comm/tree/combine.h"

static lks_status meet(struct lks__shm *g, const struct lks__shm_descriptor *desc,
                       const void *payload, size_t n, uint64_t *seq_p)
{
    LKS__TRY(lks__shm_arrive(g, desc, payload, n, seq_p));
    return lks__shm_wait_arrived(g, *seq_p);
}

static const void *payload_of(const struct lks__shm *g, int rank, uint64_t seq)
{
    return lks__segment_descriptor(g->segment, rank, (uint32_t)seq)->payload;
}

lks_status lks__shm_call(lks_comm *comm, const struct lks__shm_descriptor *desc)
{
    struct lks__shm *g = comm->state;
    uint64_t seq;
    LKS__TRY(lks__shm_drain(g));
    return meet(g, desc, desc->payload, lks__shm_counts_bytes(desc), &seq);
}

lks_status lks__shm_barrier(lks_comm *comm)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_BARRIER};
    return lks__shm_call(comm, &desc);
}

lks_status lks__shm_check_common(const struct lks__shm *g, const char *call, const void *mem,
                                 size_t bytes, bool lazy, uint64_t *offset_p)
{
    *offset_p = 0;
    if (bytes == 0 || lks__shm_offset(g, mem, bytes, LKS_MEM_COMMON, g->rank, offset_p) ||
        (lazy && lks__shm_offset(g, mem, bytes, LKS_MEM_LAZY, g->rank, offset_p)))
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG,
                     "%s: mem, %zu bytes, is not in common%s memory from "
                     "lks_comm_alloc()",
                     call, bytes, lazy ? " or lazy" : "");
}

/* One host has one copy. */
lks_status lks__shm_replicate(lks_comm *comm, void *mem, size_t bytes)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_REPLICATE, .size = bytes};
    LKS__TRY(
        lks__shm_check_common(comm->state, "lks_comm_replicate", mem, bytes, false, &desc.args[0]));
    return lks__shm_call(comm, &desc);
}

lks_status lks__shm_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                  size_t n_blocks, int to_first)
{
    struct lks__shm_descriptor desc = {0};
    lks__shm_describe_shares(&desc, block_start, n_blocks, to_first);
    LKS__TRY(lks__shm_check_common(comm->state, "lks_comm_gather_shares", mem, desc.size, true,
                                   &desc.args[2]));
    return lks__shm_call(comm, &desc);
}

lks_status lks__shm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root)
{
    struct lks__shm *g = comm->state;
    const size_t bytes = count * lks_dtype_bytes(dtype);
    struct lks__shm_descriptor desc = {.kind = LKS__OP_BROADCAST, .size = count};
    desc.args[0] = (uint64_t)root;
    desc.args[2] = dtype;
    uint64_t seq;
    LKS__TRY(lks__shm_drain(g));
    if (bytes <= LKS__SHM_PAYLOAD) {
        LKS__TRY(meet(g, &desc, buf, g->rank == root ? bytes : 0, &seq));
        if (g->rank != root && bytes > 0)
            memcpy(buf, payload_of(g, root, seq), bytes);
        return LKS_OK;
    }
    for (size_t at = 0; at < bytes; at += LKS__SHM_BOUNCE) {
        size_t some = lks__min(bytes - at, LKS__SHM_BOUNCE);
        void *piece = lks__segment_bounce(g->segment, root, (int)(g->seq & 1));
        desc.args[1] = at;
        if (g->rank == root)
            memcpy(piece, (char *)buf + at, some);
        LKS__TRY(meet(g, &desc, NULL, 0, &seq));
        if (g->rank != root)
            memcpy((char *)buf + at, piece, some);
    }
    return LKS_OK;
}

/* Rank r gives counts[r] elements of `size` bytes. */
static lks_status gather(struct lks__shm *g, struct lks__shm_descriptor *desc, const void *mine,
                         void *all, const size_t *counts, size_t size)
{
    const size_t head = lks__shm_counts_bytes(desc), bytes = counts[g->rank] * size;
    size_t most = 0;
    for (int r = 0; r < g->world_size; r++)
        most = counts[r] * size > most ? counts[r] * size : most;
    LKS__TRY(lks__shm_drain(g));
    const bool small = most <= LKS__SHM_PAYLOAD - head;
    if (small && bytes > 0)
        memcpy(desc->payload + head, mine, bytes);
    for (size_t at = 0; at == 0 || at < most; at += LKS__SHM_BOUNCE) {
        const int half = (int)(g->seq & 1);
        size_t some = at < bytes ? lks__min(bytes - at, LKS__SHM_BOUNCE) : 0;
        uint64_t seq;
        desc->args[1] = at;
        if (!small && some > 0)
            memcpy(lks__segment_bounce(g->segment, g->rank, half), (const char *)mine + at, some);
        LKS__TRY(meet(g, desc, desc->payload, head + (small ? bytes : 0), &seq));
        char *to = all;
        for (int r = 0; r < g->world_size; to += counts[r++] * size) {
            some = at < counts[r] * size ? lks__min(counts[r] * size - at, LKS__SHM_BOUNCE) : 0;
            if (some > 0)
                memcpy(to + at,
                       small ? (const char *)payload_of(g, r, seq) + head
                             : lks__segment_bounce(g->segment, r, half),
                       some);
        }
    }
    return LKS_OK;
}

lks_status lks__shm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALL_GATHER, .size = count, .args[2] = dtype};
    size_t counts[LKS__SEGMENT_MAX_RANKS];
    for (int r = 0; r < comm->world.world_size; r++)
        counts[r] = count;
    return gather(comm->state, &desc, mine, all, counts, lks_dtype_bytes(dtype));
}

lks_status lks__shm_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                 lks_dtype dtype)
{
    struct lks__shm_descriptor desc = {.args[2] = dtype};
    lks__shm_describe_counts(&desc, counts, (size_t)comm->world.world_size);
    return gather(comm->state, &desc, mine, all, counts, lks_dtype_bytes(dtype));
}

/* Rank r sums elements [first, end) of a piece of n: shares of whole cache lines. */
static void share_of(size_t n, int rank, int world_size, size_t *first, size_t *end)
{
    size_t lines = (n + 15) / 16;
    *first = lks__min(n, lines * (size_t)rank / (size_t)world_size * 16);
    *end = lks__min(n, lines * ((size_t)rank + 1) / (size_t)world_size * 16);
}

/* Up to this many ranks, each rank sums the whole piece. That saves one of two synchronizations,
 * which cost more than reading the few other parts. */
enum { ALL_SUM_RANKS = 4 };

/* Reduce one piece that fits into a bounce buffer or a descriptor; all ranks can read all parts. If
 * there are few ranks, each combines the whole piece for itself. Otherwise each combines its share
 * into rank 0's buffer, and copies the whole piece once all have done so. */
static lks_status reduce_piece(struct lks__shm *g, struct lks__shm_descriptor *desc, void *buf,
                               size_t n, lks_dtype dtype, lks_op op)
{
    const void *parts[LKS__SEGMENT_MAX_RANKS];
    const size_t bytes = n * lks_dtype_bytes(dtype);
    struct lks__combine c = {.dtype = dtype,
                             .op = op,
                             .parts = parts,
                             .merges = g->merges,
                             .n_parts = g->world_size,
                             .dst = buf,
                             .exec = &g->comm->exec,
                             .mean_of = g->world_size};
    uint64_t seq;
    if (bytes <= LKS__SHM_PAYLOAD) {
        LKS__TRY(meet(g, desc, buf, bytes, &seq));
        for (int r = 0; r < g->world_size; r++)
            parts[r] = payload_of(g, r, seq);
        lks__combine_range(&c, 0, n);
        return LKS_OK;
    }
    int half = (int)(g->seq & 1);
    memcpy(lks__segment_bounce(g->segment, g->rank, half), buf, bytes);
    LKS__TRY(meet(g, desc, NULL, 0, &seq));
    for (int r = 0; r < g->world_size; r++)
        parts[r] = lks__segment_bounce(g->segment, r, half);
    if (g->world_size <= ALL_SUM_RANKS) {
        lks__combine_range(&c, 0, n);
        return LKS_OK;
    }
    c.dst = lks__segment_bounce(g->segment, 0, half);
    size_t first, end;
    share_of(n, g->rank, g->world_size, &first, &end);
    lks__combine_range(&c, first, end - first);
    lks__shm_finish(g, seq);
    LKS__TRY(lks__shm_wait_finished(g, seq));
    memcpy(buf, c.dst, bytes);
    return LKS_OK;
}

lks_status lks__shm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op)
{
    struct lks__shm *g = comm->state;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALL_REDUCE, .size = count};
    const size_t size = lks_dtype_bytes(dtype), piece = LKS__SHM_BOUNCE / size;
    desc.args[1] = op;
    desc.args[2] = dtype;
    LKS__TRY(lks__shm_drain(g));
    if (count == 0) { /* arrive anyway, because calls that don't match must be found */
        uint64_t seq;
        return meet(g, &desc, NULL, 0, &seq);
    }
    for (size_t at = 0; at < count; at += piece) {
        desc.args[0] = at;
        LKS__TRY(reduce_piece(g, &desc, (char *)buf + at * size, lks__min(count - at, piece), dtype,
                              op));
    }
    return LKS_OK;
}

/* Elements [at, at + n) of each rank's part, one part after the other. */
static void copy_parts(char *to, const char *all, size_t W, size_t part, size_t at, size_t n)
{
    for (size_t r = 0; r < W && n > 0; r++)
        memcpy(to + r * n, all + r * part + at, n);
}

/* Each rank writes a piece of all parts for the others to read, and combines only its own part. */
lks_status lks__shm_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                   lks_dtype dtype, lks_op op)
{
    struct lks__shm *g = comm->state;
    const size_t W = (size_t)g->world_size, size = lks_dtype_bytes(dtype);
    const size_t piece = LKS__SHM_BOUNCE / size / W;
    const bool small = W * count * size <= LKS__SHM_PAYLOAD;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_REDUCE_SCATTER, .size = count};
    const void *parts[LKS__SEGMENT_MAX_RANKS];
    struct lks__combine c = {.dtype = dtype,
                             .op = op,
                             .parts = parts,
                             .merges = g->merges,
                             .n_parts = g->world_size,
                             .exec = &g->comm->exec,
                             .mean_of = g->world_size};
    desc.args[1] = op;
    desc.args[2] = dtype;
    LKS__TRY(lks__shm_drain(g));
    for (size_t at = 0; at == 0 || at < count; at += piece) {
        const size_t n = lks__min(count - at, piece);
        const int half = (int)(g->seq & 1);
        uint64_t seq;
        desc.args[0] = at;
        if (!small)
            copy_parts(lks__segment_bounce(g->segment, g->rank, half), all, W, count * size,
                       at * size, n * size);
        LKS__TRY(meet(g, &desc, all, small ? W * count * size : 0, &seq));
        for (int r = 0; r < g->world_size; r++)
            parts[r] = (const char *)(small ? payload_of(g, r, seq)
                                            : lks__segment_bounce(g->segment, r, half)) +
                       (size_t)g->rank * n * size;
        c.dst = (char *)mine + at * size;
        lks__combine_range(&c, 0, n);
    }
    return LKS_OK;
}
