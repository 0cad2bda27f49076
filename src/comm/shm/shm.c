#include "comm/shm/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/checked.h"
#include "comm/world.h"

/* A wait polls this long before it sleeps, if each rank has a core. It is longer than the usual
 * delay between ranks, and too short to matter. Under load the yields in it help, and a longer spin
 * doesn't: with 40 busy processes on two cores an all-reduce of 256 bytes takes 25 us on average
 * (20 with 100 us), but without yields 143 us (488 with 100 us, 1163 with 300 us). */
static const double SPIN_S = 30e-6;

/* --- joining and leaving ------------------------------------------------------------------ */

/* The order in which the ranks' parts are added. */
static lks_status plan_merges(struct lks__shm *g)
{
    const size_t W = (size_t)g->world_size;
    g->merges = malloc(W);
    lks_node *leaves = calloc(W, sizeof *leaves);
    if (g->merges == NULL || leaves == NULL) {
        free(leaves);
        return lks__no_memory("for the state of %d ranks", g->world_size);
    }
    for (int r = 0; r < g->world_size; r++)
        leaves[r] = (lks_node){.level = 0, .index = r};
    lks__tree_plan(g->world_size, leaves, g->world_size, g->merges);
    free(leaves);
    return lks__plan_open(&g->plan, g->world_size)
               ? LKS_OK
               : lks__no_memory("for the sums of %d ranks", g->world_size);
}

lks_status lks__shm_no_state(lks__segment *segment, int local_rank, int first_rank)
{
    char text[64];
    snprintf(text, sizeof text, "rank %d failed: no memory for the group's state",
             first_rank + local_rank);
    if (segment != NULL)
        lks__segment_abort(segment, LKS_ERR_PEER, local_rank, text);
    lks__segment_close(segment);
    return lks__no_memory("for the group's state");
}

/* The part of joining that doesn't wait, up to marking this rank as joined. */
static lks_status join(lks_comm *comm, lks__segment *segment, uint64_t *seq_p)
{
    struct lks__shm *g = calloc(1, sizeof *g);
    if (g == NULL)
        return lks__shm_no_state(segment, comm->world.rank, comm->first_rank);
    comm->state = g;
    g->comm = comm;
    g->segment = segment;
    g->rank = comm->world.rank;
    g->world_size = comm->world.world_size;
    g->late_elsewhere = -1;
    lks__comm_lock(); /* a thread may beat a closed group whose handle this is */
    comm->host = comm;
    lks__comm_unlock();
    g->spin_s = g->world_size <= lks__cpu_count() ? SPIN_S : 0;
    g->end = lks__round_up(lks__segment_header(segment)->base_bytes, LKS__SHM_UNIT);
    LKS__TRY(plan_merges(g));

    struct lks__rank_line *line = lks__segment_line(segment, g->rank);
    unsigned absent = LKS__RANK_ABSENT;
    if (!atomic_compare_exchange_strong(&line->state, &absent, LKS__RANK_JOINED)) {
        lks__comm_lock();
        comm->host = NULL; /* the rank that has joined needn't hear of it */
        lks__comm_unlock();
        return lks__fail(LKS_ERR_ARG,
                         "rank %d has joined this job already, as process %d: each rank joins once",
                         comm->first_rank + g->rank, atomic_load(&line->pid));
    }
    lks__comm_lock();
    g->line = line;
    lks__comm_unlock();
    atomic_store(&lks__segment_header(segment)->timeout_us,
                 (unsigned long long)(comm->timeout_s * 1e6));
    atomic_store(&line->pid, (int)getpid());
    if (comm->fails_with != NULL)
        return lks__fail(LKS_ERR_PEER, "%s", comm->fails_with);
    struct lks__shm_descriptor desc = {
        .kind = LKS__OP_JOIN, .size = (uint64_t)g->world_size, .n_parts = (uint32_t)comm->n_ranks};
    memcpy(desc.args, comm->backend, strnlen(comm->backend, sizeof desc.args - 1));
    return lks__shm_arrive(g, &desc, NULL, 0, seq_p);
}

static void shm_close(lks_comm *comm)
{
    struct lks__shm *g = comm->state;
    if (g == NULL)
        return;
    if (g->line != NULL && !lks__comm_is_inherited(comm))
        atomic_store(&g->line->state, LKS__RANK_LEFT);
    lks__shm_reduce_close(g);
    lks__segment_close(g->segment);
    free(g->merges);
    free(g->regions);
    free(g);
    comm->state = NULL;
}

