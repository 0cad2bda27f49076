#include "comm/suite.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/tree/tree.h"
#include "compute/cpu/kernels.h"

void suite_failed(lks_comm *comm, const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: rank %d of %d: not true: %s (last error: %s)\n", file, line,
            lks_comm_rank(comm), lks_comm_world_size(comm), what, lks_last_error());
    lks_comm_abort(comm, "a check failed"); /* so that the others don't wait for us */
}

float suite_tree_sum(float *v, int n)
{
    while (n > 1) {
        for (int i = 0; i < n / 2; i++)
            v[i] = v[2 * i] + v[2 * i + 1];
        if (n % 2 == 1)
            v[n / 2] = v[n - 1];
        n = (n + 1) / 2;
    }
    return v[0];
}

/* A value that depends on all arguments, of either sign and many magnitudes: sums in another order
 * give other bits. */
static float value(unsigned salt, int who, size_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)who * 0xbf58476d1ce4e5b9u + salt;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 29;
    float unit = (float)(int32_t)(uint32_t)x * 0x1p-31f;
    return unit * (float)(1u << (x >> 32) % 12);
}

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return bytes == 0 || memcmp(a, b, bytes) == 0;
}

static bool one_size(lks_comm *comm, size_t n)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    const unsigned salt = (unsigned)n;
    unsigned char *bytes = malloc(n + 1), *all = malloc(n * (size_t)W + 1);
    CHECK(bytes != NULL && all != NULL);

    for (int root = 0; root<W; root += W> 2 ? W - 1 : 1) {
        for (size_t i = 0; i <= n; i++)
            bytes[i] = rank == root ? (unsigned char)(i * 7 + (size_t)root) : 0xee;
        CHECK(lks_comm_broadcast(comm, bytes, n, LKS_UINT8, root) == LKS_OK);
        for (size_t i = 0; i < n; i++)
            CHECK(bytes[i] == (unsigned char)(i * 7 + (size_t)root));
        CHECK(rank == root || bytes[n] == 0xee); /* no byte beyond the end */
    }
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 3 + (size_t)rank * 101);
    all[n * (size_t)W] = 0xee;
    CHECK(lks_comm_all_gather(comm, bytes, all, n, LKS_UINT8) == LKS_OK);
    for (int r = 0; r < W; r++)
        for (size_t i = 0; i < n; i++)
            CHECK(all[(size_t)r * n + i] == (unsigned char)(i * 3 + (size_t)r * 101));
    CHECK(all[n * (size_t)W] == 0xee);
    free(bytes);
    free(all);

    float *sum = malloc((n + 1) * sizeof *sum), leaves[64];
    CHECK(sum != NULL);
    for (size_t i = 0; i < n; i++)
        sum[i] = value(salt, rank, i);
    sum[n] = 42;
    CHECK(lks_comm_all_reduce(comm, sum, n, LKS_FLOAT32, LKS_SUM) == LKS_OK);
    for (size_t i = 0; i < n; i++) {
        for (int r = 0; r < W; r++)
            leaves[r] = value(salt, r, i);
        float want = suite_tree_sum(leaves, W);
        CHECK(same_bits(&sum[i], &want, sizeof want));
    }
    CHECK(sum[n] == 42);
    free(sum);
    return true;
}

bool suite_collectives(lks_comm *comm, bool thorough)
{
    static const size_t small[] = {0, 1, 3, 17, 239, 240, 241, 961, 4099};
    static const size_t large[] = {65536, 65537, 262144, 262145, 1200007};
    for (int round = 0; round < 150; round++) /* more rounds than there are descriptors */
        CHECK(lks_comm_barrier(comm) == LKS_OK);
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        if (!one_size(comm, small[i]))
            return false;
    for (size_t i = 0; thorough && i < sizeof large / sizeof large[0]; i++)
        if (!one_size(comm, large[i]))
            return false;
    return true;
}

/* --- reductions --------------------------------------------------------------------------- */

enum { MAX_BLOCKS = 256, BUCKETS = 5, MAX_COUNT = 9001, MAX_PARTS = 8 };

