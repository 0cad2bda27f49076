/* Gradients that go from device to device: the lists of moves and sums that ranks make, carried out
 * by devices that are threads of this program, one call at a time. The sums are those of the whole
 * tree, on any number of ranks. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hier/pieces.h"
#include "comm/suite.h"
#include "compute/cpu/kernels.h"
#include "ddp/memory/exchange.h"
#include "ddp/nodes.h"

enum { MAX_RANKS = 8, MAX_LEAVES = 16 };

static atomic_int wrong;
static atomic_size_t shared; /* blocks in the ranks' shares */

#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond) && atomic_fetch_add(&wrong, 1) < 5)                                            \
            fprintf(stderr, "line %d: not true: %s\n", __LINE__, #cond);                           \
    } while (0)

/* --- the model ------------------------------------------------------------------------------- */

static lks__table table;
static lks__bucket two[2];
static const lks__buckets buckets = {two, 2};

/* Tensors of one block and of several, in three groups; one is frozen. */
static int make_table(void **state)
{
    static const lks__tensor_row rows[3][2] = {
        {{0, "a", {100, 70}, LKS__INIT_ONE, LKS__PARAM_MATRIX, true, false},
         {8, "b", {33, 0}, LKS__INIT_ONE, LKS__PARAM_SCALAR, true, false}},
        {{16, "c", {64, 301}, LKS__INIT_ONE, LKS__PARAM_MATRIX, true, false},
         {24, "frozen", {64, 80}, LKS__INIT_ONE, LKS__PARAM_MATRIX, true, false}},
        {{32, "d", {5000, 0}, LKS__INIT_ONE, LKS__PARAM_SCALAR, true, false},
         {40, "e", {90, 200}, LKS__INIT_ONE, LKS__PARAM_MATRIX, true, false}}};
    assert_ok(lks__table_open(&table, 6, 3));
    for (int g = 0; g < 3; g++)
        lks__table_add(&table, "", -1, g, rows[g], 2);
    for (size_t i = 0; i < table.n_tensors; i++)
        table.tensors[i].frozen = strcmp(table.tensors[i].name, "frozen") == 0;
    assert_ok(lks__table_lay_out(&table));
    const size_t first = table.group_block[1], all = table.trained_blocks;
    assert_true(first > 0 && first < all && all < table.n_blocks);
    two[0] = (lks__bucket){.n_blocks = first};
    two[1] = (lks__bucket){.first_block = first, .n_blocks = all - first};
    return 0;
}

static int free_table(void **state)
{
    lks__table_free(&table);
    return 0;
}

static float value(int leaf, size_t i)
{
    return (float)((i * 2654435761u + (size_t)leaf * 40503u) % 100003) * 1e-3f - 50;
}

static float sum_of_leaves(int first, int end, size_t i)
{
    float leaves[MAX_LEAVES];
    for (int v = first; v < end; v++)
        leaves[v - first] = value(v, i);
    return suite_tree_sum(leaves, end - first);
}

/* --- devices --------------------------------------------------------------------------------- */

struct rank {
    lks__device device;
    lks__ddp_exchange_config config;
    pthread_t id;
    size_t allocated;
    const lks__move *list; /* of the current call */
    size_t n;
};

static struct rank ranks[MAX_RANKS];
static pthread_barrier_t all_called, all_moved;

static struct rank *rank_of(lks__device *device)
{
    return (struct rank *)device; /* its first member */
}

static lks_status give(lks__device *device, size_t bytes, void **p)
{
    rank_of(device)->allocated += bytes;
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(*p, 0, bytes);
    return LKS_OK;
}

static lks_status give_staging(lks__device *device, size_t bytes, void **p)
{
    *p = calloc(1, bytes);
    return LKS_OK;
}

static void take(lks__device *device, void *p, size_t bytes)
{
    free(p);
}