static bool shm_probe(const struct lks_comm_ops *ops, const lks_world *world, char *why,
                      size_t why_bytes)
{
    if (world->local_world_size != world->world_size) {
        snprintf(why, why_bytes,
                 "it reaches the ranks of one host only, and %d of the %d ranks are elsewhere",
                 world->world_size - world->local_world_size, world->world_size);
        return false;
    }
    if (world->world_size > LKS__SEGMENT_MAX_RANKS) {
        snprintf(why, why_bytes, "it has room for %d ranks, not %d", LKS__SEGMENT_MAX_RANKS,
                 world->world_size);
        return false;
    }
    return true;
}

static lks_status shm_open_group(lks_comm *comm)
{
    /* A child process may have this rank's variables, but must not join a later group in its place:
     * a program begins with 0, and a forked child far above its parent. */
    static atomic_uint n_groups;
    const lks_world *world = &comm->world;
    const unsigned group = atomic_fetch_add(&n_groups, 1) + (comm->forks << 16);
    lks__segment *segment;
    char failure[1024] = "";
    if (comm->fails_with != NULL)
        snprintf(failure, sizeof failure, "rank %d failed: %s", comm->first_rank + world->rank,
                 comm->fails_with);
    /* A single process needs no launcher. If it has one, it uses the launcher's segment, so that
     * the launcher can report the rank's last action. */
    if (world->world_size > 1 || lks__env_set("RANK")) {
        bool given = getenv(LKS__SEGMENT_ENV) != NULL;
        lks_status st = given || world->world_size == 1
                            ? lks__segment_inherit(world->world_size, &segment)
                            : lks__segment_share(world, group, comm->timeout_s, failure, &segment);
        if (st != LKS_OK && world->world_size > 1)
            return st;
        if (st != LKS_OK)
            LKS__TRY(lks__segment_create(1, &segment));
    } else {
        LKS__TRY(lks__segment_create(1, &segment));
    }
    return lks__shm_open_on(comm, segment);
}

lks_status lks__shm_open_on(lks_comm *comm, lks__segment *segment)
{
    uint64_t seq;
    LKS__TRY(join(comm, segment, &seq));
    return lks__shm_wait_arrived(comm->state, seq);
}

lks__segment *lks__shm_segment(const lks_comm *comm)
{
    const struct lks__shm *g = comm != NULL ? comm->state : NULL;
    return g != NULL ? g->segment : NULL;
}

lks_status lks__comm_open_threads(int n, double timeout_s, lks_comm **comms)
{
    lks__segment *segment;
    LKS__TRY(lks__segment_create(n, &segment));
    lks_status st = LKS_OK;
    int made = 0;
    while (made < n && st == LKS_OK) {
        lks_world world = {made, n, made, n};
        uint64_t seq; /* the operation of joining: no wait, because all arrive at the next call */
        st = lks__comm_new(&lks__comm_shm, &world, timeout_s, &comms[made]);
        LKS__THEN(st, join(comms[made++], lks__segment_ref(segment), &seq));
    }
    lks__segment_close(segment);
    while (st != LKS_OK && made > 0)
        lks_comm_close(comms[--made]);
    return st;
}

/* --- memory ------------------------------------------------------------------------------- */

/* A rank's result of its part of an allocation, which all ranks read. */
struct alloc_result {
    int32_t status;
    char text[LKS__SHM_PAYLOAD - 4];
};

/* Share every rank's result, so that all agree on whether the memory exists. */
static lks_status share_result(struct lks__shm *g, const struct lks__shm_descriptor *call,
                               lks_status st)
{
    struct alloc_result result = {.status = st};
    if (st != LKS_OK)
        snprintf(result.text, sizeof result.text, "%s", lks_last_error());
    struct lks__shm_descriptor desc = *call;
    desc.args[2] = 1;
    uint64_t seq;
    LKS__TRY(lks__shm_arrive(g, &desc, &result, sizeof result, &seq));
    LKS__TRY(lks__shm_wait_arrived(g, seq));
    for (int r = 0; r < g->world_size; r++) {
        memcpy(&result, lks__segment_descriptor(g->segment, r, (uint32_t)seq)->payload,
               sizeof result);
        if (result.status == LKS_OK)
            continue;
        result.text[sizeof result.text - 1] = '\0';
        st = result.status == LKS_ERR_IO ? LKS_ERR_IO : LKS_ERR_NOMEM;
        return lks__fail(st, "rank %d: %s", g->comm->first_rank + r,
                         lks__shown(result.text, sizeof result.text + 64));
    }
    return LKS_OK;
}

