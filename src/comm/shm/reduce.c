/* Reductions in flight. Each rank sums its share of the blocks: in one pass it reads all ranks'
 * parts in place, and writes the scaled sums and their sums of squares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/list.h"
#include "base/trace.h"
#include "comm/liveness.h"
#include "comm/shm/shm.h"
#include "comm/tree/plan.h"

/* Blocks that a thread takes at a time. Task borders don't change bits. */
enum { TASK_BLOCKS = 8 };

_Static_assert(LKS__TREE_MAX_COVER * sizeof(struct lks__shm_part) <= LKS__SHM_PAYLOAD,
               "a rank's parts fit into its descriptor");

void lks__shm_reduce_close(struct lks__shm *g)
{
    while (g->all_works != NULL) {
        struct lks__shm_work *k = g->all_works;
        g->all_works = k->next_made;
        free(k->borders);
        k->borders = NULL;
        k->borders_room = 0;
        lks__work_retire(&k->head);
    }
    lks__plan_close(&g->plan);
}

/* --- starting ----------------------------------------------------------------------------- */

static void give_work(struct lks__shm *g, struct lks__shm_work *k)
{
    k->next_free = g->free_works;
    g->free_works = k;
}

/* Allocate a work only if more are in use than ever before, and keep it, with its memory for
 * borders, until the group is closed. So steps after the first allocate nothing. */
static struct lks__shm_work *take_work(struct lks__shm *g, size_t n_borders)
{
    struct lks__shm_work *k = g->free_works;
    if (k != NULL) {
        g->free_works = k->next_free;
    } else {
        k = (struct lks__shm_work *)lks__work_new(false, sizeof *k);
        if (k == NULL)
            return NULL;
        k->next_made = g->all_works;
        g->all_works = k;
    }
    k->head.comm = g->comm;
    k->head.live = true;
    k->shared = k->complete = k->forgotten = false;
    g->most_borders = n_borders > g->most_borders ? n_borders : g->most_borders;
    if (lks__list_room(&k->borders, g->most_borders, &k->borders_room, sizeof *k->borders))
        return k;
    give_work(g, k);
    return NULL;
}

/* Find the offsets of the outputs in the segment, which are equal on all ranks. */
static lks_status find_outputs(const struct lks__shm *g, const lks_reduction *r,
                               struct lks__shm_descriptor *desc)
{
    desc->args[2] = desc->args[3] = 0;
    if ((uintptr_t)r->dst % sizeof *r->dst != 0 ||
        (uintptr_t)r->block_sumsq % sizeof *r->block_sumsq != 0)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: dst %p or block_sumsq %p is not "
                         "aligned as its type needs",
                         (void *)r->dst, (void *)r->block_sumsq);
    if (r->count > 0 &&
        !lks__shm_offset(g, r->dst, r->count * sizeof(float), LKS_MEM_COMMON, 0, &desc->args[2]) &&
        !lks__shm_offset(g, r->dst, r->count * sizeof(float), LKS_MEM_OWN, 0, &desc->args[2]))
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: dst, %zu elements, is neither in "
                         "common memory nor in rank 0's",
                         r->count);
    if (r->n_blocks > 0 && !lks__shm_offset(g, r->block_sumsq, r->n_blocks * sizeof(double),
                                            LKS_MEM_COMMON, 0, &desc->args[3]))
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: block_sumsq, %zu blocks, is not in common memory",
                         r->n_blocks);
    return LKS_OK;
}

static bool overlap(const float *a, const float *b, size_t count)
{
    return (uintptr_t)a < (uintptr_t)(b + count) && (uintptr_t)b < (uintptr_t)(a + count);
}

/* Find this rank's parts, in the form of the descriptor. */
static lks_status find_parts(const struct lks__shm *g, const lks_reduction *r,
                             struct lks__shm_part *parts)
{
    for (int i = 0; i < r->n_parts; i++) {
        const float *buf = r->parts[i].buf;
        parts[i] = (struct lks__shm_part){.level = r->parts[i].node.level,
                                          .index = r->parts[i].node.index};
        if (r->count > 0 && ((uintptr_t)buf % sizeof *buf != 0 ||
                             !lks__shm_offset(g, buf, r->count * sizeof *buf, LKS_MEM_OWN, g->rank,
                                              &parts[i].offset)))
            return lks__fail(LKS_ERR_ARG,
                             "lks_comm_reduce_start: part %d, %zu elements, is not in this rank's "
                             "own memory from lks_comm_alloc(), or not aligned as floats are",
                             i, r->count);
        if (buf != r->dst && overlap(buf, r->dst, r->count))
            return lks__fail(LKS_ERR_ARG,
                             "lks_comm_reduce_start: dst, %zu elements, overlaps part %d: it may "
                             "be exactly a part, or must not overlap any",
                             r->count, i);
        for (int k = 0; k < i; k++)
            if (overlap(buf, r->parts[k].buf, r->count))
                return lks__fail(LKS_ERR_ARG,
                                 "lks_comm_reduce_start: parts %d and %d, %zu elements, overlap", k,
                                 i, r->count);
    }
    return LKS_OK;
}

