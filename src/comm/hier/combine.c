/* All-reduce of any type and operation. The ranks of a host write a piece of their arrays into
 * their own memory; its leader combines them as far as the canonical tree allows. The hosts
 * exchange shards of these nodes, each combines its shard in the tree's order, and the shards are
 * gathered in common memory, from which all ranks of the host copy. */
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
    size_t size;                     /* bytes of an element */
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
static size_t shard_start(const struct lks__hier *h, size_t n, int host)
{
    return lks__share_start(n, h->n_hosts, host);
}

static size_t shard(const struct lks__hier *h, size_t n, int host)
{
    return shard_start(h, n, host + 1) - shard_start(h, n, host);
}

static lks_status no_memory(struct lks__hier *h)
{
    static const char why[] = "no memory for an all_reduce among hosts";
    lks_comm_abort(h->comm, why);
    return lks__fail(LKS_ERR_NOMEM, why);
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
    size_t mine = shard(h, piece, h->host) + 1;
    c->node_mem = malloc((size_t)c->n_own * piece * c->size);
    c->send = malloc((size_t)c->n_own * piece * c->size);
    c->recv = malloc((size_t)c->n_nodes * mine * c->size);
    return c->node_mem != NULL && c->send != NULL && c->recv != NULL ? LKS_OK : no_memory(c->h);
}

/* Compute this host's nodes from the data that its ranks have written. */
static void combine_own(struct combining *c, const void *own, size_t n, size_t piece)
{
    struct lks__combine work = {.dtype = c->dtype, .op = c->op, .exec = &c->h->comm->exec};
    for (int i = 0; i < c->n_own; i++) {
        work.n_parts = c->run[i + 1] - c->run[i];
        for (int r = 0; r < work.n_parts; r++)
            c->parts[r] = lks_comm_peer(c->h->local, own, c->run[i] + r);
        work.parts = c->parts;
        work.merges = c->own_merges + c->run[i];
        work.dst = c->node_mem + (size_t)i * piece * c->size;
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
        size_t bytes = shard(h, n, i) * c->size, at = shard_start(h, n, i) * c->size;
        c->send_bytes[i] = c->recv_bytes[i] = 0;
        if (i == h->host)
            continue;
        for (int k = 0; k < c->n_own; k++, to += bytes)
            memcpy(to, c->node_mem + (size_t)k * piece * c->size + at, bytes);
        c->send_bytes[i] = (size_t)c->n_own * bytes;
        c->recv_bytes[i] =
            (size_t)(c->host_nodes[i + 1] - c->host_nodes[i]) * shard(h, n, h->host) * c->size;
    }
    struct lks__hier_wait wait = {.op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                                         .send = c->send,
                                         .send_bytes = c->send_bytes,
                                         .recv = c->recv,
                                         .recv_bytes = c->recv_bytes}};
    return lks__hier_call(h, desc, &wait);
}

/* Combine our shard of the result, then gather all shards. */
static lks_status combine_shards(struct combining *c, const struct lks__shm_descriptor *desc,
                                 char *dst, size_t n, size_t piece)
{
    struct lks__hier *h = c->h;
    const size_t at = shard_start(h, n, h->host) * c->size, mine = shard(h, n, h->host);
    const char *from = c->recv;
    for (int i = 0; i < h->n_hosts; i++)
        for (int k = c->host_nodes[i]; k < c->host_nodes[i + 1]; k++) {
            if (i == h->host) {
                c->parts[k] = c->node_mem + (size_t)(k - c->host_nodes[i]) * piece * c->size + at;
                continue;
            }
            c->parts[k] = from;
            from += mine * c->size;
        }
    struct lks__combine work = {.dtype = c->dtype,
                                .op = c->op,
                                .parts = c->parts,
                                .merges = c->merges,
                                .n_parts = c->n_nodes,
                                .dst = dst + at,
                                .exec = &h->comm->exec};
    lks__combine_range(&work, 0, mine);
    for (int i = 0; i < h->n_hosts; i++)
        c->recv_bytes[i] = shard(h, n, i) * c->size;
    struct lks__hier_wait wait = {
        .op = {LKS__ENGINE_ALL_GATHER, .recv = dst, .recv_bytes = c->recv_bytes}};
    return lks__hier_call(h, desc, &wait);
}

lks_status lks__hier_combine(lks_comm *comm, struct lks__shm_descriptor *desc, void *buf,
                             size_t count, lks_dtype dtype, lks_op op)
{
    struct lks__hier *h = comm->state;
    struct combining c = {.h = h,
                          .dtype = dtype,
                          .op = op,
                          .size = lks_dtype_bytes(dtype),
                          .W = comm->world.world_size};
    /* In floats, so rounded up. Sizes beyond all memory have been refused before. */
    LKS__TRY(lks__hier_open_sums(h, (count * c.size + sizeof(float) - 1) / sizeof(float)));
    char *own = (char *)h->sums[0].own, *common = (char *)h->sums[0].common;
    size_t room = h->sum_room * sizeof(float) / c.size, most = MOST_PIECE / c.size;
    size_t piece = room < most ? room : most;
    piece = count < piece ? count : piece;
    lks_status st = LKS_OK;
    if (h->leads && count > 0)
        st = open_combining(&c, piece);
    for (size_t at = 0; at < count && st == LKS_OK; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        desc->args[0] = at;
        memcpy(own, (char *)buf + at * c.size, n * c.size);
        st = lks__shm_call(h->local, desc); /* all have written, and copied the last piece */
        if (h->leads && st == LKS_OK) {
            combine_own(&c, own, n, piece);
            st = exchange(&c, desc, n, piece);
        }
        if (h->leads && st == LKS_OK)
            st = combine_shards(&c, desc, common, n, piece);
        if (st == LKS_OK)
            st = lks__shm_call(h->local, desc);
        if (st == LKS_OK)
            memcpy((char *)buf + at * c.size, common, n * c.size);
    }
    if (h->leads)
        close_combining(&c);
    return st;
}
