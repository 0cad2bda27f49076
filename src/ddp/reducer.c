#include "ddp/reducer.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(LKS_XXH_DISPATCH) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "base/number/checked.h"
#include "base/trace.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "ddp/memory/mode.h"

struct lks__reducer {
    lks__reducer_config config;
    lks_comm *comm;
    const lks__table *table;
    lks__device *device;
    int first_leaf, end_leaf;

    lks__memory memory; /* the current leaf is in its arena[nodes.n] */
    float *staging; /* NULL, or room for the largest bucket and the last one; zero between leaves */
    size_t staging_floats;
    size_t *shift;   /* [n_groups] from a bucket's offset in an arena to its offset in the staging
                        buffer */
    int merges;      /* number of merges of the current leaf, into arena[nodes.n - 1] and on */
    bool in_staging; /* the current leaf goes to the staging buffer */
    lks__tree_nodes nodes;       /* nodes before the current leaf */
    lks__tree_nodes nodes_after; /* nodes after it has been merged */
    int n_done;                  /* leaves begun in this step */
    lks__reducer_micro micro;    /* the current micro-step; m is -1 before the first of a step */
    uint64_t *hashes;            /* [end_leaf - first_leaf]; NULL: leaves aren't hashed */

    lks__buckets buckets;
    int next_bucket;   /* the bucket to fold next */
    bool last;         /* this is the last micro-step of this rank */
    lks_status failed; /* first failure inside lks__reducer_group_done() */
};

/* --- set-up ---------------------------------------------------------------------------------- */

/* The last bucket (an embedding that is also the head) is written from the first layer on, so it
 * has separate room, after *before_p floats for the largest other bucket. */
static size_t measure_staging(const lks__table *t, size_t bucket_bytes, size_t *before_p)
{
    size_t most = 0, floats = 0;
    for (int g = 0, end = 0; lks__bucket_next(t, bucket_bytes, &g, &end);) {
        most = floats > most ? floats : most;
        floats = t->block_start[t->group_block[end]] - t->block_start[t->group_block[g]];
    }
    *before_p = most;
    return most + floats;
}

size_t lks__reducer_staging_floats(const lks__reducer_config *config, const lks__table *table,
                                   int W)
{
    bool merges;
    int left;
    size_t before;
    lks__tree_nodes_rehearse_all(config->V, W, true, &merges, &left);
    return config->staging && config->A == 1 && merges
               ? measure_staging(table, config->bucket_bytes, &before)
               : 0;
}

static lks_status open_staging(lks__reducer *d)
{
    const lks__bucket *last = &d->buckets.list[d->buckets.n - 1];
    size_t before;
    d->staging_floats = measure_staging(d->table, d->config.bucket_bytes, &before);
    d->staging = aligned_alloc(64, lks__round_up(d->staging_floats * sizeof(float), 64));
    d->shift = calloc((size_t)d->table->n_groups, sizeof *d->shift);
    if (d->staging == NULL || d->shift == NULL)
        return lks__no_memory("for a staging buffer of %zu gradients", d->staging_floats);
    memset(d->staging, 0, d->staging_floats * sizeof(float));
    const lks__bucket *b = d->buckets.list;
    for (int g = 0; g < d->table->n_groups; g++) {
        d->shift[g] = b->start - (b == last ? before : 0);
        b += g == b->last_group && b != last;
    }
    return LKS_OK;
}

static lks_status open_hashes(lks__reducer *d)
{
    const size_t n = (size_t)(d->end_leaf - d->first_leaf);
    if (!d->config.hashes || lks__memory_mode_of(d->device)->own_memory)
        return LKS_OK;
    d->hashes = calloc(n, sizeof *d->hashes);
    return d->hashes != NULL ? LKS_OK : lks__no_memory("for %zu hashes", n);
}

/* `left`: the nodes that remain on this rank after its last leaf, for exchange with other ranks. */
static lks_status open_memory(lks__reducer *d, const lks__tree_nodes *left, bool staging)
{
    const lks__reducer_config *c = &d->config;
    bool merges;
    lks__memory_config config = {
        .V = c->V,
        .scale = (float)(1.0 / (c->divisor > 0 ? c->divisor : (double)c->V * c->A)),
        .wire = c->wire,
        .zero = c->zero,
        .owners = c->owners,
        .buckets = &d->buckets,
        .nodes = *left,
    };
    config.n_arenas = lks__tree_nodes_rehearse_all(c->V, lks_comm_world_size(d->comm), staging,
                                                   &merges, &config.n_nodes);
    return lks__memory_open(&config, d->comm, d->table, d->device, &d->memory);
}

