#include "ddp/ddp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/system/sys.h"
#include "base/trace.h"
#include "comm/backend.h"
#include "ddp/memory/exchange.h"
#include "ddp/nodes.h"

struct bucket {
    int last_group; /* the bucket is complete when this group is */
    size_t first_block, n_blocks;
    size_t start, count; /* floats */
    size_t *block_start; /* [n_blocks + 1], from the bucket's start */
    size_t *block_bytes; /* the same in bytes */
    lks__mark copied;    /* this rank's nodes of it have been copied to sent[] */
    lks_work *work;
    double started; /* time from lks__sys_now() */
};

struct lks__ddp {
    lks__ddp_config config;
    lks_comm *comm;
    const lks__table *table;
    lks__device *device;
    int first_leaf, end_leaf;

    float *arena[LKS__MAX_ARENAS]; /* the device's memory */
    int n_arenas;
    /* Memory of the group: arena[i] itself or, if the device has its own memory, n_sent buffers
     * for copies to reduce. */
    float *sent[LKS__MAX_ARENAS];
    int n_sent;
    float *staging; /* NULL, or for the largest bucket and the last; zero between leaves */
    size_t staging_floats;
    size_t *shift; /* [n_groups] from a bucket's place in an arena to that in the staging buffer */
    int merges;    /* number of merges of the current leaf, into arena[nodes.n - 1] and on */
    bool in_staging;        /* the current leaf goes to the staging buffer */
    lks__nodes nodes;       /* before the current leaf, which is in arena[nodes.n] */
    lks__nodes nodes_after; /* after it has been merged */
    lks__nodes nodes_final; /* after the last leaf has been merged */
    int n_done;             /* leaves begun in this step */
    lks__ddp_micro micro;   /* the current micro-step; m is -1 before the first of a step */

    struct bucket *buckets;
    int n_buckets, next_bucket; /* folded next */
    int next_start;      /* the next bucket to pass to the group, of those that are complete */
    double *block_sumsq; /* shared by all ranks of the host */
    lks__ddp_exchange *exchange; /* NULL: the group reduces buckets, in host memory */
    bool last;                   /* this is the last micro-step of this rank */
    lks_status failed;           /* first failure inside lks__ddp_group_done() */
};

/* --- set-up ---------------------------------------------------------------------------------- */

static size_t floats_of(const lks__table *t, int first_group, int end_group)
{
    return t->block_start[t->group_block[end_group]] - t->block_start[t->group_block[first_group]];
}

bool lks__ddp_next_bucket(const lks__table *t, size_t bucket_bytes, int *first_p, int *end_p)
{
    int first = *end_p;
    while (first < t->n_groups && lks__table_is_empty(t, first))
        first++;
    if (first == t->n_groups)
        return false;
    int end = first + 1;
    while (end < t->n_groups && floats_of(t, first, end) * sizeof(float) < bucket_bytes)
        end++;
    while (lks__table_is_empty(t, end - 1))
        end--;
    *first_p = first;
    *end_p = end;
    return true;
}

/* The last bucket (an embedding that is also the head) is written from the first layer on, so it
 * has a place of its own, after *before_p floats for the largest of the others. */
static size_t measure_staging(const lks__table *t, size_t bucket_bytes, size_t *before_p)
{
    size_t most = 0, floats = 0;
    for (int g = 0, end = 0; lks__ddp_next_bucket(t, bucket_bytes, &g, &end);) {
        most = floats > most ? floats : most;
        floats = floats_of(t, g, end);
    }
    *before_p = most;
    return most + floats;
}

size_t lks__ddp_staging_floats(const lks__ddp_config *config, const lks__table *table, int W)
{
    bool merges;
    int left;
    size_t before;
    lks__nodes_rehearse_all(config->V, W, true, &merges, &left);
    return config->staging && config->A == 1 && merges
               ? measure_staging(table, config->bucket_bytes, &before)
               : 0;
}

