/* All-reduce and reduce-scatter of any type and operation. The ranks of a host write a piece of
 * their arrays into their own memory; its leader combines them as far as the canonical tree allows.
 * The hosts exchange shards of these nodes, and each combines its shard in the tree's order. For an
 * all-reduce the shards are gathered in common memory, from which all ranks of the host copy. In a
 * reduce-scatter the shard of a host is the parts of its ranks. */
#include <stdlib.h>
#include <string.h>

#include "comm/hier/hier.h"
#include "comm/hier/pieces.h"
#include "comm/tree/combine.h"
#include "comm/tree/tree.h"

/* Largest piece in bytes; a leader needs several times this much memory. */
enum { MOST_PIECE = 1 << 20 };

/* The leader's memory for one call. */
struct combining {
    struct lks__hier *h;
    lks_dtype dtype;
    lks_op op;
    bool scatter;                    /* a reduce-scatter */
    size_t size, wide;               /* bytes of an element, and of a partial result */
    int W, n_nodes, n_own;           /* ranks; nodes of all hosts, and of this host */
    lks_node *leaves, *nodes, *left; /* [W]: this host's leaves; the nodes of all hosts */
    int *host_nodes;                 /* [n_hosts + 1] the first node of each host */
    int *run;                        /* [W] the first leaf below each node of this host */
    uint8_t *own_merges, *merges;    /* [W] leaves to nodes of this host; nodes to the result */
    const void **parts;              /* [W] */
    size_t *send_bytes, *recv_bytes; /* [n_hosts] */
    char *node_mem;                  /* [n_own][piece] */
    char *send, *recv;               /* shards for other hosts, and shards from them */
};

static void close_combining(struct combining *c)
{
    free(c->leaves);
    free(c->host_nodes);
    free(c->own_merges);
    free(c->parts);
    free(c->send_bytes);
    free(c->node_mem);
    free(c->send);
    free(c->recv);
}

/* Start of host `host`'s shard of n elements; for n_hosts the end. */
static size_t shard_start(const struct combining *c, size_t n, int host)
{
    return c->scatter ? n / (size_t)c->W * (size_t)c->h->first[host]
                      : lks__share_start(n, c->h->n_hosts, host);
}

static size_t shard(const struct combining *c, size_t n, int host)
{
    return shard_start(c, n, host + 1) - shard_start(c, n, host);
}

static lks_status no_memory(struct lks__hier *h)
{
    return lks__comm_fail_call(h->comm, lks__no_memory("for an all_reduce among hosts"));
}

static bool open_lists(struct combining *c)
{
    const size_t W = (size_t)c->W, H = (size_t)c->h->n_hosts;
    c->leaves = calloc(3 * W, sizeof *c->leaves);
    c->host_nodes = calloc(H + 1 + W + 1, sizeof *c->host_nodes);
    c->own_merges = calloc(2 * W, 1);
    c->parts = calloc(W, sizeof *c->parts);
    c->send_bytes = calloc(2 * H, sizeof *c->send_bytes);
    if (c->leaves == NULL || c->host_nodes == NULL || c->own_merges == NULL || c->parts == NULL ||
        c->send_bytes == NULL)
        return false;
    c->nodes = c->leaves + W;
    c->left = c->nodes + W;
    c->run = c->host_nodes + H + 1;
    c->merges = c->own_merges + W;
    c->recv_bytes = c->send_bytes + H;
    return true;
}

/* Each host's nodes follow from the number of ranks, so they needn't be exchanged. */
static lks_status open_combining(struct combining *c, size_t piece)
{
    const struct lks__hier *h = c->h;
    const int first = h->first[h->host], n_local = h->first[h->host + 1] - first;
    if (!open_lists(c))
        return no_memory(c->h);
    for (int i = 0; i < h->n_hosts; i++) {
        int room = c->W - c->n_nodes;
        int n = lks__tree_cover(c->W, h->first[i], h->first[i + 1], c->nodes + c->n_nodes, room);
        c->host_nodes[i + 1] = c->n_nodes += n; /* there are at most as many nodes as ranks */
    }
    for (int r = 0; r < n_local; r++)
        c->leaves[r] = (lks_node){.level = 0, .index = first + r};
    lks__tree_plan_some(c->W, c->leaves, n_local, c->own_merges, c->left, c->run, &c->n_own);
    c->run[c->n_own] = n_local;
    lks__tree_plan(c->W, c->nodes, c->n_nodes, c->merges);
    size_t mine = shard(c, piece, h->host) + 1;
    c->node_mem = malloc((size_t)c->n_own * piece * c->wide);
    c->send = malloc((size_t)c->n_own * piece * c->wide);
    c->recv = malloc((size_t)c->n_nodes * mine * c->wide);
    return c->node_mem != NULL && c->send != NULL && c->recv != NULL ? LKS_OK : no_memory(c->h);
}

/* Compute this host's nodes from the data that its ranks have written. */
static void combine_own(struct combining *c, const void *own, size_t n, size_t piece)
{
    struct lks__combine work = {
        .dtype = c->dtype, .op = c->op, .exec = &c->h->comm->exec, .dst_is_partial = true};
    for (int i = 0; i < c->n_own; i++) {
        work.n_parts = c->run[i + 1] - c->run[i];
        for (int r = 0; r < work.n_parts; r++)
            c->parts[r] = lks_comm_peer(c->h->local, own, c->run[i] + r);
        work.parts = c->parts;
        work.merges = c->own_merges + c->run[i];
        work.dst = c->node_mem + (size_t)i * piece * c->wide;
        lks__combine_range(&work, 0, n);
    }
}

