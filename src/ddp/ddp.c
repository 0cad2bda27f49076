#include "ddp/ddp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/sys.h"
#include "base/trace.h"
#include "comm/backend.h"
#include "comm/tree.h"

/* At most this many arenas are alive: one for each level of the tree on both flanks of an uneven
 * range, and one being filled. Virtual ranks go up to 1024. */
enum { MAX_ARENAS = 24, ADD_FLOATS = 1 << 16 };

struct bucket {
    int last_group; /* complete when this group is */
    size_t first_block, n_blocks;
    size_t start, count; /* floats */
    size_t *block_start; /* [n_blocks + 1], from the bucket's start */
    size_t *block_bytes; /* the same in bytes */
    lks_work *work;
    double started; /* lks__sys_now() */
};

/* Complete nodes of the tree; node[i] stands in arena[i]. */
struct nodes {
    lks_node node[MAX_ARENAS];
    int n;
};

struct lks__ddp {
    lks__ddp_config config;
    lks_comm *comm;
    const lks__table *table;
    const lks__exec *ex;
    int first_leaf, end_leaf;

    float *arena[MAX_ARENAS];
    int n_arenas;
    float *window; /* of the largest bucket, and the last; zero between leaves; or NULL */
    size_t window_floats;
    size_t *shift;      /* [n_groups] from a bucket's place in an arena to that in the window */
    int merges;         /* of the leaf under way, into arena[nodes.n - 1] and on */
    bool windowed;      /* the leaf under way stands in the window */
    struct nodes nodes; /* before the leaf under way, which stands in arena[nodes.n] */
    struct nodes nodes_after; /* once it has been merged */
    struct nodes nodes_final; /* once the last one has */
    int n_done;               /* leaves begun in this step */
    lks__ddp_micro micro;     /* the micro-step under way; m is -1 before the step's first */

    struct bucket *buckets;
    int n_buckets, next_bucket;
    double *block_sumsq; /* common to all ranks */
    bool last;           /* in the last micro-step of this rank */
    lks_status failed;   /* first failure inside lks__ddp_group_done() */
};

int lks__ddp_first_leaf(int V, int W, int rank)
{
    return (int)((long)rank * V / W);
}

/* --- the stack of nodes ---------------------------------------------------------------------- */

/* Put leaf v on top. Nodes that only lack a neighbour move up unchanged; two siblings on top become
 * their parent. Returns how many additions that takes, each of arena[i + 1] into arena[i], deepest
 * last. */
static int push_leaf(int V, int v, struct nodes *s)
{
    int additions = 0;
    s->node[s->n++] = (lks_node){0, v};
    for (;;) {
        lks_node *top = &s->node[s->n - 1];
        while (!lks__tree_is_root(V, *top) && !lks__tree_has_sibling(V, *top))
            *top = lks__tree_parent(*top);
        if (s->n < 2 || lks__tree_is_root(V, *top))
            return additions;
        lks_node *below = &s->node[s->n - 2];
        if (below->level != top->level || below->index + 1 != top->index || below->index % 2 != 0)
            return additions;
        *below = lks__tree_parent(*below);
        s->n--;
        additions++;
    }
}

/* Walk through leaves [first, end) without their gradients: what remains stands in *s. Returns how
 * many arenas are needed at once. *merges_p: some are merged. */
static int rehearse(int V, int first, int end, bool windows, struct nodes *s, bool *merges_p)
{
    int most = 0;
    s->n = 0;
    for (int v = first; v < end; v++) {
        int needed = s->n + 1;
        bool merged = push_leaf(V, v, s) > 0;
        if (merged && windows)
            needed--;
        if (needed > most)
            most = needed;
        *merges_p |= merged;
    }
    return most;
}

/* The same of each of W ranks: the most that one needs. */
static int rehearse_all(int V, int W, bool windows, bool *merges_p)
{
    int most = 0;
    *merges_p = false;
    for (int r = 0; r < W; r++) {
        struct nodes left;
        int n = rehearse(V, lks__ddp_first_leaf(V, W, r), lks__ddp_first_leaf(V, W, r + 1), windows,
                         &left, merges_p);
        if (n > most)
            most = n;
    }
    return most;
}