/* Return this rank's slice of a region to the system, and the mapping. The region keeps its place
 * in the list, because positions name regions. */
static void give_back(struct lks__shm *g, struct lks__shm_region *r)
{
    const bool own = r->kind == LKS_MEM_OWN;
    if (own || g->rank == 0)
        lks__segment_release(g->segment, r->offset + (own ? r->stride * (uint64_t)g->rank : 0),
                             r->stride);
    lks__segment_unmap(g->segment, r->mem);
    r->kind = LKS__SHM_FREED;
    r->unused = false;
}

static void give_back_unused(struct lks__shm *g)
{
    for (size_t i = 0; i < g->n_regions; i++)
        if (g->regions[i].unused)
            give_back(g, &g->regions[i]);
}

/* Operations in flight, and those of a failed group, may still use the memory. */
static void shm_free(lks_comm *comm, void *mem)
{
    struct lks__shm *g = comm->state;
    for (size_t i = 0; i < g->n_regions; i++) {
        struct lks__shm_region *r = &g->regions[i];
        const uint64_t first = r->kind == LKS_MEM_OWN ? r->stride * (uint64_t)g->rank : 0;
        r->unused |= r->kind != LKS__SHM_FREED && r->mem + first == (char *)mem;
    }
    if (g->n_pending == 0 && !lks__segment_aborted(g->segment))
        give_back_unused(g);
}

/* Piece by piece: pages of a large region take seconds, in which the others wait. */
static lks_status reserve(lks_comm *comm, uint64_t offset, uint64_t bytes)
{
    static const uint64_t PIECE = 256 << 20;
    const struct lks__shm *g = comm->state;
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        const uint64_t some = bytes - at < PIECE ? bytes - at : PIECE;
        LKS__TRY(lks__segment_reserve(g->segment, offset + at, some));
        lks_comm_beat(comm);
    }
    return LKS_OK;
}

static lks_status shm_alloc(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p)
{
    struct lks__shm *g = comm->state;
    LKS__TRY(lks__shm_drain(g));
    struct lks__shm_region region = {.kind = (int)kind, .offset = g->end};
    region.stride = lks__round_up(bytes > 0 ? bytes : 1, LKS__SHM_UNIT);
    region.bytes = kind == LKS_MEM_OWN ? region.stride * (uint64_t)g->world_size : region.stride;

    struct lks__shm_descriptor desc = {.kind = LKS__OP_ALLOC, .size = bytes};
    desc.args[0] = (uint64_t)kind;
    desc.args[1] = region.offset;
    /* All ranks reserve at the same time, so the free memory that each sees would vary. So each
     * rank checks the whole region before any of them begins. */
    lks_status st = kind == LKS_MEM_LAZY ? LKS_OK : lks__segment_fits(region.bytes);
    uint64_t seq;
    LKS__TRY(lks__shm_arrive(g, &desc, NULL, 0, &seq));
    LKS__TRY(lks__shm_wait_arrived(g, seq));
    give_back_unused(g); /* no rank has operations in flight */

    /* Each rank reserves its own slice, so that its pages are close to it; rank 0 reserves common
     * memory. */
    bool reserves = kind == LKS_MEM_OWN || g->rank == 0;
    const uint64_t first = kind == LKS_MEM_OWN ? region.stride * (uint64_t)g->rank : 0;
    const uint64_t slice = region.offset + first;
    void *mem = NULL;
    struct lks__shm_region *regions = realloc(g->regions, (g->n_regions + 1) * sizeof *regions);
    if (regions == NULL)
        st = lks__no_memory("for the list of shared regions");
    else
        g->regions = regions;
    reserves = reserves && st == LKS_OK;
    if (reserves)
        st = kind == LKS_MEM_LAZY ? lks__segment_extend(g->segment, slice + region.stride)
                                  : reserve(comm, slice, region.stride);
    LKS__THEN(st, lks__segment_map(g->segment, region.offset, region.bytes, &mem));
    st = share_result(g, &desc, st);
    if (st != LKS_OK) {
        if (reserves)
            lks__segment_release(g->segment, slice, region.stride);
        if (mem != NULL)
            lks__segment_unmap(g->segment, mem);
        return st;
    }
    region.mem = mem;
    g->regions[g->n_regions++] = region;
    g->end = region.offset + region.bytes;
    *mem_p = region.mem + first;
    return LKS_OK;
}