static lks_status complete_oldest(struct lks__shm *g);

static lks_status start(struct lks__shm *g, const lks_reduction *r, bool between,
                        struct lks__shm_work **work_p)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_REDUCE, .size = r->count};
    struct lks__shm_part parts[LKS__TREE_MAX_COVER];
    uint32_t scale;
    memcpy(&scale, &r->scale, sizeof scale);
    desc.args[0] = (uint64_t)scale << 32 | (uint32_t)r->scatter << LKS__SHM_SCATTER_BIT |
                   (uint32_t)r->wire << LKS__SHM_WIRE_BIT | (uint32_t)r->n_leaves;
    desc.args[1] = r->n_blocks == 0
                       ? 0
                       : XXH3_64bits(r->block_start, (r->n_blocks + 1) * sizeof *r->block_start);
    LKS__TRY(find_outputs(g, r, &desc));
    desc.n_parts = (uint32_t)r->n_parts;
    LKS__TRY(find_parts(g, r, parts));
    while (g->n_pending > 0 && g->seq - g->pending[g->first_pending]->seq >= LKS__SHM_IN_FLIGHT)
        LKS__TRY(complete_oldest(g));
    struct lks__shm_work *k = take_work(g, r->n_blocks + 1);
    if (k == NULL)
        return lks__comm_fail_call(g->comm, lks__no_memory("for one more reduction in flight"));
    lks_status st = lks__shm_arrive(g, &desc, parts, (size_t)r->n_parts * sizeof parts[0], &k->seq);
    if (st != LKS_OK) {
        give_work(g, k);
        return st;
    }
    k->r = *r;
    k->r.parts = NULL; /* they are in the descriptor */
    k->r.block_start = k->borders;
    if (r->n_blocks > 0)
        memcpy(k->borders, r->block_start, (r->n_blocks + 1) * sizeof *k->borders);
    k->between = between;
    if (between)
        k->between_goal = ++g->betweens[k->seq % LKS__SHM_SLOTS];
    g->pending[(g->first_pending + g->n_pending++) % LKS__SHM_IN_FLIGHT] = k;
    *work_p = k;
    return LKS_OK;
}

lks_status lks__shm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p)
{
    struct lks__shm_work *k;
    LKS__TRY(start(comm->state, r, false, &k));
    *work_p = &k->head;
    return LKS_OK;
}

lks_status lks__shm_between_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p,
                                  struct lks__shm_between *task, struct lks__shm_descriptor *desc)
{
    struct lks__shm *g = comm->state;
    struct lks__shm_work *k;
    LKS__TRY(start(g, r, true, &k));
    *work_p = &k->head;
    *task = (struct lks__shm_between){
        k->seq, (g->finishes[k->seq % LKS__SHM_SLOTS] + 1) * (uint32_t)g->world_size, k->r};
    *desc = *lks__segment_descriptor(g->segment, g->rank, (uint32_t)k->seq);
    desc->args[2] = lks__shm_location_at(g, desc->args[2]);
    desc->args[3] = lks__shm_location_at(g, desc->args[3]);
    return LKS_OK;
}

/* --- this rank's share -------------------------------------------------------------------- */

/* `rank` is -1 if the cause isn't one rank. */
static lks_status bad_parts(struct lks__shm *g, const struct lks__shm_work *k, int rank,
                            const char *what)
{
    char who[32] = "the ranks", title[64], text[320];
    lks__shm_title(lks__segment_descriptor(g->segment, g->rank, (uint32_t)k->seq), title,
                   sizeof title);
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d", g->comm->first_rank + rank);
    snprintf(text, sizeof text,
             "reduction of %zu elements over %d leaves (operation %llu, %s): %s gave parts that %s",
             k->r.count, k->r.n_leaves, (unsigned long long)k->seq, title, who, what);
    return lks__shm_abort(g, LKS_ERR_ARG, rank, text);
}