int lks__ddp_arenas(int V, int W, bool windows)
{
    bool merges;
    return rehearse_all(V, W, windows, &merges);
}

/* --- set-up ---------------------------------------------------------------------------------- */

static size_t floats_of(const lks__table *t, int first_group, int end_group)
{
    return t->block_start[t->group_block[end_group]] - t->block_start[t->group_block[first_group]];
}

/* Where the bucket that begins with group `first` ends. */
static int bucket_end(const lks__table *t, size_t bucket_bytes, int first)
{
    int end = first + 1;
    while (end < t->n_groups && floats_of(t, first, end) * sizeof(float) < bucket_bytes)
        end++;
    return end;
}

/* The last bucket (an embedding that is the head as well) is written from the first layer on: it
 * has a place of its own behind *before_p floats for the largest of the others. */
static size_t measure_window(const lks__table *t, size_t bucket_bytes, size_t *before_p)
{
    size_t most = 0, floats = 0;
    for (int g = 0, end; g < t->n_groups; g = end) {
        most = floats > most ? floats : most;
        end = bucket_end(t, bucket_bytes, g);
        floats = floats_of(t, g, end);
    }
    *before_p = most;
    return most + floats;
}

size_t lks__ddp_window_floats(const lks__ddp_config *config, const lks__table *table, int W)
{
    bool merges;
    size_t before;
    rehearse_all(config->V, W, true, &merges);
    return config->windows && config->A == 1 && merges
               ? measure_window(table, config->bucket_bytes, &before)
               : 0;
}