static void copy(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static lks__mark mark(lks__device *device, lks__queue queue)
{
    return (lks__mark){queue, 1};
}

static void follow(lks__device *device, lks__queue queue, lks__mark m)
{
}

static lks_status passed(lks__device *device, lks__mark m, bool *passed_p)
{
    *passed_p = true;
    return LKS_OK;
}

/* Entry number k of the kind in the list of rank `of` with that other rank, or NULL. */
static const lks__move *find(int of, lks__move_kind kind, int other, int k)
{
    for (size_t i = 0; i < ranks[of].n; i++)
        if (ranks[of].list[i].kind == kind && ranks[of].list[i].rank == other && k-- == 0)
            return &ranks[of].list[i];
    return NULL;
}

static void move(lks__device *device, lks__queue queue, const lks__move *list, size_t n)
{
    struct rank *me = rank_of(device);
    const int rank = me->config.rank;
    int seen[3][MAX_RANKS] = {{0}};
    EXPECT(queue == LKS__QUEUE_COPY);
    me->list = list;
    me->n = n;
    pthread_barrier_wait(&all_called);
    for (size_t i = 0; i < n; i++) {
        const lks__move *m = &list[i], *theirs = NULL;
        const int k = seen[m->kind][m->rank]++;
        if (m->kind == LKS__MOVE_SPREAD)
            theirs = find(m->rank, LKS__MOVE_SPREAD, m->rank, k);
        else
            theirs = find(m->rank, m->kind == LKS__MOVE_SEND ? LKS__MOVE_RECEIVE : LKS__MOVE_SEND,
                          rank, k);
        EXPECT(theirs != NULL && theirs->bytes == m->bytes);
        if (m->kind != LKS__MOVE_SEND && m->rank != rank && theirs != NULL)
            memcpy(m->mem, theirs->mem, m->bytes);
    }
    pthread_barrier_wait(&all_moved);
}

/* The definition, element by element. */
static void sum(lks__device *device, lks__queue queue, const lks__shard_sum *s)
{
    for (size_t b = 0; b < s->n_blocks; b++) {
        const lks__shard_block *block = &s->blocks[b];
        for (size_t i = 0; i < block->count; i++) {
            float stack[64];
            int n = 0;
            for (int p = 0; p < s->n_parts; p++) {
                const int slot = s->parts[p].slot;
                stack[n++] =
                    slot < 0 ? s->own[-1 - slot][block->at + i]
                             : s->received[(size_t)slot * s->shard_floats + block->in_shard + i];
                for (int k = 0; k < s->parts[p].merges; k++, n--)
                    stack[n - 2] += stack[n - 1];
            }
            EXPECT(n == 1);
            s->own[0][block->at + i] = stack[0] * s->scale;
        }
        s->squares[b] = lks__sumsq_plain(s->own[0] + block->at, block->count);
    }
}

static const struct lks__exchange_ops exchange_ops = {.move = move, .sum = sum};
static const struct lks__device_ops device_ops = {.name = "threads",
                                                  .alloc = give,
                                                  .release = take,
                                                  .alloc_staging = give_staging,
                                                  .release_staging = take,
                                                  .copy = copy,
                                                  .mark = mark,
                                                  .follow = follow,
                                                  .passed = passed,
                                                  .exchange = &exchange_ops};

/* --- a rank ---------------------------------------------------------------------------------- */

static void *run_rank(void *arg)
{
    struct rank *me = arg;
    const lks__ddp_exchange_config *c = &me->config;
    const size_t count = table.trained_count, *start = table.block_start;
    float *arenas[LKS__MAX_ARENAS] = {NULL}, *expected = malloc(count * sizeof *expected);
    lks__tree_nodes nodes;
    bool merges = false;
    lks__ddp_exchange *x = NULL;
    double bytes = 0;
    lks__tree_nodes_rehearse(c->V, lks__first_leaf(c->V, c->W, c->rank),
                             lks__first_leaf(c->V, c->W, c->rank + 1), false, &nodes, &merges);
    for (size_t i = 0; i < count; i++)
        expected[i] = sum_of_leaves(0, c->V, i) * c->scale;
    me->config.arena = arenas;
    EXPECT(lks__ddp_exchange_open(c, &table, &me->device, &x) == LKS_OK);
    EXPECT(lks__ddp_exchange_bytes(c, &table, &bytes) == LKS_OK);
    EXPECT(bytes == (double)me->allocated);
    lks__ddp_exchange_close(x);
    for (int k = 0; k < nodes.n; k++)
        arenas[k] = malloc(count * sizeof(float));
    EXPECT(lks__ddp_exchange_open(c, &table, &me->device, &x) == LKS_OK);
    for (int step = 0; step < 2; step++) {
        for (int k = 0; k < nodes.n; k++) {
            int first, end;
            lks__tree_leaves(c->V, nodes.node[k], &first, &end);
            for (size_t i = 0; i < count; i++)
                arenas[k][i] = sum_of_leaves(first, end, i);
        }
        for (int b = 0; b < buckets.n; b++)
            lks__ddp_exchange_start(x, b);
        EXPECT(lks__ddp_exchange_finish(x) == LKS_OK);
        for (size_t b = 0; b < table.trained_blocks; b++)
            EXPECT(lks__ddp_exchange_squares(x, b) ==
                   lks__sumsq_plain(expected + start[b], start[b + 1] - start[b]));
        for (int b = 0; b < buckets.n && c->owners == NULL; b++) {
            size_t first = lks__share_start(two[b].n_blocks, c->W, c->rank);
            size_t end = lks__share_start(two[b].n_blocks, c->W, c->rank + 1);
            shared += end - first;
            first = start[two[b].first_block + first];
            end = start[two[b].first_block + end];
            EXPECT(memcmp(arenas[0] + first, expected + first, (end - first) * sizeof(float)) == 0);
        }
        for (size_t i = 0; i < table.n_tensors && c->owners != NULL; i++) {
            const lks__table_tensor *t = &table.tensors[i];
            if (c->owners[i] == c->rank && !t->frozen)
                EXPECT(memcmp(arenas[0] + t->offset, expected + t->offset,
                              t->count * sizeof(float)) == 0);
        }
        lks__ddp_exchange_spread(x, arenas[0]);
        EXPECT(memcmp(arenas[0], expected, count * sizeof *expected) == 0);
    }
    lks__ddp_exchange_close(x);
    for (int k = 0; k < nodes.n; k++)
        free(arenas[k]);
    free(expected);
    return NULL;
}

static void run_ranks(int V, int W, const int *owners)
{
    shared = 0;
    pthread_barrier_init(&all_called, NULL, (unsigned)W);
    pthread_barrier_init(&all_moved, NULL, (unsigned)W);
    for (int r = 0; r < W; r++) {
        ranks[r] = (struct rank){.device = {.ops = &device_ops},
                                 .config = {.V = V,
                                            .W = W,
                                            .rank = r,
                                            .scale = 1.0f / (float)(3 * V),
                                            .owners = owners,
                                            .buckets = &buckets}};
        assert_int_equal(pthread_create(&ranks[r].id, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < W; r++)
        pthread_join(ranks[r].id, NULL);
    pthread_barrier_destroy(&all_called);
    pthread_barrier_destroy(&all_moved);
    if (wrong != 0 || (owners == NULL && shared != 2 * table.trained_blocks))
        fail_msg("%d leaves on %d ranks, %s", V, W, owners != NULL ? "with owners" : "divided");
}

static const int worlds[][2] = {{1, 1}, {16, 1}, {4, 2}, {7, 2}, {5, 3}, {16, 3}, {8, 8}};

TEST(test_divided)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        run_ranks(worlds[i][0], worlds[i][1], NULL);
}

/* Some tensors have one owner, others are divided; one rank has what lies around another's; the
 * last rank owns all. */
TEST(test_owners)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        const int V = worlds[i][0], W = worlds[i][1], last = W - 1;
        const int owners[3][6] = {{last, -1, -1, -1, 0, -1},
                                  {0, -1, 0, -1, last, 0},
                                  {last, last, last, last, last, last}};
        for (int k = 0; k < 3; k++)
            run_ranks(V, W, owners[k]);
    }
}

int main(void)
{
    return lks_test_run_all(make_table, free_table);
}