/* Send shards of our nodes to the other hosts, and receive our shard of their nodes. */
static lks_status exchange(struct combining *c, const struct lks__shm_descriptor *desc, size_t n,
                           size_t piece)
{
    struct lks__hier *h = c->h;
    char *to = c->send;
    for (int i = 0; i < h->n_hosts; i++) {
        size_t bytes = shard(c, n, i) * c->wide, at = shard_start(c, n, i) * c->wide;
        c->send_bytes[i] = c->recv_bytes[i] = 0;
        if (i == h->host)
            continue;
        for (int k = 0; k < c->n_own; k++, to += bytes)
            memcpy(to, c->node_mem + (size_t)k * piece * c->wide + at, bytes);
        c->send_bytes[i] = (size_t)c->n_own * bytes;
        c->recv_bytes[i] =
            (size_t)(c->host_nodes[i + 1] - c->host_nodes[i]) * shard(c, n, h->host) * c->wide;
    }
    struct lks__hier_wait wait = {.op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                                         .send = c->send,
                                         .send_bytes = c->send_bytes,
                                         .recv = c->recv,
                                         .recv_bytes = c->recv_bytes}};
    return lks__hier_call(h, desc, &wait);
}

/* Combine our shard of the result; in an all-reduce, gather all shards. */
static lks_status combine_shards(struct combining *c, const struct lks__shm_descriptor *desc,
                                 char *dst, size_t n, size_t piece)
{
    struct lks__hier *h = c->h;
    const size_t at = shard_start(c, n, h->host), mine = shard(c, n, h->host);
    const char *from = c->recv;
    for (int i = 0; i < h->n_hosts; i++)
        for (int k = c->host_nodes[i]; k < c->host_nodes[i + 1]; k++) {
            if (i == h->host) {
                c->parts[k] = c->node_mem + ((size_t)(k - c->host_nodes[i]) * piece + at) * c->wide;
                continue;
            }
            c->parts[k] = from;
            from += mine * c->wide;
        }
    struct lks__combine work = {.dtype = c->dtype,
                                .op = c->op,
                                .parts = c->parts,
                                .merges = c->merges,
                                .n_parts = c->n_nodes,
                                .dst = dst + at * c->size,
                                .exec = &h->comm->exec,
                                .parts_are_partial = true,
                                .mean_of = c->W};
    lks__combine_range(&work, 0, mine);
    if (c->scatter)
        return LKS_OK;
    for (int i = 0; i < h->n_hosts; i++)
        c->recv_bytes[i] = shard(c, n, i) * c->size;
    struct lks__hier_wait wait = {
        .op = {LKS__ENGINE_ALL_GATHER, .recv = dst, .recv_bytes = c->recv_bytes}};
    return lks__hier_call(h, desc, &wait);
}

/* One piece: `own` has this rank's n elements, and the result is in `common`. */
static lks_status combine_piece(struct combining *c, const struct lks__shm_descriptor *desc,
                                const void *own, char *common, size_t n, size_t piece)
{
    struct lks__hier *h = c->h;
    LKS__TRY(lks__shm_call(h->local, desc)); /* all have written, and copied the last piece */
    if (h->leads) {
        combine_own(c, own, n, piece);
        LKS__TRY(exchange(c, desc, n, piece));
        LKS__TRY(combine_shards(c, desc, common, n, piece));
    }
    return lks__shm_call(h->local, desc);
}

lks_status lks__hier_combine(lks_comm *comm, struct lks__shm_descriptor *desc, const void *from,
                             void *to, size_t count, lks_dtype dtype, lks_op op, bool scatter)
{
    struct lks__hier *h = comm->state;
    struct combining c = {.h = h,
                          .dtype = dtype,
                          .op = op,
                          .scatter = scatter,
                          .size = lks_dtype_bytes(dtype),
                          .wide = lks_dtype_bytes(lks__partial_type(dtype)),
                          .W = comm->world.world_size};
    const size_t parts = scatter ? (size_t)c.W : 1,
                 at_rank = scatter ? (size_t)comm->world.rank : 0;
    /* In floats, so rounded up. Sizes beyond all memory have been refused before. */
    LKS__TRY(lks__hier_open_sums(h, (parts * count * c.size + sizeof(float) - 1) / sizeof(float)));
    char *own = (char *)h->sums[0].own, *common = (char *)h->sums[0].common;
    size_t room = h->sum_room * sizeof(float) / c.size, most = MOST_PIECE / c.size;
    size_t piece = (room < most ? room : most) / parts; /* of each part */
    piece = count < piece ? count : piece;
    lks_status st = LKS_OK;
    if (h->leads && count > 0)
        st = open_combining(&c, piece * parts);
    for (size_t at = 0; at < count && st == LKS_OK; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        desc->args[0] = at;
        for (size_t p = 0; p < parts; p++)
            memcpy(own + p * n * c.size, (const char *)from + (p * count + at) * c.size,
                   n * c.size);
        st = combine_piece(&c, desc, own, common, n * parts, piece * parts);
        if (st == LKS_OK)
            memcpy((char *)to + at * c.size, common + at_rank * n * c.size, n * c.size);
    }
    if (h->leads)
        close_combining(&c);
    return st;
}
