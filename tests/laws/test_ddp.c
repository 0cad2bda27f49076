/* Gradients of virtual ranks give the canonical sum, bit for bit, however ranks carry them out.
 * Ranks are threads here, so that sanitizers see all of them, and gradients are made up. With
 * the argument `deferred` each rank has a deferred device (tests/device). */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend.h"
#include "comm/ranks.h"
#include "compute/cpu/device.h"
#include "compute/mirror.h"
#include "ddp/reducer.h"
#include "ddp/verify.h"
#include "device/deferred.h"
#include "model/model.h"

enum { MAX_RANKS = 8, STEPS = 2 };

static lks__table table;
static lks__kernels kernels;
static bool on_deferred;
static unsigned seed; /* of the deferred devices: each has another one */

static int open_table(void **state)
{
    const lks__model_config config = {.ops = &lks__model_gpt2,
                                      .n_layer = 2,
                                      .n_head = 3,
                                      .n_embd = 39,
                                      .block_size = 20,
                                      .vocab_size = 61,
                                      .bias = true};
    assert_ok(lks__model_table(&config, &table));
    assert_ok(lks__kernels_open(LKS__CPU_PLAIN, &kernels));
    return 0;
}

static int close_table(void **state)
{
    lks__table_free(&table);
    return 0;
}

/* ---- made-up gradients ------------------------------------------------------------------- */

/* For micro-batch (v, m) in a step: of all magnitudes, so that each order of addition rounds
 * differently. */
static float made_up(int step, int v, int m, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)v, (uint32_t)m, (uint32_t)i};
    uint32_t words[4];
    lks__philox4x32(lks__philox_key_of(1), counter, words);
    return ldexpf((float)(int32_t)words[0], -31 - (int)(words[1] % 12));
}

/* `grads` begins `shift` floats after the start of the arena. */
static void add_group(float *grads, size_t shift, int group, int step, int v, int m)
{
    for (size_t t = 0; t < table.n_tensors; t++) {
        const lks__table_tensor *tensor = &table.tensors[t];
        for (size_t i = 0; tensor->group == group && i < tensor->count; i++)
            grads[tensor->offset - shift + i] += made_up(step, v, m, tensor->offset + i);
    }
}

/* The definition: each virtual rank's micro-batches in order, then neighbours level by level, then
 * one multiplication. Returns the norm. */
static double plain_mean(int V, int A, int step, float *mean)
{
    float **leaf = calloc((size_t)V, sizeof *leaf);
    for (int v = 0; v < V; v++) {
        leaf[v] = calloc(table.count, sizeof **leaf);
        for (int m = 0; m < A; m++)
            for (int g = 0; g < table.n_groups; g++)
                add_group(leaf[v], 0, g, step, v, m);
    }
    for (size_t i = 0; i < table.count; i++) {
        for (int n = V; n > 1; n = (n + 1) / 2) {
            for (int v = 0; v < n / 2; v++)
                leaf[v][i] = leaf[2 * v][i] + leaf[2 * v + 1][i];
            if (n % 2 == 1)
                leaf[n / 2][i] = leaf[n - 1][i];
        }
        mean[i] = leaf[0][i] * (float)(1.0 / (V * A));
    }
    for (int v = 0; v < V; v++)
        free(leaf[v]);
    free(leaf);
    double sum = 0.0;
    for (size_t t = 0; t < table.n_tensors; t++)
        for (size_t b = 0; b < table.tensors[t].n_blocks; b++) {
            size_t block = table.tensors[t].first_block + b, start = table.block_start[block];
            sum += kernels.sumsq(mean + start, table.block_start[block + 1] - start);
        }
    return sqrt(sum);
}

/* ---- ranks ------------------------------------------------------------------------------- */

struct rank {
    lks_comm *comm;
    int V, A, failing_v;
    unsigned seed;
    size_t bucket_bytes;
    const float *mean[STEPS]; /* expected */
    double norm[STEPS];
    int step, n_micro;
    lks__device *device;
    lks__mirror made;  /* an arena for gradients on their way to a device */
    lks__mark *on_way; /* [n_groups] */
    float *params;     /* for the test of verify */
    size_t large;      /* floats of `params`, if they are not the table's */
    lks_status status;
    char said[1024];
};