void lks__shm_undo_alloc(lks_comm *comm)
{
    struct lks__shm *g = comm->state;
    give_back(g, &g->regions[--g->n_regions]);
    g->end = g->regions[g->n_regions].offset;
}

static void shm_drop(lks_comm *comm, void *mem, size_t from, size_t end)
{
    struct lks__shm *g = comm->state;
    uint64_t offset;
    if (!lks__shm_offset(g, mem, end, LKS_MEM_LAZY, g->rank, &offset))
        return;
    uint64_t first = lks__round_up(offset + from, LKS__SHM_PAGE);
    uint64_t last = (offset + end) / LKS__SHM_PAGE * LKS__SHM_PAGE;
    if (first < last)
        lks__segment_release(g->segment, first, last - first);
}

static const struct lks__shm_region *region_at(const struct lks__shm *g, uint64_t offset)
{
    for (size_t i = 0; i < g->n_regions; i++)
        if (offset >= g->regions[i].offset && offset - g->regions[i].offset < g->regions[i].bytes)
            return &g->regions[i];
    return NULL;
}

static void *shm_peer(const lks_comm *comm, const void *mem, int peer)
{
    const struct lks__shm *g = comm->state;
    uint64_t offset;
    if (!lks__shm_offset(g, mem, 1, LKS_MEM_OWN, g->rank, &offset))
        return NULL;
    const struct lks__shm_region *r = region_at(g, offset);
    return r->mem + (offset - r->offset) % r->stride + r->stride * (uint64_t)peer;
}

/* True if [from, from + size) is inside the slice of a region that belongs to `rank`. */
static bool in_slice(const struct lks__shm_region *r, uint64_t from, uint64_t size, int rank)
{
    uint64_t first = r->kind == LKS_MEM_OWN ? r->stride * (uint64_t)rank : 0;
    return from >= first && from - first <= r->stride && size <= r->stride - (from - first);
}

bool lks__shm_offset(const struct lks__shm *g, const void *p, uint64_t size, int kind, int rank,
                     uint64_t *offset_p)
{
    for (size_t i = 0; i < g->n_regions; i++) {
        const struct lks__shm_region *r = &g->regions[i];
        uintptr_t at = (uintptr_t)p, mem = (uintptr_t)r->mem;
        if (r->kind != kind || at < mem || !in_slice(r, at - mem, size, rank))
            continue;
        *offset_p = r->offset + (at - mem);
        return true;
    }
    return false;
}

void *lks__shm_address(const struct lks__shm *g, uint64_t offset, uint64_t size, int kind, int rank)
{
    for (size_t i = 0; i < g->n_regions; i++) {
        const struct lks__shm_region *r = &g->regions[i];
        if (r->kind == kind && offset >= r->offset && in_slice(r, offset - r->offset, size, rank))
            return r->mem + (offset - r->offset);
    }
    return NULL;
}

uint64_t lks__shm_location_at(const struct lks__shm *g, uint64_t offset)
{
    const struct lks__shm_region *r = region_at(g, offset);
    return r != NULL ? (uint64_t)(r - g->regions + 1) << 46 ^ (offset - r->offset) % r->stride : 0;
}

lks_status lks__shm_location(const lks_comm *comm, const char *call, const void *mem, size_t bytes,
                             bool lazy, uint64_t *location_p)
{
    const struct lks__shm *g = comm->state;
    uint64_t offset;
    LKS__TRY(lks__shm_check_common(g, call, mem, bytes, lazy, &offset));
    *location_p = bytes > 0 ? lks__shm_location_at(g, offset) : 0;
    return LKS_OK;
}

const struct lks_comm_ops lks__comm_shm = {
    .name = "shm",
    .probe = shm_probe,
    .open = shm_open_group,
    .close = shm_close,
    .alloc = shm_alloc,
    .peer = shm_peer,
    .barrier = lks__shm_barrier,
    .broadcast = lks__shm_broadcast,
    .all_gather = lks__shm_all_gather,
    .all_reduce = lks__shm_all_reduce,
    .reduce_scatter = lks__shm_reduce_scatter,
    .all_gather_v = lks__shm_all_gather_v,
    .replicate = lks__shm_replicate,
    .gather_shares = lks__shm_gather_shares,
    .drop = shm_drop,
    .free = shm_free,
    .reduce_start = lks__shm_reduce_start,
    .progress = lks__shm_progress,
    .wait = lks__shm_work_wait,
    .forget = lks__shm_work_forget,
    .test = lks__shm_work_test,
};
