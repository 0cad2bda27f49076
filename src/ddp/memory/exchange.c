#include "ddp/memory/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "comm/hier/pieces.h"
#include "compute/mirror.h"
#include "ddp/nodes.h"

_Static_assert((int)LKS__SHARD_BLOCK >= (int)LKS__BLOCK, "a block of the table fits");
_Static_assert((int)LKS__SHARD_NODES >= (int)LKS__MAX_ARENAS, "a rank's nodes fit");
_Static_assert((int)LKS__SHARD_LEVELS >= (int)LKS__TREE_MAX_LEVELS, "the tree's levels fit");

/* Blocks [first, end) of a bucket that one rank owns. */
struct run {
    int owner;
    size_t first, end;
};

struct shard {
    size_t first_run, end_run;    /* runs of the bucket */
    size_t first_move, n_moves;   /* the moves that bring it to its owners */
    size_t first_block, n_blocks; /* this rank's blocks in x->blocks */
    size_t floats;
};

struct lks__ddp_exchange {
    lks__ddp_exchange_config config;
    lks__device *device;
    const lks__table *table;
    lks__tree_nodes *nodes; /* [W] nodes of each rank after its last leaf */
    struct run *runs;
    struct shard *shards; /* [n_buckets] */
    lks__move *moves;     /* moves of all buckets */
    lks__move *spread;    /* room for the runs of a bucket, or for all ranks' squares */
    size_t n_runs, n_moves, most_runs;
    lks__mirror blocks; /* lks__shard_block, for this rank, bucket by bucket */
    lks__mirror parts;  /* lks__shard_part */
    int n_parts;
    float *received;
    size_t received_floats;
    /* Each rank's squares of its blocks, in the order of the blocks, fill `most_owned` entries. */
    lks__mirror squares;
    size_t *square_index; /* [trained_blocks] index of a block's square */
    size_t *owned;        /* [W] number of blocks */
    size_t most_owned;
};

/* --- ownership -------------------------------------------------------------------------------- */

static int divided_owner(const lks__ddp_exchange *x, const lks__bucket *b, size_t block)
{
    int r = 0;
    while (lks__share_start(b->n_blocks, x->config.W, r + 1) <= block - b->first_block)
        r++;
    return r;
}

/* whole[trained_blocks]: the rank that owns the block's tensor as a whole; -1: none. */
static void find_whole(const lks__ddp_exchange *x, int *whole)
{
    for (size_t i = 0; i < x->table->n_tensors; i++) {
        const lks__table_tensor *t = &x->table->tensors[i];
        for (size_t k = 0; k < t->n_blocks && !t->frozen; k++)
            whole[t->first_block + k] = x->config.owners == NULL ? -1 : x->config.owners[i];
    }
}

/* Assign each block to its owner, and number it among the owner's blocks. */
static void find_runs(lks__ddp_exchange *x, const int *whole)
{
    for (int i = 0; i < x->config.buckets->n; i++) {
        const lks__bucket *b = &x->config.buckets->list[i];
        struct shard *s = &x->shards[i];
        s->first_run = x->n_runs;
        for (size_t k = b->first_block; k < b->first_block + b->n_blocks; k++) {
            const int owner = whole[k] >= 0 ? whole[k] : divided_owner(x, b, k);
            if (x->n_runs == s->first_run || x->runs[x->n_runs - 1].owner != owner)
                x->runs[x->n_runs++] = (struct run){owner, k, k};
            x->runs[x->n_runs - 1].end = k + 1;
            x->square_index[k] = x->owned[owner]++;
        }
        s->end_run = x->n_runs;
        const size_t n = s->end_run - s->first_run;
        x->most_runs = n > x->most_runs ? n : x->most_runs;
    }
    for (int r = 0; r < x->config.W; r++)
        x->most_owned = x->owned[r] > x->most_owned ? x->owned[r] : x->most_owned;
    for (size_t i = 0; i < x->n_runs; i++)
        for (size_t k = x->runs[i].first; k < x->runs[i].end; k++)
            x->square_index[k] += (size_t)x->runs[i].owner * x->most_owned;
}

static size_t start_of(const lks__ddp_exchange *x, size_t block)
{
    return x->table->block_start[block];
}