/* Cut into blocks of 1 to `most` elements, some of them empty. */
static size_t cut_blocks(size_t count, size_t most, size_t *start)
{
    size_t n = 0, at = 0;
    start[0] = 0;
    while (at < count) {
        size_t some = n % 7 == 3 ? 0 : 1 + (n * 2654435761u) % most;
        if (n == MAX_BLOCKS - 1 || some > count - at)
            some = count - at;
        at += some;
        start[++n] = at;
    }
    return n;
}

struct bench {
    float *own;     /* [BUCKETS][MAX_PARTS][MAX_COUNT] */
    float *common;  /* [BUCKETS][MAX_COUNT] */
    double *sumsqs; /* [BUCKETS][MAX_BLOCKS] */
};

/* The sum of a node's leaves, which a rank has in its buffer before the reduction. */
static float node_sum(unsigned salt, int V, lks_node node, size_t i)
{
    float leaves[16];
    int first, end;
    lks__tree_leaves(V, node, &first, &end);
    for (int v = first; v < end; v++)
        leaves[v - first] = value(salt, v, i);
    return suite_tree_sum(leaves, end - first);
}

static bool check_bucket(lks_comm *comm, const lks_reduction *r, unsigned salt)
{
    float leaves[16];
    for (size_t i = 0; i < r->count; i++) {
        for (int v = 0; v < r->n_leaves; v++)
            leaves[v] = value(salt, v, i);
        float want = suite_tree_sum(leaves, r->n_leaves) * r->scale;
        CHECK(same_bits(&r->dst[i], &want, sizeof want));
    }
    for (size_t b = 0; b < r->n_blocks; b++) {
        size_t from = r->block_start[b];
        double want = lks__sumsq_plain(r->dst + from, r->block_start[b + 1] - from);
        CHECK(same_bits(&r->block_sumsq[b], &want, sizeof want));
    }
    return true;
}

/* Several buckets in flight over V leaves; this rank has [first, end). */
static bool one_tree(lks_comm *comm, struct bench *m, int V, int first, int end, bool into_common)
{
    static const size_t counts[BUCKETS] = {0, 1, 37, 4099, MAX_COUNT};
    size_t start[BUCKETS][MAX_BLOCKS + 1];
    lks_reduction r[BUCKETS];
    lks_part parts[MAX_PARTS];
    lks_node nodes[MAX_PARTS];
    lks_work *work[BUCKETS];
    int n = lks__tree_cover(V, first, end, nodes, MAX_PARTS);
    CHECK(n >= 0);
    for (int b = 0; b < BUCKETS; b++) {
        unsigned salt = (unsigned)(V * 100 + b);
        float *own = m->own + (size_t)b * MAX_PARTS * MAX_COUNT;
        for (int p = 0; p < n; p++) {
            parts[p] = (lks_part){nodes[p], own + (size_t)p * MAX_COUNT};
            for (size_t i = 0; i < counts[b]; i++)
                parts[p].buf[i] = node_sum(salt, V, nodes[p], i);
        }
        r[b] = (lks_reduction){.n_leaves = V,
                               .parts = parts,
                               .n_parts = n,
                               .scale = 1.0f / (float)(V + b),
                               .count = counts[b],
                               .block_start = start[b],
                               .block_sumsq = m->sumsqs + b * MAX_BLOCKS,
                               .dst = m->common + b * MAX_COUNT};
        r[b].n_blocks = cut_blocks(counts[b], 150, start[b]);
        if (!into_common)
            r[b].dst = lks_comm_peer(comm, own, lks_comm_leader(comm));
        CHECK(r[b].dst != NULL);
        CHECK(lks_comm_reduce_start(comm, &r[b], &work[b]) == LKS_OK);
        if (b % 2 == 0)
            CHECK(lks_comm_progress(comm) == LKS_OK);
    }
    if (V % 2 == 0) /* a collective in between: the reductions complete first */
        CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (V % 3 == 0 && lks_comm_rank(comm) % 2 == 1) /* waiting in another order is allowed */
        for (int b = BUCKETS - 1; b >= 0; b--)
            CHECK(lks_work_wait(work[b]) == LKS_OK);
    else
        for (int b = 0; b < BUCKETS; b++)
            CHECK(lks_work_wait(work[b]) == LKS_OK);
    for (int b = 0; b < BUCKETS; b++)
        if (!check_bucket(comm, &r[b], (unsigned)(V * 100 + b)))
            return false;
    CHECK(lks_comm_barrier(comm) == LKS_OK); /* before the buffers are overwritten */
    return true;
}