/* The same on a device with memory of its own. */
static lks_status send_group(struct rank *r, float *grads, int group, int v, int m)
{
    const lks__table *t = &table;
    const size_t from = t->block_start[t->group_block[group]];
    const size_t n = t->block_start[t->group_block[group + 1]] - from;
    float *host = r->made.host, *dev = r->made.dev;
    LKS__TRY(lks__device_wait(r->device, r->on_way[group])); /* the last one has been read */
    memset(host + from, 0, n * sizeof *host);
    add_group(host, 0, group, r->step, v, m);
    lks__mirror_to_device(&r->made, LKS__QUEUE_COMPUTE, from * sizeof *host, n * sizeof *host);
    r->on_way[group] = r->device->ops->mark(r->device, LKS__QUEUE_COMPUTE);
    r->device->layers->accumulate(r->device->ex, grads + from, dev + from, n);
    return LKS_OK;
}

/* The effect of a product on a fresh gradient, before anything is added to it. */
static void overwrite(const struct rank *r, float *grads)
{
    for (size_t i = 0; i < table.n_tensors; i++)
        if (table.tensors[i].overwritten)
            r->device->layers->clear(r->device->ex, grads + table.tensors[i].offset,
                                     table.tensors[i].count);
}

static lks_status micro(struct rank *r, const lks__reducer_micro *at, lks__reducer *ddp)
{
    const size_t *shift = lks__reducer_shift(ddp);
    r->n_micro++;
    if (at->fresh)
        overwrite(r, at->grads);
    if (at->v == r->failing_v)
        return lks__fail(LKS_ERR_IO, "virtual rank %d has no data", at->v);
    for (int g = 0; g < table.n_groups; g++) {
        if (on_deferred)
            LKS__TRY(send_group(r, at->grads, g, at->v, at->m));
        else
            add_group(at->grads, shift == NULL ? 0 : shift[g], g, r->step, at->v, at->m);
        lks__reducer_group_done(ddp, g);
    }
    return LKS_OK;
}

static lks_status steps(struct rank *r, lks__reducer *ddp)
{
    for (r->step = 0; r->step < STEPS; r->step++) {
        const float *grads;
        double norm;
        lks__reducer_micro at;
        lks__reducer_begin(ddp);
        while (lks__reducer_next(ddp, &at))
            LKS__TRY(micro(r, &at, ddp));
        LKS__TRY(lks__reducer_finish(ddp, &grads, &norm));
        if (memcmp(grads, r->mean[r->step], table.count * sizeof *grads) != 0)
            return lks__fail(LKS_ERR_DIVERGED, "the mean gradient of step %d is another", r->step);
        if (memcmp(&norm, &r->norm[r->step], sizeof norm) != 0)
            return lks__fail(LKS_ERR_DIVERGED, "the norm of step %d is %.17g, not %.17g", r->step,
                             norm, r->norm[r->step]);
        LKS__TRY(lks__memory_release(lks__reducer_memory(ddp)));
    }
    int V = r->V, W = lks_comm_world_size(r->comm), rank = lks_comm_rank(r->comm);
    int own = (rank + 1) * V / W - rank * V / W;
    if (r->n_micro != own * r->A * STEPS)
        return lks__fail(LKS_ERR_DIVERGED, "%d micro-steps for %d virtual ranks", r->n_micro, own);
    return LKS_OK;
}

static lks_status failure(void *comm, bool others)
{
    return lks_comm_progress(comm);
}

static lks_status run_ddp(struct rank *r)
{
    lks__pool *pool;
    LKS__TRY(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, NULL, &pool));
    const lks__exec ex = {.k = &kernels, .pool = pool};
    const lks__reducer_config config = {
        .V = r->V, .A = r->A, .bucket_bytes = r->bucket_bytes, .staging = true};
    lks__device cpu = lks__device_cpu(&ex);
    lks__reducer *ddp = NULL;
    lks_status st = LKS_OK;
    r->device = &cpu;
    if (on_deferred) {
        st = deferred_open(&ex, r->seed, &r->device);
        r->device->waiter = (lks__waiter){.failure = failure, .ctx = r->comm};
        LKS__THEN(st, lks__mirror_open(r->device, table.count * sizeof(float), &r->made));
        r->on_way = calloc((size_t)table.n_groups, sizeof *r->on_way);
    }
    lks__comm_use(r->comm, &ex);
    LKS__THEN(st, lks__reducer_open(&config, r->comm, &table, r->device, &ddp));
    LKS__THEN(st, steps(r, ddp));
    if (st != LKS_OK)
        lks_comm_abort(r->comm, lks_last_error());
    lks__reducer_close(ddp);
    if (on_deferred) {
        lks__mirror_close(&r->made);
        free(r->on_way);
    }
    lks__device_close(r->device);
    lks__comm_use(r->comm, &(lks__exec){.k = NULL});
    lks__pool_close(pool);
    return st;
}