/* List this rank's shard of each bucket, block by block. */
static void list_blocks(lks__ddp_exchange *x)
{
    lks__shard_block *list = x->blocks.host;
    size_t n = 0;
    for (int i = 0; i < x->config.buckets->n; i++) {
        struct shard *s = &x->shards[i];
        s->first_block = n;
        for (size_t r = s->first_run; r < s->end_run; r++)
            for (size_t k = x->runs[r].first;
                 x->runs[r].owner == x->config.rank && k < x->runs[r].end; k++) {
                const size_t count = start_of(x, k + 1) - start_of(x, k);
                list[n++] = (lks__shard_block){start_of(x, k), s->floats, (uint32_t)count};
                s->floats += count;
            }
        s->n_blocks = n - s->first_block;
    }
}

/* --- moves ------------------------------------------------------------------------------------ */

static int nodes_of_others(const lks__ddp_exchange *x)
{
    int n = 0;
    for (int r = 0; r < x->config.W; r++)
        n += r == x->config.rank ? 0 : x->nodes[r].n;
    return n;
}

/* List the sends of this rank's nodes to the owners of a bucket's runs. */
static void list_sends(lks__ddp_exchange *x, const struct shard *s, int to)
{
    for (int k = 0; k < x->nodes[x->config.rank].n; k++)
        for (size_t r = s->first_run; r < s->end_run; r++) {
            const struct run *run = &x->runs[r];
            const size_t at = start_of(x, run->first);
            if (run->owner == to)
                x->moves[x->n_moves++] = (lks__move){LKS__MOVE_SEND, to, x->config.arena[k] + at,
                                                     (start_of(x, run->end) - at) * sizeof(float)};
        }
}

/* List the receives of another rank's nodes for this rank's runs; its first node becomes node
 * `slot`. */
static void list_receives(lks__ddp_exchange *x, const struct shard *s, int from, int slot)
{
    for (int k = 0; k < x->nodes[from].n; k++) {
        float *to = x->received + (size_t)(slot + k) * s->floats;
        for (size_t r = s->first_run; r < s->end_run; r++) {
            const struct run *run = &x->runs[r];
            const size_t floats = start_of(x, run->end) - start_of(x, run->first);
            if (run->owner != x->config.rank)
                continue;
            x->moves[x->n_moves++] =
                (lks__move){LKS__MOVE_RECEIVE, from, to, floats * sizeof(float)};
            to += floats;
        }
    }
}

static void list_moves(lks__ddp_exchange *x)
{
    for (int i = 0; i < x->config.buckets->n; i++) {
        struct shard *s = &x->shards[i];
        s->first_move = x->n_moves;
        for (int r = 0, slot = 0; r < x->config.W; r++) {
            if (r == x->config.rank)
                continue;
            list_sends(x, s, r);
            list_receives(x, s, r, slot);
            slot += x->nodes[r].n;
        }
        s->n_moves = x->n_moves - s->first_move;
    }
}

/* List all ranks' nodes in the order of leaves, and the plan of their sum. */
static lks_status list_parts(lks__ddp_exchange *x)
{
    lks__shard_part *parts = x->parts.host;
    lks_node *nodes = calloc((size_t)x->n_parts, sizeof *nodes);
    uint8_t *merges = calloc((size_t)x->n_parts, 1);
    lks_status st = LKS_OK;
    int n = 0, slot = 0;
    if (nodes == NULL || merges == NULL)
        st = lks__no_memory("for the sums of %d ranks", x->config.W);
    for (int r = 0; r < x->config.W && st == LKS_OK; r++)
        for (int k = 0; k < x->nodes[r].n; k++) {
            nodes[n] = x->nodes[r].node[k];
            parts[n++].slot = (int16_t)(r == x->config.rank ? -1 - k : slot++);
        }
    if (st == LKS_OK && !lks__tree_plan(x->config.V, nodes, n, merges))
        st = lks__fail(LKS_ERR_ARG, "the ranks together don't cover each leaf once");
    for (int i = 0; i < n; i++)
        parts[i].merges = merges[i];
    free(nodes);
    free(merges);
    return st;
}

/* --- opening --------------------------------------------------------------------------------- */

static lks_status no_memory(const lks__ddp_exchange *x)
{
    return lks__no_memory("to list the blocks that %d ranks exchange", x->config.W);
}

