#include "comm/hier/hier.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the host's own group ----------------------------------------------------------------- */

/* If the launcher isn't lockstep's, the leader makes the segment, and names it in the hello. */
static lks_status offer_segment(struct lks__hier *h, lks__segment **made_p)
{
    if (*made_p != NULL || getenv(LKS__SEGMENT_ENV) != NULL || h->join.local_world_size == 1)
        return LKS_OK;
    LKS__TRY(lks__segment_create(h->join.local_world_size, made_p));
    lks__segment_offer(*made_p, h->join.hello);
    return LKS_OK;
}

static lks_status take_segment(struct lks__hier *h, lks__segment **segment_p)
{
    h->join.hello[sizeof h->join.hello - 1] = '\0';
    if (h->join.hello[0] == '\0')
        return LKS_OK;
    return lks__segment_take(h->join.hello, h->join.local_world_size, segment_p);
}

static lks_status open_local(struct lks__hier *h, lks__segment *segment)
{
    const lks__engine_join *j = &h->join;
    lks_world world = {j->local_rank, j->local_world_size, j->local_rank, j->local_world_size};
    if (lks__comm_new(&lks__comm_shm, &world, h->comm->timeout_s, &h->local) != LKS_OK)
        return lks__shm_no_state(segment, j->local_rank, j->rank - j->local_rank);
    h->local->first_rank = j->rank - j->local_rank;
    h->local->n_ranks = j->world_size;
    h->local->backend = h->comm->backend;
    lks__comm_part_of(h->local, h->comm->whole);
    if (h->ops->every_rank) /* then all ranks can agree in the open group */
        h->local->fails_with = NULL;
    return segment != NULL ? lks__shm_open_on(h->local, segment) : h->local->ops->open(h->local);
}

/* --- the hosts ---------------------------------------------------------------------------- */

struct lks__shm_descriptor *lks__hier_descriptors(int n)
{
    size_t bytes = (size_t)n * sizeof(struct lks__shm_descriptor);
    struct lks__shm_descriptor *descs = aligned_alloc(_Alignof(struct lks__shm_descriptor), bytes);
    return descs != NULL ? memset(descs, 0, bytes) : NULL;
}

static lks_status open_hosts(struct lks__hier *h)
{
    size_t n = (size_t)h->n_hosts;
    h->hosts = calloc(n, sizeof *h->hosts);
    h->descs = lks__hier_descriptors(h->n_hosts);
    h->slots = calloc(n * (4 * LKS__ENGINE_SLOTS + 6), sizeof *h->slots);
    if (h->hosts == NULL || h->descs == NULL || h->slots == NULL)
        return lks__no_memory("for %d hosts", h->n_hosts);
    size_t **lists[] = {&h->desc_bytes,  &h->send_bytes, &h->recv_bytes,
                        &h->sumsq_bytes, &h->send_at,    &h->recv_at};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        *lists[i] = h->slots + (4 * LKS__ENGINE_SLOTS + i) * n;
    for (size_t i = 0; i < n; i++)
        h->desc_bytes[i] = sizeof *h->descs;
    if (!lks__plan_open(&h->shm_plan, h->join.local_world_size) ||
        !lks__plan_open(&h->plan, h->n_hosts))
        return lks__no_memory("for the sums of %d hosts", h->n_hosts);
    return LKS_OK;
}

/* The first exchange: the ranks that each host has. The leader's thread fills h->first, which it
 * also reads. */
static lks_status meet_hosts(struct lks__hier *h)
{
    struct lks__shm_descriptor desc = {.kind = LKS__OP_JOIN, .size = (uint64_t)h->join.world_size};
    desc.n_parts = (uint32_t)h->join.local_world_size;
    struct lks__hier_wait wait = {.op.kind = -1};
    lks_status st = lks__hier_call(h, &desc, &wait);
    if (st == LKS_OK && h->first[h->n_hosts] != h->join.world_size)
        st = lks__fail(LKS_ERR_CONFIG,
                       "the %d hosts have %d ranks together, and WORLD_SIZE is %d: a host's "
                       "LOCAL_WORLD_SIZE, or GROUP_WORLD_SIZE, is wrong",
                       h->n_hosts, h->first[h->n_hosts], h->join.world_size);
    return st;
}

/* On the leader. The host's other ranks get the result, or its failure. */
static lks_status open_between(struct lks__hier *h)
{
    if (!h->ops->every_rank) {
        lks_status st = h->ops->needs_store ? lks__hier_rendezvous_open(h) : LKS_OK;
        if (st == LKS_OK && h->ops->needs_store)
            st = lks__hier_compare_worlds(h);
        LKS__THEN(st, lks__hier_thread_open(h));
        if (st != LKS_OK && !h->stuck)
            st = lks__hier_tell(h, st);
        if (!h->stuck)
            lks__store_close(h->store);
        LKS__TRY(st);
    }
    if (h->n_hosts < 1 || h->n_hosts > LKS__HIER_MAX_HOSTS || h->host < 0 || h->host >= h->n_hosts)
        return lks__fail(LKS_ERR_CONFIG, "%d hosts: 1 to %d are possible", h->n_hosts,
                         LKS__HIER_MAX_HOSTS);
    h->first = calloc((size_t)h->n_hosts + 1, sizeof *h->first);
    LKS__MEMORY(h->first, "for %d hosts", h->n_hosts);
    LKS__TRY(open_hosts(h));
    lks__hier_thread_ready(h);
    lks_status st = meet_hosts(h);
    if (h->ops->needs_store && st == LKS_OK) {
        lks__store_stop(h->server); /* all hosts are connected */
        h->server = NULL;
        st = meet_hosts(h); /* no host looks for the next group's store in this one's */
    }
    if (st == LKS_ERR_PEER)
        LKS__TRY(lks__hier_whole_failed(h, true)); /* it knows which rank of a part has ended */
    return st;
}