lks_status lks__reducer_open(const lks__reducer_config *config, lks_comm *comm,
                             const lks__table *table, lks__device *device, lks__reducer **reducer_p)
{
    int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    lks__reducer *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__comm_fail_call(comm, lks__no_memory("for data-parallel state"));
    d->config = *config;
    d->comm = comm;
    lks__comm_hold(comm);
    d->table = table;
    d->device = device;
    d->first_leaf = lks__first_leaf(config->V, W, rank);
    d->end_leaf = lks__first_leaf(config->V, W, rank + 1);
    const bool staging =
        config->staging && config->A == 1 && lks__memory_mode_of(device)->in_caches;
    lks__tree_nodes left;
    bool merges = false;
    lks__tree_nodes_rehearse(config->V, d->first_leaf, d->end_leaf, staging, &left, &merges);
    lks_status st = lks__buckets_cut(table, config->first_bytes, config->bucket_bytes, &d->buckets);
    if (st == LKS_OK && staging && merges && d->buckets.n > 0)
        st = open_staging(d);
    LKS__THEN(st, open_hashes(d));
    st = lks__comm_fail_alone(comm, st);
    LKS__THEN(st, open_memory(d, &left, staging));
    d->config.owners = NULL; /* the caller's */
    if (st != LKS_OK) {
        lks__reducer_close(d);
        return st;
    }
    *reducer_p = d;
    return LKS_OK;
}

lks__memory *lks__reducer_memory(lks__reducer *d)
{
    return &d->memory;
}

void lks__reducer_close(lks__reducer *d)
{
    if (d == NULL)
        return;
    lks__memory_close(&d->memory);
    lks__buckets_free(&d->buckets);
    lks__comm_release(d->comm);
    free(d->staging);
    free(d->shift);
    free(d->hashes);
    free(d);
}

/* --- hashes of leaves ------------------------------------------------------------------------- */

enum { TASK_BLOCKS = 16 };

struct hashing {
    const lks__table *table;
    const float *grads; /* of block `first` */
    size_t first, end;
    _Atomic uint64_t sum;
};

static void hash_task(void *ctx, size_t task, int thread)
{
    struct hashing *h = ctx;
    const size_t *start = h->table->block_start;
    const size_t first = h->first + task * TASK_BLOCKS;
    const size_t end = h->end - first < TASK_BLOCKS ? h->end : first + TASK_BLOCKS;
    uint64_t sum = 0;
    for (size_t b = first; b < end; b++)
        sum += XXH3_64bits_withSeed(h->grads + (start[b] - start[h->first]),
                                    (start[b + 1] - start[b]) * sizeof(float), b);
    h->sum += sum;
}

/* Hash n blocks. `grads` is the first one's gradient. */
static uint64_t hash_blocks(const lks__reducer *d, const float *grads, size_t first, size_t n)
{
    struct hashing h = {d->table, grads, first, first + n, 0};
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    lks__pool_run(d->device->ex->pool, (n + TASK_BLOCKS - 1) / TASK_BLOCKS, hash_task, &h);
    lks__trace_end();
    return h.sum;
}

/* Add the hash of blocks of the current leaf to the leaf's. */
static void hash_leaf(const lks__reducer *d, const float *grads, size_t first, size_t n)
{
    if (d->hashes != NULL)
        d->hashes[d->n_done - 1] += hash_blocks(d, grads, first, n);
}

float *lks__reducer_spare(const lks__reducer *d)
{
    return d->memory.arena[0];
}

uint64_t lks__reducer_hash(const lks__reducer *d, const float *grads)
{
    return hash_blocks(d, grads, 0, d->table->trained_blocks);
}

const uint64_t *lks__reducer_hashes(const lks__reducer *d)
{
    return d->hashes;
}

/* --- one step -------------------------------------------------------------------------------- */

/* dst[start, start + count) += src[start, …). */
static void add_range(const lks__reducer *d, float *dst, const float *src, size_t start,
                      size_t count)
{
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    d->device->layers->accumulate(d->device->ex, dst + start, src + start, count);
    lks__trace_end();
}

static void clear(const lks__reducer *d, float *dst, size_t count)
{
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    d->device->layers->clear(d->device->ex, dst, count);
    lks__trace_end();
}

static void clear_pieces(const lks__reducer *d, lks__blend *list)
{
    d->device->layers->update_blend(d->device->ex, list);
    list->n_pieces = 0;
}

/* Clear the arena of a leaf, except for the tensors that its first micro-batch overwrites. Their
 * padding is zero: nothing else is ever written there. */
static void clear_leaf(const lks__reducer *d, float *grads)
{
    lks__blend list = {.n_pieces = 0};
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    for (size_t i = 0; i < d->table->n_tensors; i++) {
        const lks__table_tensor *t = &d->table->tensors[i];
        if (t->frozen || t->overwritten)
            continue;
        list.piece[list.n_pieces].y = grads + t->offset;
        list.piece[list.n_pieces++].n = t->count;
        if (list.n_pieces == LKS__UPDATE_PIECES)
            clear_pieces(d, &list);
    }
    clear_pieces(d, &list);
    lks__trace_end();
}

/* Add a bucket of the current leaf, which is in arena[nodes.n] or in the staging buffer, to its
 * neighbours' nodes. */