static lks_status open_runs(lks__ddp_exchange *x)
{
    const size_t W = (size_t)x->config.W;
    x->nodes = calloc(W, sizeof *x->nodes);
    x->owned = calloc(W, sizeof *x->owned);
    x->shards = calloc((size_t)x->config.buckets->n + 1, sizeof *x->shards);
    x->square_index = calloc(x->table->trained_blocks + 1, sizeof *x->square_index);
    x->runs = calloc(x->table->trained_blocks + 1, sizeof *x->runs);
    int *whole = calloc(x->table->trained_blocks + 1, sizeof *whole);
    if (x->nodes == NULL || x->owned == NULL || x->shards == NULL || x->square_index == NULL ||
        x->runs == NULL || whole == NULL) {
        free(whole);
        return no_memory(x);
    }
    for (int r = 0; r < x->config.W; r++) {
        bool merges = false;
        lks__tree_nodes_rehearse(x->config.V, lks__first_leaf(x->config.V, x->config.W, r),
                                 lks__first_leaf(x->config.V, x->config.W, r + 1), false,
                                 &x->nodes[r], &merges);
        x->n_parts += x->nodes[r].n;
    }
    find_whole(x, whole);
    find_runs(x, whole);
    free(whole);
    return LKS_OK;
}

/* `received` has room for the largest shard: the queue's order keeps a shard until it is summed. */
static lks_status open_device(lks__ddp_exchange *x)
{
    const size_t others = (size_t)nodes_of_others(x), mine = x->owned[x->config.rank];
    LKS__TRY(lks__mirror_open(x->device, (mine + 1) * sizeof(lks__shard_block), &x->blocks));
    LKS__TRY(lks__mirror_open(x->device, (size_t)x->n_parts * sizeof(lks__shard_part), &x->parts));
    LKS__TRY(lks__mirror_open(x->device, ((size_t)x->config.W * x->most_owned + 1) * sizeof(double),
                              &x->squares));
    list_blocks(x);
    LKS__TRY(list_parts(x));
    for (int i = 0; i < x->config.buckets->n; i++)
        if (others * x->shards[i].floats > x->received_floats)
            x->received_floats = others * x->shards[i].floats;
    if (x->received_floats == 0)
        return LKS_OK;
    return x->device->ops->alloc(x->device, x->received_floats * sizeof(float),
                                 (void **)&x->received);
}

static lks_status open_moves(lks__ddp_exchange *x)
{
    size_t own = 0;
    for (size_t i = 0; i < x->n_runs; i++)
        own += x->runs[i].owner == x->config.rank;
    const size_t sends = (x->n_runs - own) * (size_t)x->nodes[x->config.rank].n;
    x->moves = calloc(sends + own * (size_t)nodes_of_others(x) + 1, sizeof *x->moves);
    const size_t most = x->most_runs > (size_t)x->config.W ? x->most_runs : (size_t)x->config.W;
    x->spread = calloc(most, sizeof *x->spread);
    if (x->moves == NULL || x->spread == NULL)
        return no_memory(x);
    list_moves(x);
    lks__mirror_to_device(&x->blocks, LKS__QUEUE_COPY, 0, x->blocks.bytes);
    lks__mirror_to_device(&x->parts, LKS__QUEUE_COPY, 0, x->parts.bytes);
    return LKS_OK;
}

lks_status lks__ddp_exchange_open(const lks__ddp_exchange_config *config, const lks__table *table,
                                  lks__device *device, lks__ddp_exchange **x_p)
{
    lks__ddp_exchange *x = calloc(1, sizeof *x);
    LKS__MEMORY(x, "for the exchange of gradients");
    x->config = *config;
    x->device = device;
    x->table = table;
    lks_status st = open_runs(x);
    LKS__THEN(st, open_device(x));
    LKS__THEN(st, open_moves(x));
    x->config.owners = NULL; /* the caller's */
    if (st == LKS_OK)
        *x_p = x;
    else
        lks__ddp_exchange_close(x);
    return st;
}

static void free_lists(lks__ddp_exchange *x)
{
    free(x->nodes);
    free(x->owned);
    free(x->shards);
    free(x->square_index);
    free(x->runs);
    free(x->moves);
    free(x->spread);
}

