/* The blocking collectives: first on the host, then among the hosts, then on the host again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "comm/hier/hier.h"
#include "comm/hier/pieces.h"

/* Elements that lks_comm_all_reduce() processes at a time, in blocks. Small sums need little
 * memory; a large sum has two pieces in progress. */
enum { SMALL_PIECE = 1 << 16, PIECE = LKS__HIER_SUM_BLOCKS * 4096, BLOCK = 4096 };

/* All ranks of the host arrive at this call, then the hosts do. Finds calls that don't match. */
static lks_status meet_all(struct lks__hier *h, const struct lks__shm_descriptor *desc)
{
    struct lks__hier_wait wait = {.op.kind = -1};
    LKS__TRY(lks__shm_call(h->local, desc));
    return h->leads ? lks__hier_call(h, desc, &wait) : LKS_OK;
}

lks_status lks__hier_barrier(lks_comm *comm)
{
    struct lks__hier *h = comm->state;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_BARRIER};
    LKS__TRY(meet_all(h, &desc));
    return lks__shm_call(h->local, &desc);
}

static int host_of(const struct lks__hier *h, int rank)
{
    int host = 0;
    while (h->first[host + 1] <= rank)
        host++;
    return host;
}

lks_status lks__hier_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root)
{
    struct lks__hier *h = comm->state;
    int host = host_of(h, root);
    size_t bytes = count * lks_dtype_bytes(dtype);
    struct lks__shm_descriptor desc = {.kind = LKS__OP_BROADCAST, .size = count};
    struct lks__hier_wait wait = {
        .op = {bytes > 0 ? LKS__ENGINE_BROADCAST : -1, host, .recv = buf, .recv_bytes = &bytes}};
    desc.args[0] = (uint64_t)root;
    desc.args[2] = dtype;
    LKS__TRY(lks__shm_call(h->local, &desc));
    if (host == h->host) /* the leader must have the data first */
        LKS__TRY(lks_comm_broadcast(h->local, buf, count, dtype, root - h->first[host]));
    if (h->leads)
        LKS__TRY(lks__hier_call(h, &desc, &wait));
    /* A rank of the root's host may end next, so it waits until the leader has sent the data. */
    return host == h->host ? lks__shm_call(h->local, &desc)
                           : lks_comm_broadcast(h->local, buf, count, dtype, 0);
}

/* Bytes of the parts of ranks [first, end): counts[r] elements of rank r, or if that is NULL,
 * `count`. */
static size_t bytes_of_ranks(const size_t *counts, size_t count, int first, int end,
                             lks_dtype dtype)
{
    size_t n = counts == NULL ? (size_t)(end - first) * count : 0;
    for (int r = first; r < end && counts != NULL; r++)
        n += counts[r];
    return n * lks_dtype_bytes(dtype);
}

/* `all` has the parts of this host's ranks. Add those of the other hosts. */
static lks_status gather_hosts(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                               char *all, const size_t *counts, size_t count, lks_dtype dtype)
{
    const size_t before = bytes_of_ranks(counts, count, 0, h->first[h->host], dtype);
    const size_t upto = bytes_of_ranks(counts, count, 0, h->first[h->host + 1], dtype);
    const size_t total = bytes_of_ranks(counts, count, 0, h->first[h->n_hosts], dtype);
    if (h->leads) {
        size_t *pieces = calloc((size_t)h->n_hosts, sizeof *pieces);
        if (pieces == NULL)
            return lks__comm_fail_call(h->comm, lks__no_memory("for a gathering"));
        for (int i = 0; i < h->n_hosts; i++)
            pieces[i] = bytes_of_ranks(counts, count, h->first[i], h->first[i + 1], dtype);
        struct lks__hier_wait wait = {
            .op = {total > 0 ? LKS__ENGINE_ALL_GATHER : -1, .recv = all, .recv_bytes = pieces}};
        const lks_status st = lks__hier_call(h, desc, &wait);
        free(pieces);
        LKS__TRY(st);
    }
    LKS__TRY(lks_comm_broadcast(h->local, all, before, LKS_UINT8, 0));
    return lks_comm_broadcast(h->local, all + upto, total - upto, LKS_UINT8, 0);
}