static lks_status verify(const struct rank *r)
{
    const lks__table too_large = {.n_tensors = SIZE_MAX / sizeof(lks__named_floats)};
    if (r->large == SIZE_MAX) /* no memory for the list of its tensors */
        return lks__params_verify(r->comm, &too_large, r->params);
    if (r->large == 0)
        return lks__params_verify(r->comm, &table, r->params);
    const lks__named_floats spans[] = {{"first", r->params, 1}, {"large", r->params, r->large}};
    return lks__named_floats_verify(r->comm, spans, 2);
}

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    r->status = r->params != NULL ? verify(r) : run_ddp(r);
    if (r->status != LKS_OK)
        snprintf(r->said, sizeof r->said, "%s", lks_last_error());
}

/* Afterwards `ranks` holds all ranks' statuses and sentences. */
static void run_ranks(struct rank *ranks, int W)
{
    for (int i = 0; i < W; i++)
        ranks[i].seed = seed++;
    ranks_as_threads(W, 30, rank_main, ranks, sizeof *ranks);
}

static void check_sum(int V, int W, int A, size_t bucket_bytes, float *const mean[STEPS],
                      const double norm[STEPS])
{
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < W; i++)
        ranks[i] = (struct rank){.V = V,
                                 .A = A,
                                 .failing_v = -1,
                                 .bucket_bytes = bucket_bytes,
                                 .mean = {mean[0], mean[1]},
                                 .norm = {norm[0], norm[1]}};
    run_ranks(ranks, W);
    for (int i = 0; i < W; i++)
        if (ranks[i].status != LKS_OK)
            fail_msg("V = %d, W = %d, A = %d, buckets of %zu bytes, rank %d: %s", V, W, A,
                     bucket_bytes, i, ranks[i].said);
}

/* ---- tests ------------------------------------------------------------------------------- */

