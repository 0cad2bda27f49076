/* Reductions among hosts. The ranks of each host add their parts as far as the tree allows
 * (comm/shm). The leader's thread does the rest: hosts exchange shards of their sums, each host
 * adds its shard in the tree's order, and the shards are gathered into every host's dst. This works
 * in pieces: while one piece is added, the next ones are being received, and the previous ones sent
 * back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "comm/hier/hier.h"
#include "comm/hier/pieces.h"
#include "comm/tree/sum.h"
#include "comm/tree/tree.h"

enum { AHEAD = LKS__PIECES_AHEAD };

_Static_assert(LKS__TREE_MAX_COVER * sizeof(lks_node) <= LKS__SHM_PAYLOAD,
               "a host's nodes fit into its descriptor");

/* --- on each rank ------------------------------------------------------------------------- */

lks_status lks__hier_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p)
{
    struct lks__hier *h = comm->state;
    struct lks__hier_task task = {0};
    lks_work *work;
    h->local->exec = comm->exec;
    LKS__TRY(lks__shm_between_start(h->local, r, &work, &task.between, &task.desc));
    work->comm = comm;
    if (h->leads)
        LKS__TRY(lks__hier_post(h, &task));
    *work_p = work;
    return LKS_OK;
}

lks_status lks__hier_work_wait(lks_comm *comm, lks_work *work)
{
    struct lks__hier *h = comm->state;
    lks_status st = h->local->ops->wait(h->local, work);
    comm->wait_s += lks_comm_take_wait_s(h->local);
    return st;
}

/* --- in the leader's thread --------------------------------------------------------------- */

void lks__wire_narrow(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lks__bf16_from_float(x[i]);
}

void lks__wire_widen(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lks__bf16_to_float(x[i]);
}

static lks_status bad_parts(struct lks__hier *h, const lks_reduction *r, const char *who,
                            const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "reduction of %zu elements over %d leaves among hosts: %s %s",
             r->count, r->n_leaves, who, what);
    return lks__hier_fail(h, LKS_ERR_ARG, -1, text);
}

/* A reduction in progress. */
struct pieces {
    const lks_reduction *r;
    lks__pieces cut;
    float *bufs[LKS__TREE_MAX_COVER]; /* [n_mine] sums of our host */
    int n_mine, n_nodes;              /* nodes of our host, of all hosts */
    int rounds;              /* the largest number of nodes of any host: one exchange per node */
    bool narrow;             /* bfloat16 on the wire */
    size_t room;             /* elements of our largest piece */
    uint64_t fetched[AHEAD]; /* tickets of the exchanges */
    uint64_t last;
};

/* Offset at which node `node` of all hosts' nodes is received, in elements from the start of the
 * staging buffer. */
static size_t staging_start(const struct pieces *c, size_t piece, int node)
{
    return (piece % AHEAD * (size_t)c->n_nodes + (size_t)node) * c->room;
}

static uint16_t *narrow_staging(const struct lks__hier *h, const struct pieces *c)
{
    return h->narrow + c->r->count;
}

static lks_node node_of(const struct lks__hier *h, int host, int k)
{
    lks_node node;
    memcpy(&node, h->descs[host].payload + (size_t)k * sizeof node, sizeof node);
    return node;
}