void lks__ddp_exchange_close(lks__ddp_exchange *x)
{
    if (x == NULL)
        return;
    if (x->received != NULL)
        x->device->ops->release(x->device, x->received, x->received_floats * sizeof(float));
    lks__mirror_close(&x->blocks);
    lks__mirror_close(&x->parts);
    lks__mirror_close(&x->squares);
    free_lists(x);
    free(x);
}

/* Floats of this rank's shard of a bucket. */
static size_t shard_floats(const lks__ddp_exchange *x, const struct shard *s)
{
    size_t floats = 0;
    for (size_t r = s->first_run; r < s->end_run; r++)
        if (x->runs[r].owner == x->config.rank)
            floats += start_of(x, x->runs[r].end) - start_of(x, x->runs[r].first);
    return floats;
}

lks_status lks__ddp_exchange_bytes(const lks__ddp_exchange_config *config, const lks__table *table,
                                   double *bytes_p)
{
    lks__ddp_exchange x = {.config = *config, .table = table};
    size_t most = 0;
    lks_status st = open_runs(&x);
    for (int i = 0; i < config->buckets->n && st == LKS_OK; i++) {
        const size_t floats = shard_floats(&x, &x.shards[i]);
        most = floats > most ? floats : most;
    }
    if (st == LKS_OK)
        *bytes_p = (double)((x.owned[config->rank] + 1) * sizeof(lks__shard_block) +
                            (size_t)x.n_parts * sizeof(lks__shard_part) +
                            ((size_t)config->W * x.most_owned + 1) * sizeof(double) +
                            most * (size_t)nodes_of_others(&x) * sizeof(float));
    free_lists(&x);
    return st;
}

/* --- a step ---------------------------------------------------------------------------------- */

static double *own_squares(const lks__ddp_exchange *x)
{
    return (double *)x->squares.dev + (size_t)x->config.rank * x->most_owned;
}

void lks__ddp_exchange_start(lks__ddp_exchange *x, int b)
{
    const struct shard *s = &x->shards[b];
    lks__shard_sum sum = {
        .blocks = (const lks__shard_block *)x->blocks.dev + s->first_block,
        .n_blocks = s->n_blocks,
        .parts = x->parts.dev,
        .n_parts = x->n_parts,
        .received = x->received,
        .shard_floats = s->floats,
        .squares = own_squares(x) + s->first_block,
        .scale = x->config.scale,
    };
    for (int k = 0; k < x->nodes[x->config.rank].n; k++)
        sum.own[k] = x->config.arena[k];
    lks__device_order(x->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    x->device->ops->exchange->move(x->device, LKS__QUEUE_COPY, x->moves + s->first_move,
                                   s->n_moves);
    x->device->ops->exchange->sum(x->device, LKS__QUEUE_COPY, &sum);
}

lks_status lks__ddp_exchange_finish(lks__ddp_exchange *x)
{
    double *squares = x->squares.dev;
    size_t n = 0;
    for (int r = 0; r < x->config.W; r++)
        if (x->owned[r] > 0)
            x->spread[n++] = (lks__move){LKS__MOVE_SPREAD, r, squares + (size_t)r * x->most_owned,
                                         x->owned[r] * sizeof(double)};
    x->device->ops->exchange->move(x->device, LKS__QUEUE_COPY, x->spread, n);
    lks__mirror_to_host(&x->squares, LKS__QUEUE_COPY, 0, x->squares.bytes);
    return lks__device_finish(x->device, LKS__QUEUE_COPY);
}

double lks__ddp_exchange_squares(const lks__ddp_exchange *x, size_t block)
{
    return ((const double *)x->squares.host)[x->square_index[block]];
}

void lks__ddp_exchange_spread(lks__ddp_exchange *x, float *arena)
{
    for (int i = 0; i < x->config.buckets->n; i++) {
        const struct shard *s = &x->shards[i];
        size_t n = 0;
        for (size_t r = s->first_run; r < s->end_run; r++) {
            const struct run *run = &x->runs[r];
            const size_t at = start_of(x, run->first);
            x->spread[n++] = (lks__move){LKS__MOVE_SPREAD, run->owner, arena + at,
                                         (start_of(x, run->end) - at) * sizeof(float)};
        }
        x->device->ops->exchange->move(x->device, LKS__QUEUE_COPY, x->spread, n);
    }
}