/* Read and check all descriptors, and add their parts in the order of leaves. */
static lks_status read_parts(struct lks__shm *g, struct lks__plan *p, const struct lks__shm_work *k)
{
    p->n = 0;
    for (int r = 0; r < g->world_size; r++) {
        const struct lks__shm_descriptor *desc =
            lks__segment_descriptor(g->segment, r, (uint32_t)k->seq);
        uint32_t n_parts = desc->n_parts;
        if (n_parts > LKS__TREE_MAX_COVER)
            return bad_parts(g, k, r, "are more than any rank can have");
        for (uint32_t i = 0; i < n_parts; i++) {
            struct lks__shm_part part;
            memcpy(&part, desc->payload + i * sizeof part, sizeof part);
            const float *buf =
                lks__shm_address(g, part.offset, k->r.count * sizeof(float), LKS_MEM_OWN, r);
            if (part.offset % sizeof(float) != 0 || (buf == NULL && k->r.count > 0) ||
                !lks__plan_add(p, k->r.n_leaves, (lks_node){part.level, part.index}, buf))
                return bad_parts(g, k, r, "are no nodes or not in its memory");
        }
    }
    lks__plan_sort(p);
    return LKS_OK;
}

/* Shared by all tasks of a share. */
struct share {
    const struct lks__sum *sum;
    const lks_reduction *r;
    bool squares;      /* of the sums, block by block */
    size_t first, end; /* blocks */
};

static void sum_blocks(void *ctx, size_t task, int thread)
{
    const struct share *s = ctx;
    size_t b = s->first + task * TASK_BLOCKS;
    size_t end = s->end - b < TASK_BLOCKS ? s->end : b + TASK_BLOCKS;
    for (; b < end; b++) {
        size_t from = s->r->block_start[b], n = s->r->block_start[b + 1] - from;
        double lanes[8] = {0};
        lks__sum_range(s->sum, from, n, s->squares ? lanes : NULL);
        if (s->squares)
            s->r->block_sumsq[b] = lks__sumsq_of_lanes(lanes);
    }
}

static void run_share(struct lks__shm *g, struct share *share)
{
    size_t n = share->r->n_blocks, W = (size_t)g->world_size, rank = (size_t)g->rank;
    share->first = n * rank / W;
    share->end = n * (rank + 1) / W;
    size_t tasks = (share->end - share->first + TASK_BLOCKS - 1) / TASK_BLOCKS;
    lks__pool_run(g->comm->exec.pool, tasks, sum_blocks, share);
}

static bool runs_of(struct lks__plan *p, int V, int *n_left_p)
{
    return lks__tree_plan_some(V, p->order, p->n, p->merges, p->left, p->first, n_left_p);
}

/* Sum each run of parts that the tree allows to add, into the buffer of its first part. */
static lks_status sum_runs(struct lks__shm *g, struct lks__shm_work *k)
{
    struct lks__plan *p = &g->plan;
    int n_left;
    LKS__TRY(read_parts(g, p, k));
    if (!runs_of(p, k->r.n_leaves, &n_left))
        return bad_parts(g, k, -1, "cover a leaf twice");
    for (int i = 0; i < n_left; i++) {
        int first = p->first[i], end = i + 1 < n_left ? p->first[i + 1] : p->n;
        struct lks__sum sum = {.parts = p->parts + first,
                               .merges = p->merges + first,
                               .n_parts = end - first,
                               .dst = (float *)p->parts[first],
                               .scale = 1,
                               .last = g->comm->exec.k->sum_scaled};
        struct share share = {.sum = &sum, .r = &k->r};
        if (sum.n_parts > 1)
            run_share(g, &share);
    }
    return LKS_OK;
}

static lks_status do_share(struct lks__shm *g, struct lks__shm_work *k)
{
    struct lks__sum sum;
    lks__trace_begin(LKS__SPAN_REDUCE, k->r.label);
    if (k->between) {
        LKS__TRY(sum_runs(g, k));
    } else {
        LKS__TRY(read_parts(g, &g->plan, k));
        if (!lks__plan_sum(&g->plan, k->r.n_leaves, k->r.dst, k->r.scale, &g->comm->exec, &sum))
            return bad_parts(g, k, -1, "together don't cover each leaf once");
        struct share share = {.sum = &sum, .r = &k->r, .squares = true};
        run_share(g, &share);
    }
    k->shared = true;
    lks__shm_finish(g, k->seq);
    lks__trace_end();
    return LKS_OK;
}