static lks_status read_nodes(struct lks__hier *h, struct pieces *c)
{
    for (int i = 0; i < h->n_hosts; i++) {
        if (h->descs[i].n_parts > LKS__TREE_MAX_COVER)
            return bad_parts(h, c->r, "a host", "gave more nodes than a range of leaves can have");
        int some = (int)h->descs[i].n_parts;
        for (int k = 0; k < some; k++)
            if (!lks__tree_valid(c->r->n_leaves, node_of(h, i, k)))
                return bad_parts(h, c->r, "a host", "gave something that is no node of the tree");
        c->n_nodes += some;
        c->rounds = some > c->rounds ? some : c->rounds;
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

/* Divide into the same pieces on all hosts, and allocate room for our pieces that are in
 * transfer. */
static lks_status cut(struct lks__hier *h, struct pieces *c)
{
    c->cut = (lks__pieces){c->r->block_start, c->r->n_blocks, h->n_hosts, 0};
    lks__pieces_cut(&c->cut);
    c->room = lks__pieces_room(&c->cut, h->host);
    size_t floats = AHEAD * (size_t)c->n_nodes * c->room;
    void *staging = h->staging, *narrow = h->narrow;
    lks_status st = need(h, &staging, &h->staging_bytes, floats * sizeof(float));
    h->staging = staging;
    if (st == LKS_OK && c->narrow)
        st = need(h, &narrow, &h->narrow_bytes, (c->r->count + floats) * sizeof(uint16_t));
    h->narrow = narrow;
    return st;
}

/* Start the exchange of one piece: node k of every host that has a node k. Our own node isn't
 * moved. */
static lks_status fetch_round(struct lks__hier *h, struct pieces *c, size_t piece, int k)
{
    const size_t width = c->narrow ? sizeof(uint16_t) : sizeof(float);
    const float *send = k < c->n_mine ? c->bufs[k] : NULL;
    if (c->narrow && k > 0) /* the buffer of the previous node is still being sent */
        LKS__TRY(lks__hier_finish(h, c->last));
    for (int i = 0, n = 0; i < h->n_hosts; n += (int)h->descs[i++].n_parts) {
        bool comes = i != h->host && k < (int)h->descs[i].n_parts;
        size_t start = lks__pieces_start(&c->cut, i, piece);
        size_t some = i != h->host && send != NULL ? lks__pieces_size(&c->cut, i, piece) : 0;
        if (c->narrow && some > 0)
            lks__wire_narrow(h->narrow + start, send + start, some);
        h->send_at[i] = start * width;
        h->send_bytes[i] = some * width;
        h->recv_at[i] = comes ? staging_start(c, piece, n + k) * width : 0;
        h->recv_bytes[i] = comes ? lks__pieces_size(&c->cut, h->host, piece) * width : 0;
    }
    lks__engine_op op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                         .send = c->narrow ? (const void *)h->narrow : send,
                         .send_at = h->send_at,
                         .send_bytes = h->send_bytes,
                         .recv = c->narrow ? (void *)narrow_staging(h, c) : h->staging,
                         .recv_at = h->recv_at,
                         .recv_bytes = h->recv_bytes};
    return lks__hier_start(h, &op, &c->last);
}

static lks_status fetch(struct lks__hier *h, struct pieces *c, size_t piece)
{
    for (int k = 0; k < c->rounds; k++)
        LKS__TRY(fetch_round(h, c, piece, k));
    c->fetched[piece % AHEAD] = c->last;
    return LKS_OK;
}

/* Find the parts of our piece: our host's in place, the other hosts' in the staging buffer. */
static void find_nodes(struct lks__hier *h, const struct pieces *c, size_t piece)
{
    const size_t start = lks__pieces_start(&c->cut, h->host, piece),
                 some = lks__pieces_size(&c->cut, h->host, piece);
    h->plan.n = 0;
    for (int i = 0; i < h->n_hosts; i++) {
        for (int k = 0; k < (int)h->descs[i].n_parts; k++) {
            size_t at = staging_start(c, piece, h->plan.n);
            if (c->narrow && i != h->host)
                lks__wire_widen(h->staging + at, narrow_staging(h, c) + at, some);
            const float *buf = i == h->host ? c->bufs[k] + start : h->staging + at;
            lks__plan_add(&h->plan, c->r->n_leaves, node_of(h, i, k), buf);
        }
    }
    lks__plan_sort(&h->plan);
}

static lks_status sum_piece(struct lks__hier *h, const struct pieces *c, size_t piece)
{
    const lks_reduction *r = c->r;
    size_t start = lks__pieces_start(&c->cut, h->host, piece),
           end = lks__pieces_block(&c->cut, h->host, piece + 1);
    struct lks__sum sum;
    find_nodes(h, c, piece);
    if (!lks__plan_sum(&h->plan, r->n_leaves, r->dst + start, r->scale, &h->comm->exec, &sum))
        return bad_parts(h, r, "the ranks", "together don't cover each leaf once");
    for (size_t b = lks__pieces_block(&c->cut, h->host, piece); b < end; b++) {
        size_t from = r->block_start[b], some = r->block_start[b + 1] - from;
        double lanes[8] = {0};
        lks__sum_range(&sum, from - start, some, lanes);
        r->block_sumsq[b] = lks__sumsq_of_lanes(lanes);
        if (c->narrow) { /* round as the other hosts receive it */
            lks__wire_narrow(h->narrow + from, r->dst + from, some);
            lks__wire_widen(r->dst + from, h->narrow + from, some);
            r->block_sumsq[b] = h->comm->exec.k->sumsq(r->dst + from, some);
        }
    }
    return LKS_OK;
}

/* Start to send the sums of our piece, and to receive the other hosts' sums. */
static lks_status gather(struct lks__hier *h, struct pieces *c, size_t piece)
{
    const size_t width = c->narrow ? sizeof(uint16_t) : sizeof(float);
    for (int i = 0; i < h->n_hosts; i++) {
        h->recv_at[i] = lks__pieces_start(&c->cut, i, piece) * width;
        h->recv_bytes[i] = lks__pieces_size(&c->cut, i, piece) * width;
    }
    lks__engine_op op = {.kind = LKS__ENGINE_ALL_GATHER,
                         .recv = c->narrow ? (void *)h->narrow : c->r->dst,
                         .recv_at = h->recv_at,
                         .recv_bytes = h->recv_bytes};
    return lks__hier_start(h, &op, &c->last);
}

static lks_status gather_sumsqs(struct lks__hier *h, struct pieces *c)
{
    for (int i = 0; i < h->n_hosts; i++)
        h->sumsq_bytes[i] =
            (lks__pieces_block(&c->cut, i, c->cut.n) - lks__pieces_block(&c->cut, i, 0)) *
            sizeof(double);
    lks__engine_op op = {
        .kind = LKS__ENGINE_ALL_GATHER, .recv = c->r->block_sumsq, .recv_bytes = h->sumsq_bytes};
    return lks__hier_start(h, &op, &c->last);
}

/* All hosts agree on the operation; the rest is computation. */
static lks_status add_pieces(struct lks__hier *h, struct pieces *c)
{
    LKS__TRY(cut(h, c));
    for (size_t p = 0; p < AHEAD && p < c->cut.n; p++)
        LKS__TRY(fetch(h, c, p));
    for (size_t p = 0; p < c->cut.n; p++) {
        LKS__TRY(lks__hier_finish(h, c->fetched[p % AHEAD]));
        LKS__TRY(sum_piece(h, c, p));
        if (c->r->scatter == LKS_SCATTER_NONE)
            LKS__TRY(gather(h, c, p));
        if (p + AHEAD < c->cut.n)
            LKS__TRY(fetch(h, c, p + AHEAD));
    }
    LKS__TRY(gather_sumsqs(h, c));
    LKS__TRY(lks__hier_finish(h, c->last));
    for (int i = 0; i < h->n_hosts && c->narrow && c->r->scatter == LKS_SCATTER_NONE; i++) {
        size_t start = lks__pieces_start(&c->cut, i, 0),
               end = lks__pieces_start(&c->cut, i, c->cut.n);
        if (i != h->host)
            lks__wire_widen(c->r->dst + start, h->narrow + start, end - start);
    }
    return LKS_OK;
}

lks_status lks__hier_reduce(struct lks__hier *h, struct lks__hier_task *task)
{
    const lks_reduction *r = &task->between.r;
    struct pieces c = {.r = r, .narrow = r->wire == LKS_WIRE_BFLOAT16 && h->n_hosts > 1};
    lks_node nodes[LKS__TREE_MAX_COVER];
    for (h->idle = 0; !lks__shm_shares_done(h->local, &task->between);)
        LKS__TRY(lks__hier_pause(h, false)); /* perhaps for this rank, which must not seem alive */
    c.n_mine = lks__shm_between_sums(h->local, &h->shm_plan, &task->between, nodes, c.bufs);
    if (c.n_mine < 0)
        return bad_parts(h, r, "this host", "has leaves too scattered to be sent");
    task->desc.n_parts = (uint32_t)c.n_mine;
    memcpy(task->desc.payload, nodes, (size_t)c.n_mine * sizeof *nodes);
    LKS__TRY(lks__hier_meet(h, &task->desc));
    LKS__TRY(read_nodes(h, &c));
    if (r->count > 0)
        return add_pieces(h, &c);
    for (size_t b = 0; b < r->n_blocks; b++)
        r->block_sumsq[b] = 0;
    return LKS_OK;
}