static lks_status cut_buckets(lks__ddp *d)
{
    const lks__table *t = d->table;
    d->buckets = calloc((size_t)t->n_groups, sizeof *d->buckets);
    if (d->buckets == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d buckets", t->n_groups);
    for (int g = 0, end; g < t->n_groups; g = end) {
        end = bucket_end(t, d->config.bucket_bytes, g);
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

static lks_status open_window(lks__ddp *d)
{
    const struct bucket *last = &d->buckets[d->n_buckets - 1];
    size_t before;
    d->window_floats = measure_window(d->table, d->config.bucket_bytes, &before);
    d->window = aligned_alloc(64, lks__round_up(d->window_floats * sizeof(float), 64));
    d->shift = calloc((size_t)d->table->n_groups, sizeof *d->shift);
    if (d->window == NULL || d->shift == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a staging buffer of %zu gradients",
                         d->window_floats);
    memset(d->window, 0, d->window_floats * sizeof(float));
    const struct bucket *b = d->buckets;
    for (int g = 0; g < d->table->n_groups; g++) {
        d->shift[g] = b->start - (b == last ? before : 0);
        b += g == b->last_group;
    }
    return LKS_OK;
}

lks_status lks__ddp_open(const lks__ddp_config *config, lks_comm *comm, const lks__table *table,
                         const lks__exec *ex, lks__ddp **ddp_p)
{
    int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    lks__ddp *d = calloc(1, sizeof *d);
    if (d == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for data-parallel state");
    d->config = *config;
    d->comm = comm;
    lks__comm_hold(comm);
    d->table = table;
    d->ex = ex;
    d->first_leaf = lks__ddp_first_leaf(config->V, W, rank);
    d->end_leaf = lks__ddp_first_leaf(config->V, W, rank + 1);
    const bool windows = config->windows && config->A == 1;
    bool merges = false;
    rehearse(config->V, d->first_leaf, d->end_leaf, windows, &d->nodes_final, &merges);
    d->n_arenas = lks__ddp_arenas(config->V, W, windows);
    lks_status st = cut_buckets(d);
    if (st == LKS_OK && windows && merges)
        st = open_window(d);
    for (int i = 0; i < d->n_arenas && st == LKS_OK; i++)
        st = lks_comm_alloc(comm, LKS_MEM_OWN, table->count * sizeof(float), (void **)&d->arena[i]);
    if (st == LKS_OK)
        st = lks_comm_alloc(comm, LKS_MEM_COMMON, table->n_blocks * sizeof(double),
                            (void **)&d->block_sumsq);
    if (st != LKS_OK) {
        lks__ddp_close(d);
        return st;
    }
    *ddp_p = d;
    return LKS_OK;
}

/* The group goes on with what is in flight, without us. After lks_comm_close() works are gone. */
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
    forget_works(d);
    lks__comm_release(d->comm);
    for (int i = 0; i < d->n_buckets; i++) {
        free(d->buckets[i].block_start);
        free(d->buckets[i].block_bytes);
    }
    free(d->buckets);
    free(d->window);
    free(d->shift);
    free(d);
}

/* --- one step -------------------------------------------------------------------------------- */

struct range {
    const lks__ddp *d;
    float *dst;
    const float *src; /* NULL: dst is set to zero */
    size_t count;
};

static void range_task(void *ctx, size_t task, int thread)
{
    const struct range *r = ctx;
    size_t at = task * ADD_FLOATS, n = r->count - at < ADD_FLOATS ? r->count - at : ADD_FLOATS;
    if (r->src == NULL)
        memset(r->dst + at, 0, n * sizeof(float));
    else
        r->d->ex->k->add(r->dst + at, r->src + at, n);
}

/* dst[start, start + count) += src[start, …), or zero. */
static void add_range(const lks__ddp *d, float *dst, const float *src, size_t start, size_t count)
{
    struct range r = {d, dst + start, src == NULL ? NULL : src + start, count};
    lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
    lks__pool_run(d->ex->pool, (count + ADD_FLOATS - 1) / ADD_FLOATS, range_task, &r);
    lks__trace_end();
}

/* A bucket of the leaf under way, in arena[nodes.n] or in the window, into its neighbours' nodes.
 */
static void fold_bucket(const lks__ddp *d, const struct bucket *b)
{
    int i = d->nodes.n, end = d->nodes.n - d->merges;
    if (d->windowed) {
        float *in_window = d->window + (b->start - d->shift[b->last_group]);
        struct range r = {d, d->arena[--i] + b->start, in_window, b->count};
        struct range zero = {d, in_window, NULL, b->count};
        const size_t n_tasks = (b->count + ADD_FLOATS - 1) / ADD_FLOATS;
        lks__trace_begin(LKS__SPAN_ACCUMULATE, -1);
        lks__pool_run(d->ex->pool, n_tasks, range_task, &r);
        lks__pool_run(d->ex->pool, n_tasks, range_task, &zero);
        lks__trace_end();
    }
    for (; i > end; i--)
        add_range(d, d->arena[i - 1], d->arena[i], b->start, b->count);
}

/* Hand a bucket of this rank's nodes, now whole, to the group. */
static lks_status start_bucket(lks__ddp *d, struct bucket *b)
{
    lks_part parts[MAX_ARENAS];
    for (int i = 0; i < d->nodes_final.n; i++)
        parts[i] = (lks_part){d->nodes_final.node[i], d->arena[i] + b->start};
    lks_reduction r = {
        .label = (int)(b - d->buckets),
        .n_leaves = d->config.V,
        .parts = parts,
        .n_parts = d->nodes_final.n,
        .scale = d->config.sums ? 1.0f : (float)(1.0 / ((double)d->config.V * d->config.A)),
        .count = b->count,
        .scatter = d->config.zero,
        .wire = d->config.wire,
        .block_start = b->block_start,
        .n_blocks = b->n_blocks,
        .block_sumsq = d->block_sumsq + b->first_block,
        .dst = (float *)lks_comm_peer(d->comm, d->arena[0], lks_comm_leader(d->comm)) + b->start,
    };
    b->started = lks__sys_now();
    lks_work *work;
    LKS__TRY(lks_comm_reduce_start(d->comm, &r, &work));
    b->work = work;
    return LKS_OK;
}

void lks__ddp_group_done(void *ddp, int group)
{
    lks__ddp *d = ddp;
    if (!(d->last || d->windowed) || d->failed != LKS_OK)
        return;
    struct bucket *b = &d->buckets[d->next_bucket];
    if (b->last_group == group) {
        fold_bucket(d, b);
        if (d->last)
            d->failed = start_bucket(d, b);
        if (d->failed != LKS_OK)
            return;
        d->next_bucket++;
    }
    if (d->last)
        d->failed =
            lks_comm_progress(d->comm); /* of buckets that other ranks have finished by now */
}

static double norm_of(const lks__ddp *d)
{
    double sum = 0.0;
    for (size_t i = 0; i < d->table->n_tensors; i++) {
        const lks__tensor *t = &d->table->tensors[i];
        for (size_t b = 0; b < t->n_blocks; b++)
            sum += d->block_sumsq[t->first_block + b];
    }
    return sqrt(sum);
}

void lks__ddp_begin(lks__ddp *d)
{
    forget_works(d); /* of a step that failed */
    d->nodes.n = d->n_done = 0;
    d->next_bucket = 0;
    d->last = false;
    d->failed = LKS_OK;
    d->micro = (lks__ddp_micro){d->first_leaf, -1, NULL};
}

float *lks__ddp_leaf(lks__ddp *d)
{
    d->nodes_after = d->nodes;
    d->merges = push_leaf(d->config.V, d->first_leaf + d->n_done++, &d->nodes_after);
    d->windowed = d->window != NULL && d->merges > 0;
    d->next_bucket = 0;
    return d->windowed ? d->window : d->arena[d->nodes.n];
}

const size_t *lks__ddp_shift(const lks__ddp *d)
{
    return d->windowed ? d->shift : NULL;
}

void lks__ddp_last(lks__ddp *d)
{
    d->last = true;
}

/* The leaf is merged with what it completes; the last one, and one in the window, were folded in
 * already, bucket by bucket. */
lks_status lks__ddp_leaf_end(lks__ddp *d)
{
    if (d->failed != LKS_OK || d->last)
        return d->failed;
    const int leaf = d->nodes.n;
    d->nodes = d->nodes_after;
    for (int i = leaf; !d->windowed && i > leaf - d->merges; i--)
        add_range(d, d->arena[i - 1], d->arena[i], 0, d->table->count);
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
        if (!d->windowed)
            add_range(d, at->grads, NULL, 0, d->table->count);
    }
    if (at->v + 1 == d->end_leaf && at->m + 1 == d->config.A)
        lks__ddp_last(d);
    *micro = *at;
    return true;
}

/* Between micro-steps no bucket is announced yet, and the window is zero. */
void lks__ddp_skip(lks__ddp *d)
{
    d->last = true;
    d->next_bucket = 0;
    while (d->failed == LKS_OK && d->next_bucket < d->n_buckets) {
        d->failed = start_bucket(d, &d->buckets[d->next_bucket]);
        if (d->failed == LKS_OK)
            d->next_bucket++;
    }
}

/* Waits release their operation whatever comes; the first failure is the one that counts. */
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
    LKS__TRY(wait_all(d));
    *grads_p = lks_comm_peer(d->comm, d->arena[0], lks_comm_leader(d->comm));
    *norm_p = norm_of(d);
    return LKS_OK;
}

bool lks__ddp_is_closed(const lks__ddp *d)
{
    return lks__comm_is_closed(d->comm);
}

lks_status lks__ddp_release(lks__ddp *d)
{
    return lks_comm_barrier(d->comm);
}

void lks__ddp_share(const lks__ddp *d, size_t *first, size_t *end)
{
    const lks_world *w = lks_comm_world(d->comm);
    size_t n = d->table->n_blocks, W = (size_t)w->local_world_size, rank = (size_t)w->local_rank;
    *first = rank * n / W;
    *end = (rank + 1) * n / W;
}

/* --- ZeRO-1: moments divided over hosts ------------------------------------------------------ */

int lks__ddp_n_updates(const lks__ddp *d)
{
    return d->config.zero ? d->n_buckets : 1;
}

/* Blocks [*first, *end) of the host's share, of which local rank r takes the r-th part. */
void lks__ddp_update_range(const lks__ddp *d, int i, size_t *first, size_t *end)
{
    const lks_world *w = lks_comm_world(d->comm);
    size_t from, to, W = (size_t)w->local_world_size, rank = (size_t)w->local_rank;
    if (!d->config.zero) {
        lks__ddp_share(d, first, end);
        return;
    }
    lks_comm_host_share(d->comm, d->buckets[i].n_blocks, &from, &to);
    from += d->buckets[i].first_block;
    to += d->buckets[i].first_block;
    *first = from + (to - from) * rank / W;
    *end = from + (to - from) * (rank + 1) / W;
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