lks_status lks__hier_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                                lks_dtype dtype)
{
    struct lks__hier *h = comm->state;
    char *own = (char *)all + bytes_of_ranks(NULL, count, 0, h->first[h->host], dtype);
    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALL_GATHER, .size = count};
    desc.args[2] = dtype;
    LKS__TRY(lks_comm_all_gather(h->local, mine, own, count, dtype));
    return gather_hosts(h, &desc, all, NULL, count, dtype);
}

lks_status lks__hier_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                  lks_dtype dtype)
{
    struct lks__hier *h = comm->state;
    const int first = h->first[h->host];
    char *own = (char *)all + bytes_of_ranks(counts, 0, 0, first, dtype);
    struct lks__shm_descriptor desc = {.args[2] = dtype};
    lks__shm_describe_counts(&desc, counts, (size_t)comm->world.world_size);
    LKS__TRY(meet_all(h, &desc)); /* the ranks of a host may agree on other counts */
    LKS__TRY(lks_comm_all_gather_v(h->local, mine, own, counts + first, dtype));
    return gather_hosts(h, &desc, all, counts, 0, dtype);
}

/* --- memory ------------------------------------------------------------------------------- */

struct outcome {
    int32_t status;
    char text[900];
};
_Static_assert(sizeof(struct outcome) <= LKS__SHM_PAYLOAD, "an outcome fits into a descriptor");

/* If one host failed, all hosts release the memory: every rank gets the status, and the group stays
 * usable. */
static lks_status share_outcome(struct lks__hier *h, struct lks__shm_descriptor *desc,
                                struct outcome *result)
{
    struct lks__shm_descriptor *descs = lks__hier_descriptors(h->n_hosts);
    struct lks__hier_wait wait = {.op.kind = -1, .descs = descs};
    if (descs == NULL)
        return lks__comm_fail_call(h->comm,
                                   lks__no_memory("for the answers of %d hosts", h->n_hosts));
    memcpy(desc->payload, result, sizeof *result);
    lks_status st = lks__hier_call(h, desc, &wait);
    for (int i = 0; i < h->n_hosts && st == LKS_OK; i++) {
        memcpy(result, descs[i].payload, sizeof *result);
        if (result->status != LKS_OK)
            break;
    }
    free(descs);
    return st;
}

lks_status lks__hier_alloc(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p)
{
    struct lks__hier *h = comm->state;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALLOC, .size = bytes};
    struct outcome result = {0};
    void *mem = NULL;
    desc.args[0] = (uint64_t)kind;
    result.status = lks_comm_alloc(h->local, kind, bytes, &mem);
    if (result.status != LKS_OK && lks__segment_aborted(lks__shm_segment(h->local)))
        return (lks_status)result.status;
    if (result.status != LKS_OK)
        snprintf(result.text, sizeof result.text, "%s", lks_last_error());
    if (h->leads)
        LKS__TRY(share_outcome(h, &desc, &result));
    LKS__TRY(lks_comm_broadcast(h->local, &result, sizeof result, LKS_UINT8, 0));
    result.text[sizeof result.text - 1] = '\0';
    if (result.status != LKS_OK && mem != NULL)
        lks__shm_undo_alloc(h->local);
    if (result.status != LKS_OK)
        return lks__fail(result.status == LKS_ERR_IO ? LKS_ERR_IO : LKS_ERR_NOMEM, "%s",
                         lks__shown(result.text, sizeof result.text + 64));
    *mem_p = mem;
    return LKS_OK;
}

lks_status lks__hier_replicate(lks_comm *comm, void *mem, size_t bytes)
{
    struct lks__hier *h = comm->state;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_REPLICATE, .size = bytes};
    LKS__TRY(lks__shm_location(h->local, "lks_comm_replicate", mem, bytes, false, &desc.args[0]));
    struct lks__hier_wait wait = {
        .op = {bytes > 0 ? LKS__ENGINE_BROADCAST : -1, .recv = mem, .recv_bytes = &bytes}};
    LKS__TRY(lks__shm_call(h->local, &desc));
    if (h->leads)
        LKS__TRY(lks__hier_call(h, &desc, &wait));
    return lks__shm_call(h->local, &desc);
}

