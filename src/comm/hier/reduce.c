/* Reductions among hosts. The ranks of each host add their parts as far as the tree goes
 * (comm/shm); what follows is the leader's thread: shards of the hosts' sums change places, each
 * host adds its shard in the tree's order, and the shards are gathered into every host's dst. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hier/hier.h"
#include "comm/shm/sum.h"

_Static_assert(LKS__TREE_MAX_COVER * sizeof(lks_node) <= LKS__SHM_PAYLOAD,
               "a host's nodes fit into its mail");

/* --- the ranks' side ---------------------------------------------------------------------- */

lks_status lks__hier_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p)
{
    struct lks__hier *h = comm->state;
    struct lks__hier_job job = {.r = *r};
    lks_work *work;
    h->local->exec = comm->exec;
    LKS__TRY(lks__shm_between_start(h->local, r, &work, &job.between));
    work->comm = comm;
    if (h->leads) {
        const struct lks__shm *g = h->local->state;
        job.mail = *lks__segment_mail(g->segment, 0, (uint32_t)job.between.seq);
        job.mail.args[2] =
            (uint64_t)r->wire << 1 | (r->scatter != 0); /* addresses are each host's own affair */
        job.mail.args[3] = 0;
        LKS__TRY(lks__hier_post(h, &job));
    }
    *work_p = work;
    return LKS_OK;
}

lks_status lks__hier_progress(lks_comm *comm)
{
    struct lks__hier *h = comm->state;
    return lks_comm_progress(h->local);
}

lks_status lks__hier_work_wait(lks_comm *comm, lks_work *work)
{
    struct lks__hier *h = comm->state;
    lks_status st = h->local->ops.wait(h->local, work);
    comm->wait_s += lks_comm_take_wait_s(h->local);
    return st;
}

/* --- the thread's side -------------------------------------------------------------------- */

static lks_status bad_parts(struct lks__hier *h, const lks_reduction *r, const char *who,
                            const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "reduction of %zu elements over %d leaves among hosts: %s %s",
             r->count, r->n_leaves, who, what);
    return lks__hier_fail(h, LKS_ERR_ARG, -1, text);
}

/* Which nodes come from which host; where they are to lie is known later. */
static lks_status read_nodes(struct lks__hier *h, const lks_reduction *r)
{
    h->plan.n = 0;
    for (int i = 0; i < h->n_hosts; i++) {
        lks_node nodes[LKS__TREE_MAX_COVER];
        uint32_t some = h->mails[i].n_parts;
        if (some > LKS__TREE_MAX_COVER)
            return bad_parts(h, r, "a host", "gave more nodes than a range of leaves has");
        memcpy(nodes, h->mails[i].payload, some * sizeof *nodes);
        for (uint32_t k = 0; k < some; k++)
            if (!lks__plan_add(&h->plan, r->n_leaves, nodes[k], NULL))
                return bad_parts(h, r, "a host", "gave what is no node of the tree");
    }
    return LKS_OK;
}

static lks_status need(struct lks__hier *h, void **mem_p, size_t *have_p, size_t bytes)
{
    if (bytes <= *have_p)
        return LKS_OK;
    free(*mem_p);
    *mem_p = malloc(bytes);
    *have_p = *mem_p != NULL ? bytes : 0;
    if (*mem_p != NULL)
        return LKS_OK;
    char text[128];
    snprintf(text, sizeof text, "rank %d: no memory for %zu bytes of other hosts' gradients",
             h->first[h->host], bytes);
    return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
}

/* Buffers for n nodes of our shard of `count` elements. */
static lks_status need_staging(struct lks__hier *h, const lks_reduction *r, int n, size_t count)
{
    size_t floats = (size_t)n * count;
    void *staging = h->staging, *narrow = h->narrow;
    lks_status st = need(h, &staging, &h->staging_bytes, floats * sizeof(float));
    h->staging = staging;
    if (st == LKS_OK && r->wire == LKS_WIRE_BFLOAT16)
        st = need(h, &narrow, &h->narrow_bytes, (r->count + floats) * sizeof(uint16_t));
    h->narrow = narrow;
    return st;
}

/* One all-to-all in the wire's format; the sizes of h->send_bytes and h->recv_bytes are floats'. */
static lks_status send_shards(struct lks__hier *h, const lks_reduction *r, const float *send,
                              float *recv)
{
    lks__engine_op op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                         .send = send,
                         .send_bytes = h->send_bytes,
                         .recv = recv,
                         .recv_bytes = h->recv_bytes};
    if (r->wire == LKS_WIRE_FLOAT32)
        return lks__hier_move(h, &op);
    uint16_t *in = h->narrow + r->count;
    size_t n = 0;
    if (send != NULL)
        lks__wire_narrow(h->narrow, send, r->count);
    for (int i = 0; i < h->n_hosts; i++) {
        n += h->recv_bytes[i] / sizeof(float);
        h->send_bytes[i] /= 2;
        h->recv_bytes[i] /= 2;
    }
    op.send = h->narrow;
    op.recv = in;
    LKS__TRY(lks__hier_move(h, &op));
    lks__wire_widen(recv, in, n); /* our own piece comes to nothing: it is read in its place */
    return LKS_OK;
}

/* Round k: node k of every host that has one. Our shard begins at `start` and has `mine` elements;
 * our own sums stay where they are. */
