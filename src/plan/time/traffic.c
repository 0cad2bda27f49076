#include "plan/time/traffic.h"

#include <stdlib.h>
#include <string.h>

#include "comm/hier/hier.h"
#include "comm/hier/pieces.h"
#include "model/table/freeze.h"
#include "plan/gradients.h"
#include "weights/forms/saved.h"

/* A message's descriptor is sent to every other host before an operation. */
static const double DESCRIPTOR = sizeof(struct lks__shm_descriptor);

struct walk {
    const lks__settings *s;
    lks__reducer_config ddp;
    lks__place place;
    int *nodes; /* [n_hosts] nodes of each bucket that a host sends */
    int most_nodes, all_nodes;
    double *sent; /* [n_hosts] bytes */
    double *messages;
    lks__traffic *traffic;
};

/* `host` sends `bytes` to each other host. */
static void to_all(struct walk *w, int host, double bytes)
{
    w->sent[host] += bytes * (w->place.n_hosts - 1);
    w->messages[host] += bytes > 0 ? w->place.n_hosts - 1 : 0;
}

static void meet(struct walk *w)
{
    for (int h = 0; h < w->place.n_hosts; h++)
        to_all(w, h, DESCRIPTOR);
}

/* One-way delays of a transfer of `bytes` that both sides start together. Gloo sends data when the
 * other side has reported that it waits for them. MPI sends small messages at once; for others it
 * asks, and waits for the answer. */
static int delays_of(const struct walk *w, double bytes)
{
    static const double mpi_sends_at_once = 65536; /* Open MPI's btl_tcp_eager_limit */
    if (strcmp(w->s->backend, "mpi") != 0)
        return 2;
    return bytes <= mpi_sends_at_once ? 1 : 3;
}

/* Descriptors; pieces of shards, some ahead of the one that is added; pieces of the result,
 * together with their norms. */
static int bucket_delays(const struct walk *w, const lks__bucket_traffic *b, size_t pieces)
{
    const int to = w->place.n_hosts - 1;
    /* Nodes of the narrow wire share one buffer, so each waits for the previous one. */
    const int rounds = w->ddp.wire == LKS_WIRE_BFLOAT16 ? w->most_nodes : 1;
    const int waves = (int)((pieces + LKS__PIECES_AHEAD - 1) / LKS__PIECES_AHEAD);
    const double fetched = b->fetch_bytes / (double)pieces / to / w->most_nodes;
    return delays_of(w, DESCRIPTOR) + waves * rounds * delays_of(w, fetched) +
           delays_of(w, b->gather_bytes / (double)pieces / to);
}

/* As comm/hier/reduce.c: descriptors, each host's nodes by shards, sums of shards, their norms. */
static void add_bucket(struct walk *w, const lks__table *table, size_t first, size_t end,
                       int last_group)
{
    const int n = w->place.n_hosts;
    const double width = w->ddp.wire == LKS_WIRE_BFLOAT16 ? 2 : 4;
    const size_t count = table->block_start[end] - table->block_start[first];
    lks__pieces cut = {table->block_start + first, end - first, n, 1};
    lks__bucket_traffic *b = &w->traffic->buckets[w->traffic->n_buckets++];
    *b = (lks__bucket_traffic){.last_group = last_group, .gradient_bytes = (double)count * 4};
    if (n == 1)
        return;
    lks__pieces_cut(&cut);
    meet(w);
    for (int h = 0; h < n; h++) {
        const double shard =
            (double)(lks__pieces_start(&cut, h, cut.n) - lks__pieces_start(&cut, h, 0));
        const double blocks =
            (double)(lks__pieces_block(&cut, h, cut.n) - lks__pieces_block(&cut, h, 0));
        const double others = ((double)count - shard) * width * w->nodes[h];
        const double before = w->sent[h];
        w->sent[h] += others;
        w->messages[h] += (double)w->nodes[h] * (double)cut.n * (n - 1);
        if (!w->ddp.zero) {
            w->sent[h] += shard * width * (n - 1);
            w->messages[h] += (double)cut.n * (n - 1);
        }
        to_all(w, h, blocks * sizeof(double));
        const double own = w->sent[h] - before + DESCRIPTOR * (n - 1);
        b->bytes = own > b->bytes ? own : b->bytes;
        b->fetch_bytes = others > b->fetch_bytes ? others : b->fetch_bytes;
        const double added = shard * 4 * (w->all_nodes - 1);
        b->added_bytes = added > b->added_bytes ? added : b->added_bytes;
    }
    b->gather_bytes = b->bytes - b->fetch_bytes;
    b->delays = bucket_delays(w, b, cut.n);
}