/* --- shares ------------------------------------------------------------------------------- */

void lks__hier_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end)
{
    const struct lks__hier *h = comm->state;
    *first = lks__share_start(n_blocks, h->n_hosts, h->host);
    *end = lks__share_start(n_blocks, h->n_hosts, h->host + 1);
}

/* On the leader: gather shares that are too large for one operation on the first host. One host at
 * a time sends its share, in pieces. `sent` and `got` [n_hosts] are zero. */
static lks_status gather_in_pieces(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                                   char *mem, const size_t *share, size_t *sent, size_t *got)
{
    const size_t most = h->ops->most_bytes;
    mem += share[0];
    for (int i = 1; i < h->n_hosts; mem += share[i++]) {
        for (size_t at = 0; at < share[i]; at += most) {
            const size_t bytes = lks__min(share[i] - at, most);
            struct lks__hier_wait wait = {.op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                                                 .send = h->host > 0 ? mem + at : NULL,
                                                 .send_bytes = sent,
                                                 .recv = h->host > 0 ? NULL : mem + at,
                                                 .recv_bytes = got}};
            sent[0] = h->host == i ? bytes : 0;
            got[i] = h->host == 0 ? bytes : 0;
            LKS__TRY(lks__hier_call(h, desc, &wait));
        }
        got[i] = 0;
    }
    return LKS_OK;
}

/* On the leader: gather the shares of all hosts on all hosts, or on the first one only. */
static lks_status gather_shares(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                                char *mem, const size_t *start, size_t n_blocks, int to_first)
{
    size_t *share = calloc(3 * (size_t)h->n_hosts, sizeof *share);
    if (share == NULL)
        return lks__comm_fail_call(h->comm, lks__no_memory("for a gathering of shares"));
    size_t *sent = share + h->n_hosts, *got = sent + h->n_hosts;
    for (int i = 0; i < h->n_hosts; i++)
        share[i] = start[lks__share_start(n_blocks, h->n_hosts, i + 1)] -
                   start[lks__share_start(n_blocks, h->n_hosts, i)];
    if (to_first && h->ops->most_bytes > 0 && desc->size > h->ops->most_bytes) {
        lks_status st = gather_in_pieces(h, desc, mem, share, sent, got);
        free(share);
        return st;
    }
    struct lks__hier_wait wait = {.op = {LKS__ENGINE_ALL_GATHER, .recv = mem, .recv_bytes = share}};
    if (to_first) { /* the first host's own part is already in place */
        for (int i = 1; i < h->n_hosts && h->host == 0; i++)
            got[i] = share[i];
        sent[0] = h->host > 0 ? share[h->host] : 0;
        wait.op.kind = LKS__ENGINE_ALL_TO_ALL;
        wait.op.send = h->host > 0
                           ? mem + start[lks__share_start(n_blocks, h->n_hosts, h->host)] - start[0]
                           : NULL;
        wait.op.send_bytes = sent;
        wait.op.recv = h->host > 0 ? NULL : mem + share[0];
        wait.op.recv_bytes = got;
    }
    lks_status st = lks__hier_call(h, desc, &wait);
    free(share);
    return st;
}

lks_status lks__hier_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                   size_t n_blocks, int to_first)
{
    struct lks__hier *h = comm->state;
    struct lks__shm_descriptor desc = {0};
    lks__shm_describe_shares(&desc, block_start, n_blocks, to_first);
    LKS__TRY(
        lks__shm_location(h->local, "lks_comm_gather_shares", mem, desc.size, true, &desc.args[2]));
    LKS__TRY(lks__shm_call(h->local, &desc));
    if (h->leads)
        LKS__TRY(gather_shares(h, &desc, mem, block_start, n_blocks, to_first));
    return lks__shm_call(h->local, &desc);
}

/* --- all-reduce --------------------------------------------------------------------------- */

static void free_sums(struct lks__hier *h)
{
    for (int i = 0; i < LKS__HIER_SUMS; i++) {
        struct lks__hier_sum *s = &h->sums[i];
        lks__comm_free(h->comm, s->own);
        lks__comm_free(h->comm, s->common);
        lks__comm_free(h->comm, s->sumsq);
        s->own = s->common = NULL;
        s->sumsq = NULL;
    }
    h->sum_room = 0;
}