static lks_status exchange(struct lks__hier *h, const lks_reduction *r, float *const *bufs,
                           int n_mine, size_t start, size_t mine)
{
    int rounds = 0, n = 0;
    for (int i = 0; i < h->n_hosts; i++)
        if ((int)h->mails[i].n_parts > rounds)
            rounds = (int)h->mails[i].n_parts;
    float *at = h->staging;
    for (int k = 0; k < rounds; k++) {
        float *recv = at;
        n = 0;
        for (int i = 0; i < h->n_hosts; i++) {
            bool has = k < (int)h->mails[i].n_parts;
            h->send_bytes[i] = k < n_mine ? h->share_bytes[i] : 0;
            h->recv_bytes[i] = has ? mine * sizeof(float) : 0;
            if (has) /* nodes stand by host, then by number */
                h->plan.nodes[n + k].buf = i == h->host ? bufs[k] + start : at;
            at += has ? mine : 0;
            n += (int)h->mails[i].n_parts;
        }
        LKS__TRY(send_shards(h, r, k < n_mine ? bufs[k] : NULL, recv));
    }
    return LKS_OK;
}

static lks_status sum_shard(struct lks__hier *h, const lks_reduction *r, size_t first, size_t end)
{
    lks__sumsq_fn *sumsq = h->comm->exec.k != NULL ? h->comm->exec.k->sumsq : lks__sumsq_ref;
    size_t start = r->block_start[first];
    struct lks__sum sum;
    lks__plan_sort(&h->plan);
    if (!lks__plan_sum(&h->plan, r->n_leaves, r->dst + start, r->scale, &h->comm->exec, &sum))
        return bad_parts(h, r, "the ranks", "together don't cover each leaf once");
    for (size_t b = first; b < end; b++) {
        size_t from = r->block_start[b], some = r->block_start[b + 1] - from;
        double lanes[8] = {0};
        lks__sum_range(&sum, from - start, some, lanes);
        r->block_sumsq[b] = lks__sumsq_of_lanes(lanes);
        if (r->wire == LKS_WIRE_BFLOAT16) { /* what the other hosts will have */
            lks__wire_narrow(h->narrow + from, r->dst + from, some);
            lks__wire_widen(r->dst + from, h->narrow + from, some);
            r->block_sumsq[b] = sumsq(r->dst + from, some);
        }
    }
    return LKS_OK;
}

static lks_status gather(struct lks__hier *h, void *all, const size_t *bytes)
{
    lks__engine_op op = {.kind = LKS__ENGINE_ALL_GATHER, .recv = all, .recv_bytes = bytes};
    return lks__hier_move(h, &op);
}

/* The shards of dst; ours, in bfloat16, stands in h->narrow as well. */
static lks_status gather_dst(struct lks__hier *h, const lks_reduction *r)
{
    if (r->wire == LKS_WIRE_FLOAT32)
        return gather(h, r->dst, h->share_bytes);
    size_t at = 0;
    for (int i = 0; i < h->n_hosts; i++)
        h->recv_bytes[i] = h->share_bytes[i] / 2;
    LKS__TRY(gather(h, h->narrow, h->recv_bytes));
    for (int i = 0; i < h->n_hosts; i++) {
        size_t n = h->share_bytes[i] / sizeof(float);
        if (i != h->host)
            lks__wire_widen(r->dst + at, h->narrow + at, n);
        at += n;
    }
    return LKS_OK;
}

lks_status lks__hier_reduce(struct lks__hier *h, struct lks__hier_job *job)
{
    const lks_reduction *r = &job->r;
    struct lks__shm *g = h->local->state;
    lks_node nodes[LKS__TREE_MAX_COVER];
    float *bufs[LKS__TREE_MAX_COVER];
    for (h->idle = 0; !lks__shm_shares_done(g, &job->between);)
        LKS__TRY(lks__hier_pause(h));
    int mine = lks__shm_between_sums(g, h->shm_plan, &job->between, r, nodes, bufs);
    if (mine < 0)
        return bad_parts(h, r, "this host", "has leaves too scattered to be sent");
    job->mail.n_parts = (uint32_t)mine;
    memcpy(job->mail.payload, nodes, (size_t)mine * sizeof *nodes);
    LKS__TRY(lks__hier_meet(h, &job->mail));
    LKS__TRY(read_nodes(h, r));
    if (r->count == 0)
        return LKS_OK;
    for (int i = 0; i < h->n_hosts; i++) {
        size_t b = lks__hier_share_start(h, r->n_blocks, i);
        size_t end = lks__hier_share_start(h, r->n_blocks, i + 1);
        h->share_bytes[i] = (r->block_start[end] - r->block_start[b]) * sizeof(float);
        h->sumsq_bytes[i] = (end - b) * sizeof(double);
    }
    size_t first = lks__hier_share_start(h, r->n_blocks, h->host);
    size_t end = lks__hier_share_start(h, r->n_blocks, h->host + 1);
    size_t count = r->block_start[end] - r->block_start[first];
    LKS__TRY(need_staging(h, r, h->plan.n, count));
    LKS__TRY(exchange(h, r, bufs, mine, r->block_start[first], count));
    LKS__TRY(sum_shard(h, r, first, end));
    if (!r->scatter)
        LKS__TRY(gather_dst(h, r));
    return gather(h, r->block_sumsq, h->sumsq_bytes);
}