/* --- for the leader's thread --------------------------------------------------------------- */

int lks__shm_between_sums(lks_comm *comm, struct lks__plan *p, const struct lks__shm_between *task,
                          lks_node *nodes, float **bufs)
{
    struct lks__shm_work k = {.seq = task->seq, .r = task->r};
    int n_left;
    if (read_parts(comm->state, p, &k) != LKS_OK || !runs_of(p, task->r.n_leaves, &n_left) ||
        n_left > LKS__TREE_MAX_COVER)
        return -1;
    for (int i = 0; i < n_left; i++) {
        nodes[i] = p->left[i];
        bufs[i] = (float *)p->parts[p->first[i]];
    }
    return n_left;
}

/* --- progress and completion -------------------------------------------------------------- */

static bool everybody_is_done(const struct lks__shm *g, const struct lks__shm_work *k)
{
    return lks__shm_all_finished(g, k->seq) &&
           (!k->between || lks__shm_all_between(g, k->seq, k->between_goal));
}

static lks_status progress(struct lks__shm *g)
{
    for (unsigned i = 0; i < g->n_pending; i++) {
        struct lks__shm_work *k = g->pending[(g->first_pending + i) % LKS__SHM_IN_FLIGHT];
        if (k->shared)
            continue;
        if (!lks__shm_all_arrived(g, k->seq))
            break;
        LKS__TRY(lks__shm_check_descriptors(g, k->seq));
        LKS__TRY(do_share(g, k));
    }
    while (g->n_pending > 0) {
        struct lks__shm_work *k = g->pending[g->first_pending];
        if (!k->shared || !everybody_is_done(g, k))
            break;
        k->complete = true;
        g->first_pending = (g->first_pending + 1) % LKS__SHM_IN_FLIGHT;
        g->n_pending--;
        if (k->forgotten)
            give_work(g, k);
    }
    return LKS_OK;
}

static lks_status complete_oldest(struct lks__shm *g)
{
    struct lks__shm_work *k = g->pending[g->first_pending];
    while (!k->complete) {
        LKS__TRY(progress(g));
        if (k->complete)
            break;
        if (!k->shared) {
            LKS__TRY(lks__shm_wait_arrived(g, k->seq));
            continue;
        }
        LKS__TRY(lks__shm_wait_finished(g, k->seq));
        if (k->between)
            LKS__TRY(lks__shm_wait_between(g, k->seq, k->between_goal));
    }
    return LKS_OK;
}

lks_status lks__shm_drain(struct lks__shm *g)
{
    while (g->n_pending > 0)
        LKS__TRY(complete_oldest(g));
    return LKS_OK;
}

lks_status lks__shm_progress(lks_comm *comm)
{
    struct lks__shm *g = comm->state;
    if (lks__segment_aborted(g->segment))
        return lks__shm_failure(g->comm);
    return progress(g);
}

lks_status lks__shm_work_wait(lks_comm *comm, lks_work *work)
{
    struct lks__shm *g = comm->state;
    struct lks__shm_work *k = (struct lks__shm_work *)work;
    lks_status st = LKS_OK;
    g->timing = true;
    while (!k->complete && st == LKS_OK)
        st = g->n_pending > 0 ? complete_oldest(g) : lks__shm_failure(g->comm);
    g->timing = false;
    /* After a failure, no operation is in flight. */
    if (st != LKS_OK)
        g->n_pending = 0;
    give_work(g, k);
    return st;
}

lks_status lks__shm_work_test(lks_comm *comm, lks_work *work, bool *done_p)
{
    const struct lks__shm_work *k = (const struct lks__shm_work *)work;
    const lks_status st = k->complete ? LKS_OK : lks__shm_progress(comm);
    *done_p = k->complete || st != LKS_OK;
    return st;
}

void lks__shm_work_forget(lks_comm *comm, lks_work *work)
{
    struct lks__shm_work *k = (struct lks__shm_work *)work;
    if (k->complete)
        give_work(comm->state, k);
    else
        k->forgotten = true;
}

bool lks__shm_owes_shares(const lks_comm *comm)
{
    const struct lks__shm *g = comm->state;
    for (unsigned i = 0; g != NULL && i < g->n_pending; i++)
        if (!g->pending[(g->first_pending + i) % LKS__SHM_IN_FLIGHT]->shared)
            return true;
    return false;
}
