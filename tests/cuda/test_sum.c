/* Sums of shards: src/compute/cuda/kernels/sum.cu, with the bits of comm/tree/sum.h. */
#include "support.h"

#include <string.h>

#include "comm/tree/sum.h"
#include "comm/tree/tree.h"
#include "ddp/nodes.h"
#include "host.h"

/* Blocks of a shard: short ones, such that lanes don't come out even, and a whole one. */
static const uint32_t lengths[] = {16, 4096, 1, 0, 7, 300};
enum { BLOCKS = sizeof lengths / sizeof *lengths, MOST_PARTS = 64, GAP = 5 };

/* The nodes of W ranks, as `rank` sees them: its own stay in arenas, the others' have come. */
struct shard {
    lks__shard_block blocks[BLOCKS];
    lks__shard_part parts[MOST_PARTS];
    const float *all[MOST_PARTS]; /* every node's elements of the shard */
    uint8_t merges[MOST_PARTS];
    int n_parts, n_own;
    size_t floats, arena;
    float *received, *own[LKS__SHARD_NODES];
};

static void list_nodes(struct shard *s, int V, int W, int rank)
{
    lks_node nodes[MOST_PARTS];
    int slot = 0;
    s->n_parts = s->n_own = 0;
    for (int r = 0; r < W; r++) {
        lks__tree_nodes left;
        bool merges = false;
        lks__tree_nodes_rehearse(V, lks__first_leaf(V, W, r), lks__first_leaf(V, W, r + 1), false,
                                 &left, &merges);
        for (int k = 0; k < left.n; k++) {
            assert_true(s->n_parts < MOST_PARTS);
            nodes[s->n_parts] = left.node[k];
            s->parts[s->n_parts++].slot = (int16_t)(r == rank ? -1 - s->n_own++ : slot++);
        }
    }
    assert_true(lks__tree_plan(V, nodes, s->n_parts, s->merges));
    for (int i = 0; i < s->n_parts; i++)
        s->parts[i].merges = s->merges[i];
}

static void fill(struct shard *s)
{
    s->floats = s->arena = 0;
    for (int b = 0; b < BLOCKS; b++) {
        s->blocks[b] = (lks__shard_block){s->arena, s->floats, lengths[b]};
        s->floats += lengths[b];
        s->arena += lengths[b] + GAP;
    }
    s->received = host_floats((size_t)(s->n_parts - s->n_own) * s->floats);
    for (int i = 0; i < s->n_parts; i++) {
        const int slot = s->parts[i].slot;
        s->all[i] = host_randoms(s->floats, (unsigned)i + 1);
        if (slot >= 0)
            memcpy(s->received + (size_t)slot * s->floats, s->all[i], s->floats * sizeof(float));
        else
            s->own[-1 - slot] = host_randoms(s->arena, (unsigned)i + 100);
        for (int b = 0; b < BLOCKS && slot < 0; b++)
            memcpy(s->own[-1 - slot] + s->blocks[b].at, s->all[i] + s->blocks[b].in_shard,
                   lengths[b] * sizeof(float));
    }
}

static void sum_is_the_cpus(int V, int W, int rank, float scale)
{
    struct shard s;
    double *squares = host_doubles(BLOCKS);
    list_nodes(&s, V, W, rank);
    fill(&s);
    float *want = host_floats(s.floats), *before = host_copy(s.own[0], s.arena);
    const struct lks__sum sum = {.parts = s.all,
                                 .merges = s.merges,
                                 .n_parts = s.n_parts,
                                 .dst = want,
                                 .scale = scale,
                                 .last = lks__sum_scaled_plain};
    lks__shard_sum got = {.blocks = s.blocks,
                          .parts = s.parts,
                          .received = s.received,
                          .squares = squares,
                          .n_blocks = BLOCKS,
                          .shard_floats = s.floats,
                          .n_parts = s.n_parts,
                          .scale = scale};
    memcpy(got.own, s.own, sizeof got.own);
    lks__cuda_sum_shard(NULL, &got);
    for (int b = 0; b < BLOCKS; b++) {
        const lks__shard_block *block = &s.blocks[b];
        double lanes[8] = {0};
        lks__sum_range(&sum, block->in_shard, block->count, lanes);
        assert_bits(s.own[0] + block->at, want + block->in_shard, block->count);
        const double square = lks__sumsq_of_lanes(lanes);
        assert_memory_equal(&squares[b], &square, sizeof square);
        assert_bits(s.own[0] + block->at + block->count, before + block->at + block->count, GAP);
    }
}

/* Ranks with one node or several, none received, a tree of many levels, each rank's view. */
TEST(test_sums)
{
    EACH_ORDER(seed)
    {
        sum_is_the_cpus(1, 1, 0, 1.0f);
        sum_is_the_cpus(8, 1, 0, 0.125f);
        sum_is_the_cpus(8, 8, 5, 0.125f);
        for (int rank = 0; rank < 3; rank++)
            sum_is_the_cpus(8, 3, rank, 0.3f);
        sum_is_the_cpus(13, 5, 2, 1.0f);
        sum_is_the_cpus(37, 37, 36, 1.0f);
    }
}

TEST(test_nothing)
{
    const lks__shard_sum none = {.n_blocks = 0};
    lks__cuda_sum_shard(NULL, &none); /* an empty launch would be refused */
}