/* Borders needn't begin with 0: the first one is that of the memory. */
enum { SHARE_BLOCKS = 7, SHARE_BYTES = 20000, SHARE_START = 300 };

static void write_share(lks_comm *comm, unsigned char *mem, const size_t *start)
{
    size_t first, end;
    lks_comm_host_share(comm, SHARE_BLOCKS, &first, &end);
    if (lks_comm_rank(comm) == lks_comm_leader(comm))
        for (size_t i = start[first] - SHARE_START; i < start[end] - SHARE_START; i++)
            mem[i] = (unsigned char)(i % 251 + 1);
}

/* Work divided over hosts: shares cover everything and are gathered on all hosts or on the first;
 * dropped memory is zero. */
static bool shares(lks_comm *comm)
{
    size_t start[SHARE_BLOCKS + 1], first, end;
    void *lazy;
    bool leads = lks_comm_rank(comm) == lks_comm_leader(comm);
    CHECK(lks_comm_alloc(comm, LKS_MEM_LAZY, SHARE_BYTES, &lazy) == LKS_OK);
    unsigned char *mem = lazy;
    for (size_t b = 0; b <= SHARE_BLOCKS; b++)
        start[b] = SHARE_START + b * SHARE_BYTES / SHARE_BLOCKS;
    lks_comm_host_share(comm, SHARE_BLOCKS, &first, &end);
    CHECK(first <= end && end <= SHARE_BLOCKS);
    write_share(comm, mem, start);
    CHECK(lks_comm_gather_shares(comm, mem, start, SHARE_BLOCKS, 0) == LKS_OK);
    for (size_t i = 0; i < SHARE_BYTES; i++)
        CHECK(mem[i] == (unsigned char)(i % 251 + 1));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (leads) {
        lks_comm_drop(comm, mem, 0, (size_t)1 << 30); /* not all of it is ours */
        lks_comm_drop(comm, mem, 100, SHARE_BYTES);
    }
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(mem[0] == 1 && mem[99] == 100 && mem[8192] == 0); /* whole pages only */
    CHECK(mem[16383] == 0 && mem[16384] == 16384 % 251 + 1);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    write_share(comm, mem, start);
    CHECK(lks_comm_gather_shares(comm, mem, start, SHARE_BLOCKS, 1) == LKS_OK);
    for (size_t i = 0; i < SHARE_BYTES && lks_comm_leader(comm) == 0; i++)
        CHECK(mem[i] == (unsigned char)(i % 251 + 1));
    for (size_t i = start[first] - SHARE_START; i < start[end] - SHARE_START; i++)
        CHECK(mem[i] == (unsigned char)(i % 251 + 1));
    return true;
}

/* A reduction of no elements: its blocks have no squares, whatever was there. */
static bool empty(lks_comm *comm)
{
    struct suite_sum s;
    lks_work *work;
    CHECK(suite_sum(comm, 0, &s));
    if (lks_comm_rank(comm) == lks_comm_leader(comm))
        *s.r.block_sumsq = 777;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    CHECK(lks_work_wait(work) == LKS_OK);
    CHECK(*s.r.block_sumsq == 0);
    return true;
}