static lks_status learn_hosts(struct lks__hier *h, lks_status st)
{
    if (h->leads && st != LKS_OK)
        return lks__comm_not_opened(h->local, st);
    int numbers[2] = {h->host, h->n_hosts};
    st = lks_comm_broadcast(h->local, numbers, sizeof numbers, LKS_UINT8, 0);
    if (st == LKS_ERR_PEER)
        LKS__TRY(lks__hier_whole_failed(h, true));
    LKS__TRY(st);
    if (!h->leads) {
        h->host = numbers[0];
        h->n_hosts = numbers[1];
        h->first = calloc((size_t)h->n_hosts + 1, sizeof *h->first);
    }
    LKS__MEMORY(h->first, "for %d hosts", h->n_hosts);
    LKS__TRY(lks_comm_broadcast(h->local, h->first, ((size_t)h->n_hosts + 1) * sizeof *h->first,
                                LKS_UINT8, 0));
    if (h->first[h->n_hosts] != h->join.world_size) /* the leaders have compared theirs */
        return lks__fail(LKS_ERR_CONFIG,
                         "WORLD_SIZE is %d here, and %d on this host's first rank: it must be the "
                         "same everywhere",
                         h->join.world_size, h->first[h->n_hosts]);
    /* Ranks are in the order of (host, local rank), whatever the launcher's numbers are. */
    h->comm->world.rank = h->first[h->host] + h->join.local_rank;
    if (h->part == NULL)
        h->comm->machine = h->host;
    h->local->first_rank = h->first[h->host];
    return LKS_OK;
}

static lks_status join_engine(struct lks__hier *h, lks__segment **segment_p)
{
    LKS__TRY(lks__hier_thread_open(h));
    return h->leads ? LKS_OK : take_segment(h, segment_p);
}

lks_status lks__hier_open(lks_comm *comm, const lks__engine *engine, lks__segment *segment,
                          struct lks__hier_part *part)
{
    struct lks__hier *h = aligned_alloc(_Alignof(struct lks__hier),
                                        sizeof *h); /* descriptors are aligned to cache lines */
    const int local_rank = comm->world.local_rank;
    if (h == NULL) {
        lks__hier_part_free(part);
        return lks__shm_no_state(segment, local_rank, comm->world.rank - local_rank);
    }
    *h = (struct lks__hier){.comm = comm, .part = part};
    comm->state = h;
    h->ops = engine;
    h->leads = local_rank == 0;
    char name[sizeof h->name] = "localhost";
    gethostname(name, sizeof name - 1);
    lks__escape(h->name, sizeof h->name, name, strlen(name));
    h->late = -1;
    h->join = (lks__engine_join){.rank = comm->world.rank,
                                 .world_size = comm->world.world_size,
                                 .local_rank = local_rank,
                                 .local_world_size = comm->world.local_world_size,
                                 .timeout_s = comm->timeout_s,
                                 .members = part != NULL ? part->numbers : NULL,
                                 .tag = part != NULL ? part->tag : 0};
    if (engine->every_rank) {
        lks_status st = h->leads ? offer_segment(h, &segment) : LKS_OK;
        LKS__THEN(st, join_engine(h, &segment));
        if (st != LKS_OK) {
            lks__segment_close(segment);
            return st;
        }
    }
    const lks_status st = open_local(h, segment);
    if (st != LKS_OK)
        return lks__hier_tell_early(h, st);
    lks__comm_lock();
    comm->host = h->local;
    lks__comm_unlock();
    return learn_hosts(h, h->leads ? open_between(h) : LKS_OK);
}

/* Reductions in flight can't end without this rank's share, or without the leader's thread. So
 * report the reason to the others, and let the thread stop instead of waiting for them. */
static void give_up_works(struct lks__hier *h)
{
    if (lks__shm_segment(h->local) != NULL &&
        (lks__hier_is_busy(h) || lks__shm_owes_shares(h->local)))
        lks_comm_abort(h->local,
                       "it closed the group while reductions were in flight: wait for them "
                       "with lks_work_wait() or lks_ddp_step() before lks_comm_close()");
}

static void leave(struct lks__hier *h)
{
    give_up_works(h);
    const lks__segment *segment = lks__shm_segment(h->local);
    bool failed = segment == NULL || lks__segment_aborted(segment);
    lks__hier_thread_close(h);
    lks__store_stop(h->server);
    if (!h->leads && h->engine != NULL)
        h->ops->leave(h->engine, !failed);
}

void lks__hier_close(lks_comm *comm)
{
    struct lks__hier *h = comm->state;
    if (h == NULL)
        return;
    if (h->stuck) /* the thread uses all of it, and the process is about to end */
        return;
    if (!lks__comm_is_inherited(comm)) /* a child has neither the threads nor the connections */
        leave(h);
    lks__plan_close(&h->plan);
    lks__plan_close(&h->shm_plan);
    lks_comm_close(h->local);
    lks__hier_part_free(h->part);
    free(h->hosts);
    free(h->descs);
    free(h->slots);
    free(h->staging);
    free(h->narrow);
    free(h->first);
    free(h);
    comm->state = NULL;
}

void *lks__hier_peer(const lks_comm *comm, const void *mem, int peer)
{
    const struct lks__hier *h = comm->state;
    int first = h->first[h->host], end = h->first[h->host + 1];
    return peer < first || peer >= end ? NULL : lks_comm_peer(h->local, mem, peer - first);
}

const lks__engine *lks__hier_engine(const lks_comm *comm)
{
    const struct lks__hier *h = comm->ops->close == lks__hier_close ? comm->state : NULL;
    return h != NULL ? h->ops : NULL;
}