TEST(test_canonical_sum)
{
    static const struct {
        int V, A;
    } shapes[] = {{1, 1}, {1, 3}, {2, 1}, {3, 2}, {4, 1},  {5, 1},
                  {6, 1}, {7, 2}, {8, 1}, {8, 2}, {11, 1}, {13, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int V = shapes[s].V, A = shapes[s].A;
        float *mean[STEPS];
        double norm[STEPS];
        for (int i = 0; i < STEPS; i++) {
            mean[i] = lks_test_calloc(table.count, sizeof *mean[i]);
            norm[i] = plain_mean(V, A, i, mean[i]);
            assert_true(norm[i] > 0.0);
        }
        for (int W = 1; W <= V && W <= MAX_RANKS; W++) {
            check_sum(V, W, A, 0, mean, norm);       /* a bucket for each layer */
            check_sum(V, W, A, 1 << 30, mean, norm); /* one bucket for all */
        }
        for (int i = 0; i < STEPS; i++)
            free(mean[i]);
    }
}

/* Arenas of the rank of W that needs most. */
static int arenas_of(int V, int W, bool staging)
{
    bool merges;
    int left;
    return lks__tree_nodes_rehearse_all(V, W, staging, &merges, &left);
}

/* Each rank has the virtual ranks of the definition; their arenas are at most the tree's depth. */
TEST(test_shares)
{
    for (int V = 1; V <= 64; V++)
        for (int W = 1; W <= V; W++) {
            int next = 0, most = 0;
            for (int r = 0; r < W; r++) {
                assert_int_equal(lks__first_leaf(V, W, r), next);
                next = (r + 1) * V / W;
                if (next - r * V / W > most)
                    most = next - r * V / W;
            }
            assert_int_equal(lks__first_leaf(V, W, W), V);
            int arenas = arenas_of(V, W, false), depth = (int)ceil(log2(most));
            assert_in_range(arenas, 1, 2 * depth + 2);
            if (V % W == 0 && (V & (V - 1)) == 0 && (W & (W - 1)) == 0)
                assert_int_equal(arenas, depth + 1);
            int fewer = arenas_of(V, W, true); /* a leaf that is not merged needs an arena */
            assert_int_equal(fewer,
                             V % W == 0 && most > 1 && (V & (V - 1)) == 0 ? arenas - 1 : fewer);
            assert_in_range(fewer, arenas - (most > 1), arenas);
        }
    assert_int_equal(arenas_of(8, 8, true), 1);
}

/* There is a staging buffer if a rank merges leaves; it has room for the largest bucket and the
 * last. */
TEST(test_staging)
{
    lks__reducer_config config = {.V = 8, .A = 1, .bucket_bytes = 1 << 30, .staging = true};
    assert_int_equal(lks__reducer_staging_floats(&config, &table, 8), 0);
    for (int W = 1; W < 8; W++)
        assert_int_equal(lks__reducer_staging_floats(&config, &table, W), table.count);
    size_t most = 0, floats = 0;
    for (int g = 0; g < table.n_groups; g++) {
        most = floats > most ? floats : most;
        floats =
            table.block_start[table.group_block[g + 1]] - table.block_start[table.group_block[g]];
    }
    config.bucket_bytes = 0;
    assert_int_equal(lks__reducer_staging_floats(&config, &table, 4), most + floats);
    config.A = 2;
    assert_int_equal(lks__reducer_staging_floats(&config, &table, 4), 0);
}

/* A rank whose micro-step fails gets its own error, the others get one that names it. */
TEST(test_failing_rank)
{
    for (int W = 2; W <= 4; W++) {
        struct rank ranks[MAX_RANKS];
        for (int i = 0; i < W; i++)
            ranks[i] = (struct rank){.V = 8, .A = 1, .failing_v = 7};
        float *zero = lks_test_calloc(table.count, sizeof *zero);
        for (int i = 0; i < W; i++)
            ranks[i].mean[0] = ranks[i].mean[1] = zero;
        run_ranks(ranks, W);
        free(zero);
        for (int i = 0; i < W; i++) {
            assert_int_equal(ranks[i].status, i == W - 1 ? LKS_ERR_IO : LKS_ERR_PEER);
            assert_contains(ranks[i].said, "virtual rank 7 has no data");
            if (i < W - 1)
                assert_contains(ranks[i].said, lks_test_text("rank %d", W - 1));
        }
    }
}

/* Parameters that differ in one bit: every rank gets rank, tensor and index. */
TEST(test_verify)
{
    enum { W = 4 };
    struct rank ranks[W] = {{0}};
    for (int i = 0; i < W; i++) {
        ranks[i].params = lks_test_calloc(table.count, sizeof(float));
    }
    run_ranks(ranks, W);
    for (int i = 0; i < W; i++)
        assert_int_equal(ranks[i].status, LKS_OK);
    for (size_t t = 0; t < table.n_tensors; t++) {
        const lks__table_tensor *tensor = &table.tensors[t];
        size_t at = tensor->count - 1;
        ranks[2].params[tensor->offset + at] = -0.0f;
        run_ranks(ranks, W);
        for (int i = 0; i < W; i++) {
            assert_int_equal(ranks[i].status, LKS_ERR_DIVERGED);
            assert_contains(ranks[i].said, lks_test_text("rank 2 has -0 in tensor %s at index %zu",
                                                         tensor->name, at));
        }
        ranks[2].params[tensor->offset + at] = 0.0f;
    }
    for (int i = 0; i < W; i++)
        free(ranks[i].params);
}

/* The same for a tensor that is compared in pieces: in which of them doesn't matter. */
TEST(test_verify_large)
{
    enum { W = 2, LARGE = 600000 };
    static const size_t places[] = {1, 262143, 262144, 262145, 524287, 524288, LARGE - 1};
    struct rank ranks[W] = {{0}};
    for (int i = 0; i < W; i++) {
        ranks[i].large = LARGE;
        ranks[i].params = lks_test_calloc(LARGE, sizeof(float));
    }
    run_ranks(ranks, W);
    for (int i = 0; i < W; i++)
        assert_int_equal(ranks[i].status, LKS_OK);
    for (size_t p = sizeof places / sizeof places[0]; p-- > 0;) { /* the first of all is named */
        ranks[1].params[places[p]] = 0.5f;
        run_ranks(ranks, W);
        for (int i = 0; i < W; i++) {
            assert_int_equal(ranks[i].status, LKS_ERR_DIVERGED);
            assert_contains(
                ranks[i].said,
                lks_test_text("rank 1 has 0.5 in tensor large at index %zu,", places[p]));
        }
    }
    for (int i = 0; i < W; i++)
        free(ranks[i].params);
}

/* A rank without memory: the others, which compare already, learn it. */
TEST(test_verify_without_memory)
{
    struct rank ranks[2] = {{.params = calloc(table.count, sizeof(float))}};
    assert_non_null(ranks[0].params);
    ranks[1] = (struct rank){.params = ranks[0].params, .large = SIZE_MAX};
    run_ranks(ranks, 2);
    assert_int_equal(ranks[1].status, LKS_ERR_NOMEM);
    assert_int_equal(ranks[0].status, LKS_ERR_PEER);
    assert_contains(ranks[0].said, "rank 1 failed: no memory to compare parameters");
    free(ranks[0].params);
}

int main(int argc, char **argv)
{
    on_deferred = argc == 2 && strcmp(argv[1], "deferred") == 0;
    if (on_deferred)
        lks_test_only("test_canonical_sum", "test_failing_rank");
    return lks_test_run_all(open_table, close_table);
}