bool suite_reductions(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    struct bench m;
    void *mem;
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, sizeof(float) * BUCKETS * MAX_PARTS * MAX_COUNT,
                         &mem) == LKS_OK);
    m.own = mem;
    CHECK(m.own[0] == 0 && m.own[BUCKETS * MAX_PARTS * MAX_COUNT - 1] == 0);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, sizeof(float) * BUCKETS * MAX_COUNT, &mem) ==
          LKS_OK);
    m.common = mem;
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, sizeof(double) * BUCKETS * MAX_BLOCKS, &mem) ==
          LKS_OK);
    m.sumsqs = mem;

    /* Each rank sees the others' writes in shared memory, and nowhere else. */
    m.own[rank] = (float)(rank + 1);
    m.common[rank] = (float)(rank + 100);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    int here = lks_comm_leader(comm), local = lks_comm_world(comm)->local_world_size;
    for (int r = 0; r < W; r++) {
        const float *theirs = lks_comm_peer(comm, m.own + r, r);
        bool near = r >= here && r < here + local;
        CHECK(near ? theirs != NULL && *theirs == (float)(r + 1) : theirs == NULL);
        CHECK(r == rank || m.own[r] == 0);
        CHECK(m.common[r] == (near ? (float)(r + 100) : 0));
    }
    if (rank == here)
        m.common[99] = 7;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (rank == 0)
        for (int i = 0; i < 90; i++)
            m.common[i] = (float)(i * 3);
    CHECK(lks_comm_replicate(comm, m.common, sizeof(float) * 90) == LKS_OK);
    for (int i = 0; i < 90; i++)
        CHECK(m.common[i] == (float)(i * 3));
    CHECK(m.common[99] == 7 && m.common[90] == 0);
    CHECK(lks_comm_peer(comm, m.own, W) == NULL && lks_comm_peer(comm, &m, 0) == NULL);
    CHECK(lks_comm_barrier(comm) == LKS_OK);

    for (int V = W; V <= 16; V++) {
        for (int common = 0; common < 2; common++)
            if (!one_tree(comm, &m, V, rank * V / W, (rank + 1) * V / W, common))
                return false;
        /* Leaves are assigned backwards, so that dst is a part that comes late in the sum. */
        int back = W - 1 - rank;
        if (!one_tree(comm, &m, V, back * V / W, (back + 1) * V / W, false))
            return false;
    }
    return empty(comm) && shares(comm);
}

bool suite_sum(lks_comm *comm, size_t count, struct suite_sum *s)
{
    void *common;
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, count * sizeof(float), &s->own) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, (count + 1) * sizeof(double), &common) == LKS_OK);
    s->start[0] = 0;
    s->start[1] = count;
    s->part = (lks_part){{0, lks_comm_rank(comm)}, s->own};
    s->r = (lks_reduction){.n_leaves = lks_comm_world_size(comm),
                           .parts = &s->part,
                           .n_parts = 1,
                           .scale = 1,
                           .count = count,
                           .block_start = s->start,
                           .n_blocks = 1,
                           .block_sumsq = (double *)common + count,
                           .dst = common};
    return true;
}

bool suite_mismatch(lks_comm *comm, lks_status st, const char *a, const char *b)
{
    CHECK(st == LKS_ERR_ARG);
    CHECK(strstr(lks_last_error(), a) != NULL && strstr(lks_last_error(), b) != NULL);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_ARG);
    return true;
}

/* A reduction of 100 elements over V leaves, in two blocks; this rank contributes `leaf`. */
static bool reduce_leaf(lks_comm *comm, int V, int leaf, size_t second_border, const char *a,
                        const char *b)
{
    void *own, *common;
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, 400, &own) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, 1000, &common) == LKS_OK);
    size_t start[] = {0, second_border, 100};
    lks_part part = {{0, leaf}, own};
    lks_reduction r = {.n_leaves = V,
                       .parts = &part,
                       .n_parts = 1,
                       .scale = 1,
                       .count = 100,
                       .block_start = start,
                       .n_blocks = 2,
                       .block_sumsq = (double *)common + 50,
                       .dst = common};
    lks_work *work;
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_OK);
    return suite_mismatch(comm, lks_work_wait(work), a, b);
}

static bool in_second_half(const lks_comm *comm)
{
    return 2 * lks_comm_rank(comm) >= lks_comm_world_size(comm);
}

static bool other_size(lks_comm *comm)
{
    char other[96];
    snprintf(other, sizeof other, "rank %d called lks_comm_all_reduce of 299999 float32 elements",
             lks_comm_world_size(comm) / 2);
    float *values = calloc(300000, sizeof *values);
    lks_status st = lks_comm_all_reduce(comm, values, in_second_half(comm) ? 299999 : 300000,
                                        LKS_FLOAT32, LKS_SUM);
    free(values);
    return suite_mismatch(comm, st, "rank 0 called lks_comm_all_reduce of 300000 float32 elements",
                          other);
}

static bool other_alloc(lks_comm *comm)
{
    void *mem = NULL;
    lks_status st = lks_comm_alloc(comm, LKS_MEM_OWN, in_second_half(comm) ? 2000 : 1000, &mem);
    CHECK(mem == NULL);
    return suite_mismatch(comm, st, "1000 bytes of own", "2000 bytes of own");
}

static bool other_borders(lks_comm *comm)
{
    return reduce_leaf(comm, lks_comm_world_size(comm), lks_comm_rank(comm),
                       in_second_half(comm) ? 51 : 50, "borders", "100 elements");
}