static lks_status cut_buckets(lks__ddp *d)
{
    const lks__table *t = d->table;
    d->buckets = calloc((size_t)t->n_groups, sizeof *d->buckets);
    if (d->buckets == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d buckets", t->n_groups);
    for (int g = 0, end = 0; lks__ddp_next_bucket(t, d->config.bucket_bytes, &g, &end);) {
        struct bucket *b = &d->buckets[d->n_buckets++];
        const size_t first = t->group_block[g];
        b->last_group = end - 1;
        b->first_block = first;
        b->n_blocks = t->group_block[end] - first;
        b->start = t->block_start[first];
        b->count = floats_of(t, g, end);
        b->block_start = calloc(b->n_blocks + 1, sizeof *b->block_start);
        b->block_bytes = calloc(b->n_blocks + 1, sizeof *b->block_bytes);
        if (b->block_start == NULL || b->block_bytes == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for a bucket of %zu blocks", b->n_blocks);
        for (size_t i = 0; i <= b->n_blocks; i++) {
            b->block_start[i] = t->block_start[first + i] - b->start;
            b->block_bytes[i] = b->block_start[i] * sizeof(float);
        }
    }
    return LKS_OK;
}

static lks_status open_staging(lks__ddp *d)
{
    const struct bucket *last = &d->buckets[d->n_buckets - 1];
    size_t before;
    d->staging_floats = measure_staging(d->table, d->config.bucket_bytes, &before);
    d->staging = aligned_alloc(64, lks__round_up(d->staging_floats * sizeof(float), 64));
    d->shift = calloc((size_t)d->table->n_groups, sizeof *d->shift);
    if (d->staging == NULL || d->shift == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a staging buffer of %zu gradients",
                         d->staging_floats);
    memset(d->staging, 0, d->staging_floats * sizeof(float));
    const struct bucket *b = d->buckets;
    for (int g = 0; g < d->table->n_groups; g++) {
        d->shift[g] = b->start - (b == last ? before : 0);
        b += g == b->last_group && b != last;
    }
    return LKS_OK;
}

static lks_status open_memory(lks__ddp *d, bool staging)
{
    const size_t bytes = d->table->trained_count * sizeof(float);
    const int W = lks_comm_world_size(d->comm);
    const bool own = !d->device->ops->host_memory;
    bool merges;
    int left;
    d->n_arenas = lks__nodes_rehearse_all(d->config.V, W, staging, &merges, &left);
    /* All ranks have the first one: the sum goes to that of the host's leader. */
    d->n_sent = d->device->joined ? 0 : own ? left : d->n_arenas;
    for (int i = 0; i < d->n_sent; i++)
        LKS__TRY(lks_comm_alloc(d->comm, LKS_MEM_OWN, bytes, (void **)&d->sent[i]));
    for (int i = 0; i < d->n_arenas; i++) {
        if (own)
            LKS__TRY(d->device->ops->alloc(d->device, bytes, (void **)&d->arena[i]));
        else
            d->arena[i] = d->sent[i];
    }
    if (d->device->joined)
        return LKS_OK;
    return lks_comm_alloc(d->comm, LKS_MEM_COMMON, d->table->trained_blocks * sizeof(double),
                          (void **)&d->block_sumsq);
}

/* What the root's sum is multiplied by. */
static float scale_of(const lks__ddp_config *c)
{
    return c->sums ? 1.0f : (float)(1.0 / ((double)c->V * c->A));
}

static lks_status open_exchange(lks__ddp *d)
{
    lks__ddp_bucket *buckets = calloc((size_t)d->n_buckets + 1, sizeof *buckets);
    const lks__ddp_exchange_config config = {
        .V = d->config.V,
        .W = lks_comm_world_size(d->comm),
        .rank = lks_comm_rank(d->comm),
        .scale = scale_of(&d->config),
        .owners = d->config.owners,
        .arena = d->arena,
        .buckets = buckets,
        .n_buckets = d->n_buckets,
    };
    if (buckets == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d buckets", d->n_buckets);
    for (int i = 0; i < d->n_buckets; i++)
        buckets[i] = (lks__ddp_bucket){d->buckets[i].first_block, d->buckets[i].n_blocks};
    lks_status st = lks__ddp_exchange_open(&config, d->table, d->device, &d->exchange);
    free(buckets);
    return st;
}

lks_status lks__ddp_open(const lks__ddp_config *config, lks_comm *comm, const lks__table *table,
                         lks__device *device, lks__ddp **ddp_p)
{
    int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    lks__ddp *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for data-parallel state");
    d->config = *config;
    d->comm = comm;
    lks__comm_hold(comm);
    d->table = table;
    d->device = device;
    d->first_leaf = lks__ddp_first_leaf(config->V, W, rank);
    d->end_leaf = lks__ddp_first_leaf(config->V, W, rank + 1);
    /* A staging buffer keeps what is added in the processor's caches. */
    const bool staging = config->staging && config->A == 1 && device->ops->host_memory;
    bool merges = false;
    lks__nodes_rehearse(config->V, d->first_leaf, d->end_leaf, staging, &d->nodes_final, &merges);
    lks_status st = cut_buckets(d);
    if (st == LKS_OK && staging && merges)
        st = open_staging(d);
    if (st == LKS_OK)
        st = open_memory(d, staging);
    if (st == LKS_OK && device->joined)
        st = open_exchange(d);
    d->config.owners = NULL; /* the caller's */
    if (st != LKS_OK) {
        lks__ddp_close(d);
        return st;
    }
    *ddp_p = d;
    return LKS_OK;
}

/* The group completes its operations in flight without us. After lks_comm_close() they don't
 * exist. */
static void forget_works(lks__ddp *d)
{
    for (int i = 0; i < d->n_buckets; i++) {
        if (!lks__comm_is_closed(d->comm))
            lks__work_forget(d->buckets[i].work);
        d->buckets[i].work = NULL;
    }
}

void lks__ddp_close(lks__ddp *d)
{
    if (d == NULL)
        return;
    lks__device_drain(d->device);
    lks__ddp_exchange_close(d->exchange);
    forget_works(d);
    lks__comm_release(d->comm);
    for (int i = 0; i < d->n_buckets; i++) {
        free(d->buckets[i].block_start);
        free(d->buckets[i].block_bytes);
    }
    for (int i = 0; i < d->n_arenas; i++)
        if (d->arena[i] != NULL && d->arena[i] != d->sent[i])
            d->device->ops->release(d->device, d->arena[i],
                                    d->table->trained_count * sizeof(float));
    free(d->buckets);
    free(d->staging);
    free(d->shift);
    free(d);
}

/* --- one step -------------------------------------------------------------------------------- */

/* dst[start, start + count) += src[start, …). */
static void add_range(const lks__ddp *d, float *dst, const float *src, size_t start, size_t count)
{
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    d->device->layers->accumulate(d->device->ex, dst + start, src + start, count);
    lks__trace_end();
}

static void clear(const lks__ddp *d, float *dst, size_t count)
{
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    d->device->layers->clear(d->device->ex, dst, count);
    lks__trace_end();
}

/* Add a bucket of the current leaf, which is in arena[nodes.n] or in the staging buffer, to its
 * neighbours' nodes. */
static void fold_bucket(const lks__ddp *d, const struct bucket *b)
{
    int i = d->nodes.n, end = d->nodes.n - d->merges;
    if (d->in_staging) {
        float *bucket = d->staging + (b->start - d->shift[b->last_group]);
        add_range(d, d->arena[--i] + b->start, bucket, 0, b->count);
        clear(d, bucket, b->count);
    }
    for (; i > end; i--)
        add_range(d, d->arena[i - 1], d->arena[i], b->start, b->count);
}

/* Start the reduction of a bucket of this rank's nodes, which is now complete. */
static lks_status start_bucket(lks__ddp *d, struct bucket *b)
{
    if (d->exchange != NULL) {
        lks__ddp_exchange_start(d->exchange, d->next_start++);
        return LKS_OK;
    }
    lks_part parts[LKS__MAX_ARENAS];
    for (int i = 0; i < d->nodes_final.n; i++)
        parts[i] = (lks_part){d->nodes_final.node[i], d->sent[i] + b->start};
    lks_reduction r = {
        .label = (int)(b - d->buckets),
        .n_leaves = d->config.V,
        .parts = parts,
        .n_parts = d->nodes_final.n,
        .scale = scale_of(&d->config),
        .count = b->count,
        .scatter = d->config.zero,
        .wire = d->config.wire,
        .block_start = b->block_start,
        .n_blocks = b->n_blocks,
        .block_sumsq = d->block_sumsq + b->first_block,
        .dst = (float *)lks_comm_peer(d->comm, d->sent[0], lks_comm_leader(d->comm)) + b->start,
    };
    b->started = lks__sys_now();
    lks_work *work;
    LKS__CALLED_BY(DDP_STEP);
    LKS__TRY(lks_comm_reduce_start(d->comm, &r, &work));
    b->work = work;
    d->next_start++;
    return LKS_OK;
}

/* A device with its own memory may not have computed the bucket yet. So the copy for the group is
 * queued after it, and a mark after that copy tells when the group may use it. An exchange between
 * devices is queued after it, too, and needs no copy. */
static void copy_bucket(lks__ddp *d, struct bucket *b)
{
    if (d->device->ops->host_memory || d->exchange != NULL)
        return;
    lks__device_order(d->device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    for (int i = 0; i < d->nodes_final.n; i++)
        d->device->ops->copy(d->device, LKS__QUEUE_COPY, d->sent[i] + b->start,
                             d->arena[i] + b->start, b->count * sizeof(float));
    b->copied = d->device->ops->mark(d->device, LKS__QUEUE_COPY);
}

/* Pass on the buckets that are complete and copied; `all`: wait for the others. */
static lks_status start_copied(lks__ddp *d, bool all)
{
    while (d->next_start < d->next_bucket) {
        struct bucket *b = &d->buckets[d->next_start];
        bool passed = true;
        if (all)
            LKS__TRY(lks__device_wait(d->device, b->copied));
        else
            LKS__TRY(d->device->ops->passed(d->device, b->copied, &passed));
        if (!passed)
            return LKS_OK;
        LKS__TRY(start_bucket(d, b));
    }
    return LKS_OK;
}

void lks__ddp_group_done(void *ddp, int group)
{
    lks__ddp *d = ddp;
    if (!(d->last || d->in_staging) || d->failed != LKS_OK)
        return;
    struct bucket *b = &d->buckets[d->next_bucket];
    if (b->last_group == group) {
        fold_bucket(d, b);
        if (d->last)
            copy_bucket(d, b);
        d->next_bucket++;
    }
    if (!d->last)
        return;
    d->failed = start_copied(d, false);
    if (d->failed == LKS_OK) /* for buckets that other ranks have finished by now */
        d->failed = lks_comm_progress(d->comm);
}

static double squares_of(const lks__ddp *d, size_t block)
{
    return d->exchange != NULL ? lks__ddp_exchange_squares(d->exchange, block)
                               : d->block_sumsq[block];
}

static double norm_of(const lks__ddp *d)
{
    double sum = 0.0;
    for (size_t i = 0; i < d->table->n_tensors; i++) {
        const lks__tensor *t = &d->table->tensors[i];
        for (size_t b = 0; !t->frozen && b < t->n_blocks; b++)
            sum += squares_of(d, t->first_block + b);
    }
    return sqrt(sum);
}

void lks__ddp_begin(lks__ddp *d)
{
    forget_works(d); /* left by a step that failed */
    d->nodes.n = d->n_done = 0;
    d->next_bucket = d->next_start = 0;
    d->last = false;
    d->failed = LKS_OK;
    d->micro = (lks__ddp_micro){d->first_leaf, -1, NULL};
}

float *lks__ddp_leaf(lks__ddp *d)
{
    d->nodes_after = d->nodes;
    d->merges = lks__nodes_push(d->config.V, d->first_leaf + d->n_done++, &d->nodes_after);
    d->in_staging = d->staging != NULL && d->merges > 0;
    d->next_bucket = 0;
    return d->in_staging ? d->staging : d->arena[d->nodes.n];
}

const size_t *lks__ddp_shift(const lks__ddp *d)
{
    return d->in_staging ? d->shift : NULL;
}

void lks__ddp_last(lks__ddp *d)
{
    d->last = true;
}

/* Merge the leaf with the nodes that it completes. The last leaf, and one in the staging buffer,
 * were already merged bucket by bucket. */
lks_status lks__ddp_leaf_end(lks__ddp *d)
{
    if (d->failed != LKS_OK || d->last)
        return d->failed;
    const int leaf = d->nodes.n;
    d->nodes = d->nodes_after;
    for (int i = leaf; !d->in_staging && i > leaf - d->merges; i--)
        add_range(d, d->arena[i - 1], d->arena[i], 0, d->table->trained_count);
    return LKS_OK;
}

bool lks__ddp_next(lks__ddp *d, lks__ddp_micro *micro)
{
    lks__ddp_micro *at = &d->micro;
    if (d->failed != LKS_OK)
        return false;
    if (++at->m == d->config.A) {
        d->failed = lks__ddp_leaf_end(d);
        at->v++;
        at->m = 0;
    }
    if (d->failed != LKS_OK || at->v == d->end_leaf)
        return false;
    if (at->m == 0) {
        at->grads = lks__ddp_leaf(d);
        if (!d->in_staging)
            clear(d, at->grads, d->table->trained_count);
    }
    if (at->v + 1 == d->end_leaf && at->m + 1 == d->config.A)
        lks__ddp_last(d);
    *micro = *at;
    return true;
}

/* Between micro-steps no bucket has been announced, and the staging buffer is zero. */
void lks__ddp_skip(lks__ddp *d)
{
    d->last = true;
    while (d->failed == LKS_OK && d->next_start < d->n_buckets)
        d->failed = start_bucket(d, &d->buckets[d->next_start]);
}

/* Every wait releases its operation; the first failure is returned. */
static lks_status wait_all(lks__ddp *d)
{
    lks_status first = LKS_OK;
    for (int i = 0; i < d->n_buckets; i++) {
        if (d->buckets[i].work == NULL)
            continue;
        lks_status st = lks_work_wait(d->buckets[i].work);
        d->buckets[i].work = NULL;
        lks__trace_past(LKS__SPAN_BUCKET, i, d->buckets[i].started);
        if (first == LKS_OK)
            first = st;
    }
    return first;
}

lks_status lks__ddp_finish(lks__ddp *d, const float **grads_p, double *norm_p)
{
    LKS__TRY(d->failed);
    LKS__TRY(start_copied(d, true));
    LKS__TRY(wait_all(d));
    if (d->exchange != NULL)
        LKS__TRY(lks__ddp_exchange_finish(d->exchange));
    *grads_p =
        d->exchange != NULL ? NULL : lks_comm_peer(d->comm, d->sent[0], lks_comm_leader(d->comm));
    *norm_p = norm_of(d);
    return LKS_OK;
}

float *lks__ddp_device_grads(lks__ddp *d)
{
    return d->arena[0];
}

bool lks__ddp_is_closed(const lks__ddp *d)
{
    return lks__comm_is_closed(d->comm);
}

void lks__ddp_spread(lks__ddp *d, float *arena)
{
    if (d->exchange != NULL)
        lks__ddp_exchange_spread(d->exchange, arena);
}

lks_status lks__ddp_release(lks__ddp *d)
{
    return d->exchange != NULL ? LKS_OK : lks_comm_barrier(d->comm);
}

void lks__ddp_share(const lks__ddp *d, size_t n, size_t *first, size_t *end)
{
    const lks_world *w = lks_comm_world(d->comm);
    lks__ddp_local_part(0, n, w->local_rank, w->local_world_size, first, end);
}

/* --- ZeRO-1: moments divided over hosts ------------------------------------------------------ */

int lks__ddp_n_updates(const lks__ddp *d)
{
    return d->config.zero || d->exchange != NULL ? d->n_buckets : 1;
}

/* Local rank r takes the r-th part of blocks [*first, *end), the host's share. In an exchange
 * between devices each rank takes its own part. */
void lks__ddp_update_range(const lks__ddp *d, int i, size_t *first, size_t *end)
{
    const lks_world *w = lks_comm_world(d->comm);
    size_t from, to;
    if (d->exchange != NULL) {
        lks__ddp_exchange_share(d->exchange, d->buckets[i].n_blocks, first, end);
        *first += d->buckets[i].first_block;
        *end += d->buckets[i].first_block;
        return;
    }
    if (!d->config.zero) {
        lks__ddp_share(d, d->table->trained_blocks, first, end);
        return;
    }
    lks_comm_host_share(d->comm, d->buckets[i].n_blocks, &from, &to);
    from += d->buckets[i].first_block;
    to += d->buckets[i].first_block;
    lks__ddp_local_part(from, to, w->local_rank, w->local_world_size, first, end);
}

lks_status lks__ddp_gather(lks__ddp *d, float *arena, bool to_first)
{
    for (int i = 0; d->config.zero && i < d->n_buckets; i++) {
        const struct bucket *b = &d->buckets[i];
        LKS__TRY(lks_comm_gather_shares(d->comm, arena + b->start, b->block_bytes, b->n_blocks,
                                        to_first));
    }
    return LKS_OK;
}

void lks__ddp_drop(lks__ddp *d, float *arena)
{
    for (int i = 0; d->config.zero && i < d->n_buckets; i++) {
        const struct bucket *b = &d->buckets[i];
        size_t from, to, at = b->start * sizeof(float);
        lks_comm_host_share(d->comm, b->n_blocks, &from, &to);
        lks_comm_drop(d->comm, arena, at, at + b->block_bytes[from]);
        lks_comm_drop(d->comm, arena, at + b->block_bytes[to], at + b->block_bytes[b->n_blocks]);
    }
}