/* The update, ZeRO-1's parameters, the losses, and the step's end. */
static void add_late(struct walk *w, const lks__table *table)
{
    const int n = w->place.n_hosts, W = lks__place_world(&w->place);
    const double before = w->sent[0];
    lks__traffic *t = w->traffic;
    if (n == 1)
        return;
    const double losses = (double)lks__step_message_bytes(w->ddp.V, w->ddp.A, W) * w->place.local;
    const int descriptors = delays_of(w, DESCRIPTOR);
    meet(w);
    for (int h = 0; h < n; h++)
        to_all(w, h, losses);
    t->late_delays = descriptors + delays_of(w, losses);
    for (int g = 0, end = 0;
         w->ddp.zero && lks__bucket_next(table, w->ddp.bucket_bytes, &g, &end);) {
        const size_t first = table->group_block[g], blocks = table->group_block[end] - first;
        double bytes = 0;
        meet(w);
        for (int h = 0; h < n; h++) {
            const size_t from = first + lks__share_start(blocks, n, h);
            const size_t to = first + lks__share_start(blocks, n, h + 1);
            bytes = (double)(table->block_start[to] - table->block_start[from]) * 4;
            to_all(w, h, bytes);
        }
        t->late_delays += descriptors + delays_of(w, bytes);
    }
    meet(w); /* the end of the update */
    t->late_delays += descriptors;
    t->late_bytes = w->sent[0] - before;
}

static void add_up(struct walk *w, const lks__table *table)
{
    lks__traffic *t = w->traffic;
    const int n = w->place.n_hosts;
    for (int h = 0; h < n; h++) {
        t->mean_bytes += w->sent[h] / n;
        t->bytes = w->sent[h] > t->bytes ? w->sent[h] : t->bytes;
        t->messages = w->messages[h] > t->messages ? w->messages[h] : t->messages;
    }
    t->ring_bytes = 2.0 * (n - 1) / n * (double)table->trained_count * 4;
    t->delays = t->late_delays;
    for (int i = 0; i < t->n_buckets; i++)
        t->delays += t->buckets[i].delays;
    t->heartbeat_rate = (n - 1) * LKS__ENGINE_MESSAGE / LKS__HIER_HEARTBEAT_S;
}

static lks_status walk_step(struct walk *w, const lks__table *table)
{
    const size_t n = (size_t)w->place.n_hosts;
    w->nodes = calloc(n, sizeof *w->nodes);
    w->sent = calloc(n, sizeof *w->sent);
    w->messages = calloc(n, sizeof *w->messages);
    w->traffic->buckets = calloc((size_t)table->n_groups + 1, sizeof *w->traffic->buckets);
    if (w->nodes == NULL || w->sent == NULL || w->messages == NULL || w->traffic->buckets == NULL)
        return lks__no_memory("to plan %zu hosts", n);
    for (int h = 0; h < w->place.n_hosts; h++) {
        w->nodes[h] = lks__place_nodes(&w->place, w->ddp.V, h);
        w->most_nodes = w->nodes[h] > w->most_nodes ? w->nodes[h] : w->most_nodes;
        w->all_nodes += w->nodes[h];
    }
    for (int g = 0, end = 0; lks__bucket_next(table, w->ddp.bucket_bytes, &g, &end);)
        add_bucket(w, table, table->group_block[g], table->group_block[end], end - 1);
    add_late(w, table);
    add_up(w, table);
    return LKS_OK;
}

lks_status lks__traffic_find(const lks__settings *s, uint32_t vocab_size, const lks__place *place,
                             lks__traffic *traffic)
{
    const lks__model_config config = lks__state_model_config(s, vocab_size);
    struct walk w = {.s = s, .ddp = lks__chosen_ddp(s), .place = *place, .traffic = traffic};
    lks__table table;
    memset(traffic, 0, sizeof *traffic);
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    LKS__THEN(st, walk_step(&w, &table));
    free(w.nodes);
    free(w.sent);
    free(w.messages);
    lks__table_free(&table);
    if (st != LKS_OK)
        lks__traffic_close(traffic);
    return st;
}

void lks__traffic_close(lks__traffic *traffic)
{
    free(traffic->buckets);
    traffic->buckets = NULL;
}