static void fold_bucket(const lks__reducer *d, const lks__bucket *b)
{
    int i = d->nodes.n, end = d->nodes.n - d->merges;
    float *bucket = d->in_staging ? d->staging + (b->start - d->shift[b->last_group])
                                  : d->memory.arena[i] + b->start;
    hash_leaf(d, bucket, b->first_block, b->n_blocks);
    if (d->in_staging) {
        add_range(d, d->memory.arena[--i] + b->start, bucket, 0, b->count);
        clear(d, bucket, b->count);
    }
    for (; i > end; i--)
        add_range(d, d->memory.arena[i - 1], d->memory.arena[i], b->start, b->count);
}

void lks__reducer_group_done(void *reducer, int group)
{
    lks__reducer *d = reducer;
    if (!(d->last || d->in_staging) || d->failed != LKS_OK)
        return;
    const lks__bucket *b = &d->buckets.list[d->next_bucket];
    if (b->last_group == group) {
        fold_bucket(d, b);
        if (d->last)
            lks__memory_ready(&d->memory, d->next_bucket);
        d->next_bucket++;
    }
    if (!d->last)
        return;
    d->failed = lks__memory_progress(&d->memory, d->next_bucket, false);
    if (d->failed == LKS_OK) /* for buckets that other ranks have finished */
        d->failed = lks_comm_progress(d->comm);
}

static double norm_of(const lks__reducer *d)
{
    double sum = 0.0;
    for (size_t i = 0; i < d->table->n_tensors; i++) {
        const lks__table_tensor *t = &d->table->tensors[i];
        for (size_t b = 0; !t->frozen && b < t->n_blocks; b++)
            sum += lks__memory_squares(&d->memory, t->first_block + b);
    }
    return sqrt(sum);
}

void lks__reducer_begin(lks__reducer *d)
{
    lks__memory_begin(&d->memory);
    d->nodes.n = d->n_done = d->next_bucket = 0;
    d->last = false;
    d->failed = LKS_OK;
    if (d->hashes != NULL)
        memset(d->hashes, 0, (size_t)(d->end_leaf - d->first_leaf) * sizeof *d->hashes);
    d->micro = (lks__reducer_micro){.v = d->first_leaf, .m = -1};
}

float *lks__reducer_leaf(lks__reducer *d)
{
    d->nodes_after = d->nodes;
    d->merges = lks__tree_nodes_push(d->config.V, d->first_leaf + d->n_done++, &d->nodes_after);
    d->in_staging = d->staging != NULL && d->merges > 0;
    d->next_bucket = 0;
    return d->in_staging ? d->staging : d->memory.arena[d->nodes.n];
}

const size_t *lks__reducer_shift(const lks__reducer *d)
{
    return d->in_staging ? d->shift : NULL;
}

void lks__reducer_last(lks__reducer *d)
{
    d->last = true;
}

lks_status lks__reducer_failed(const lks__reducer *d)
{
    return d->failed;
}

/* Merge the leaf with the nodes that it completes. The last leaf, and a leaf in the staging buffer,
 * were already merged bucket by bucket. */
lks_status lks__reducer_leaf_end(lks__reducer *d)
{
    if (d->failed != LKS_OK || d->last)
        return d->failed;
    const int leaf = d->nodes.n;
    if (!d->in_staging)
        hash_leaf(d, d->memory.arena[leaf], 0, d->table->trained_blocks);
    d->nodes = d->nodes_after;
    for (int i = leaf; !d->in_staging && i > leaf - d->merges; i--)
        add_range(d, d->memory.arena[i - 1], d->memory.arena[i], 0, d->table->trained_count);
    return LKS_OK;
}

bool lks__reducer_next(lks__reducer *d, lks__reducer_micro *micro)
{
    lks__reducer_micro *at = &d->micro;
    if (d->failed != LKS_OK)
        return false;
    if (++at->m == d->config.A) {
        d->failed = lks__reducer_leaf_end(d);
        at->v++;
        at->m = 0;
    }
    if (d->failed != LKS_OK || at->v == d->end_leaf)
        return false;
    if (at->m == 0)
        at->grads = lks__reducer_leaf(d);
    at->fresh = at->m == 0 && !d->in_staging;
    if (at->fresh)
        clear_leaf(d, at->grads);
    if (at->v + 1 == d->end_leaf && at->m + 1 == d->config.A)
        lks__reducer_last(d);
    *micro = *at;
    return true;
}

/* Between micro-steps no bucket has been announced, and the staging buffer is zero. */
void lks__reducer_skip(lks__reducer *d)
{
    d->last = true;
    if (d->failed == LKS_OK)
        d->failed = lks__memory_start_rest(&d->memory);
}

lks_status lks__reducer_finish(lks__reducer *d, const float **grads_p, double *norm_p)
{
    LKS__TRY(d->failed);
    LKS__TRY(lks__memory_progress(&d->memory, d->next_bucket, true));
    LKS__TRY(lks__memory_sum(&d->memory, grads_p));
    *norm_p = norm_of(d);
    return LKS_OK;
}