/* The second half contributes the leaves of the first one again. */
static bool same_leaf(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm);
    return reduce_leaf(comm, W, lks_comm_rank(comm) % (W / 2), 50, "the ranks",
                       "don't cover each leaf once");
}

static bool leaf_missing(lks_comm *comm)
{
    const int V = lks_comm_world_size(comm) + 1;
    return reduce_leaf(comm, V, lks_comm_rank(comm), 50, "the ranks",
                       V == 3 ? "3 leaves" : "5 leaves");
}

bool (*const suite_halves[])(lks_comm *comm) = {other_size, other_alloc,  other_borders,
                                                same_leaf,  leaf_missing, NULL};

static bool other_root(lks_comm *comm)
{
    char bytes[2000] = {0};
    lks_status st = lks_comm_broadcast(comm, bytes, sizeof bytes, LKS_UINT8, lks_comm_rank(comm));
    return suite_mismatch(comm, st, "from rank 0", "from rank 1");
}

static bool other_type(lks_comm *comm)
{
    const int rank = lks_comm_rank(comm);
    float mine = 0, all[8];
    lks_status st = lks_comm_all_gather(comm, &mine, all, 1, rank == 1 ? LKS_INT32 : LKS_FLOAT32);
    return suite_mismatch(comm, st, "rank 0 called lks_comm_all_gather of 1 float32 elements",
                          "rank 1 called lks_comm_all_gather of 1 int32 elements");
}

static bool other_op(lks_comm *comm)
{
    float values[4] = {0};
    lks_status st = lks_comm_all_reduce(comm, values, 4, LKS_FLOAT32,
                                        lks_comm_rank(comm) == 1 ? LKS_MAX : LKS_SUM);
    return suite_mismatch(comm, st, "elements by sum",
                          "rank 1 called lks_comm_all_reduce of 4 float32");
}

/* Of the same bytes in other blocks, or to other ranks. */
static bool other_shares(lks_comm *comm, size_t border, int n_blocks, int to_first, const char *b)
{
    const size_t start[] = {0, border, 200};
    static const size_t whole[] = {0, 200};
    void *common = NULL;
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, 200, &common) == LKS_OK);
    lks_status st = lks_comm_gather_shares(comm, common, n_blocks == 2 ? start : whole,
                                           (size_t)n_blocks, to_first);
    return suite_mismatch(comm, st, "rank 0 called gather_shares of 200 bytes (", b);
}

static bool other_blocks(lks_comm *comm)
{
    return other_shares(comm, 100, 1 + lks_comm_rank(comm), 0, "bytes (2 blocks to all hosts, ");
}

static bool other_share_borders(lks_comm *comm)
{
    return other_shares(comm, 100 + (size_t)lks_comm_rank(comm), 2, 0, "rank 1 called");
}

static bool other_receivers(lks_comm *comm)
{
    return other_shares(comm, 100, 2, lks_comm_rank(comm), "bytes (2 blocks to the first host, ");
}

/* Rank 1 sums in the same way, but asks for another transport between hosts. */
static bool other_transport(lks_comm *comm, lks_wire wire, lks_scatter scatter, const char *b)
{
    struct suite_sum s;
    lks_work *work;
    CHECK(suite_sum(comm, 100, &s));
    s.r.wire = wire;
    s.r.scatter = scatter;
    CHECK(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    return suite_mismatch(comm, lks_work_wait(work), "100 elements with wire 0 and scatter 0,", b);
}

static bool other_wire(lks_comm *comm)
{
    return other_transport(comm, lks_comm_rank(comm) == 1 ? LKS_WIRE_BFLOAT16 : LKS_WIRE_FLOAT32,
                           LKS_SCATTER_NONE, "with wire 1 and scatter 0;");
}

static bool other_scatter(lks_comm *comm)
{
    return other_transport(comm, LKS_WIRE_FLOAT32,
                           lks_comm_rank(comm) == 1 ? LKS_SCATTER_HOSTS : LKS_SCATTER_NONE,
                           "with wire 0 and scatter 1;");
}

bool (*const suite_others[])(lks_comm *comm) = {other_root,   other_type,          other_op,
                                                other_blocks, other_share_borders, other_receivers,
                                                other_wire,   other_scatter,       NULL};