/* The memory is kept, so it has only two sizes. */
lks_status lks__hier_open_sums(struct lks__hier *h, size_t count)
{
    const size_t n = count > SMALL_PIECE ? PIECE : SMALL_PIECE, bytes = n * sizeof(float);
    lks_status st = LKS_OK;
    if (h->sum_room >= n)
        return LKS_OK;
    free_sums(h); /* no rank reads it: all have arrived at this call */
    for (int i = 0; i < LKS__HIER_SUMS; i++) {
        struct lks__hier_sum *s = &h->sums[i];
        LKS__THEN(st, lks__hier_alloc(h->comm, LKS_MEM_OWN, bytes, (void **)&s->own));
        LKS__THEN(st, lks__hier_alloc(h->comm, LKS_MEM_COMMON, bytes, (void **)&s->common));
        LKS__THEN(st, lks__hier_alloc(h->comm, LKS_MEM_COMMON, n / BLOCK * sizeof(double),
                                      (void **)&s->sumsq));
    }
    if (st == LKS_OK)
        h->sum_room = n;
    else
        free_sums(h);
    return st;
}

/* A reduction with one leaf per rank. */
static lks_status start_sum(struct lks__hier *h, struct lks__hier_sum *s, const float *buf,
                            size_t count)
{
    lks_part part = {{0, h->comm->world.rank}, s->own};
    lks_reduction r = {.n_leaves = h->comm->world.world_size,
                       .parts = &part,
                       .n_parts = 1,
                       .scale = 1,
                       .count = count,
                       .block_start = s->start,
                       .n_blocks = (count + BLOCK - 1) / BLOCK,
                       .block_sumsq = s->sumsq,
                       .dst = s->common};
    for (size_t b = 0; b <= r.n_blocks; b++)
        s->start[b] = b < r.n_blocks ? b * BLOCK : count;
    memcpy(s->own, buf, count * sizeof *buf);
    return lks__hier_reduce_start(h->comm, &r, &s->work);
}

/* Sum piece by piece. A rank starts a piece only after it has read the earlier piece from the same
 * buffer, and sums are written only after all ranks of the host have started it. */
static lks_status sum_floats(lks_comm *comm, float *buf, size_t count)
{
    struct lks__hier *h = comm->state;
    LKS__TRY(lks__hier_open_sums(h, count));
    size_t pieces = (count + h->sum_room - 1) / h->sum_room;
    for (size_t p = 0; p < pieces + LKS__HIER_SUMS; p++) {
        struct lks__hier_sum *s = &h->sums[p % LKS__HIER_SUMS];
        if (p >= LKS__HIER_SUMS && p - LKS__HIER_SUMS < pieces) {
            size_t at = (p - LKS__HIER_SUMS) * h->sum_room;
            size_t n = count - at < h->sum_room ? count - at : h->sum_room;
            LKS__TRY(lks_work_wait(s->work));
            memcpy(buf + at, s->common, n * sizeof *buf);
        }
        if (p < pieces) {
            size_t at = p * h->sum_room;
            size_t n = count - at < h->sum_room ? count - at : h->sum_room;
            LKS__TRY(start_sum(h, s, buf + at, n));
        }
    }
    return LKS_OK;
}

lks_status lks__hier_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op)
{
    struct lks__hier *h = comm->state;
    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALL_REDUCE, .size = count};
    desc.args[1] = op;
    desc.args[2] = dtype;
    LKS__TRY(meet_all(h, &desc));
    return dtype == LKS_FLOAT32 && op == LKS_SUM
               ? sum_floats(comm, buf, count)
               : lks__hier_combine(comm, &desc, buf, buf, count, dtype, op, false);
}

lks_status lks__hier_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                    lks_dtype dtype, lks_op op)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_REDUCE_SCATTER, .size = count};
    desc.args[1] = op;
    desc.args[2] = dtype;
    LKS__TRY(meet_all(comm->state, &desc));
    return lks__hier_combine(comm, &desc, all, mine, count, dtype, op, true);
}
