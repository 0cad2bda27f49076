/* lks_comm_split(): groups of some of a group's ranks. The ranks exchange their wishes, then
 * offers: the first rank of each host in a part offers shared memory, and the part's first rank an
 * address at which its hosts meet. A part then opens like any group. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "comm/hier/hier.h"

/* The request of a rank, and the facts that the other ranks of its part need. */
struct wish {
    int32_t color, key;
    int32_t rank, machine, pid;
    int32_t number, tag; /* in the engine; of the part, if this rank is its first one */
    char address[64];
};

struct offer {
    int32_t status; /* of this rank's steps so far */
    int32_t port;   /* of the part's store */
    char segment[LKS__SEGMENT_OFFER_BYTES];
    char text[400];
};

struct split {
    lks_comm *comm;
    int W;
    const lks__engine *engine; /* NULL: one host */
    struct wish *all;          /* [W] then this rank's part: [n] in its order */
    struct offer *offers;      /* [W] */
    struct offer own;
    int n, rank;       /* of the part */
    int first, end;    /* the ranks of the part that share this rank's host */
    int n_hosts, host; /* of the part */
    lks__segment *segment;
    struct lks__hier_part *part; /* NULL: the part has one host */
    lks_comm *made;              /* not open yet */
};

static lks_status open_split(struct split *s)
{
    s->all = calloc((size_t)s->W, sizeof *s->all);
    s->offers = calloc((size_t)s->W, sizeof *s->offers);
    if (s->all != NULL && s->offers != NULL)
        return LKS_OK;
    return lks__comm_fail_call(s->comm, lks__no_memory("to split a group of %d ranks", s->W));
}

static void close_split(struct split *s)
{
    lks__segment_close(s->segment);
    lks__hier_part_free(s->part);
    lks_comm_close(s->made);
    free(s->all);
    free(s->offers);
}

static lks_status exchange_wishes(struct split *s, int color, int key)
{
    static atomic_uint n_splits;
    struct wish own = {color,
                       key,
                       s->comm->world.rank,
                       s->comm->machine,
                       (int32_t)getpid(),
                       0,
                       (int32_t)(atomic_fetch_add(&n_splits, 1) % INT32_MAX),
                       ""};
    if (s->engine != NULL && s->engine->number != NULL)
        own.number = s->engine->number();
    if (s->engine != NULL && s->engine->needs_store)
        LKS__TRY(lks__hier_address(s->comm, own.address));
    LKS__TRY(lks_comm_all_gather(s->comm, &own, s->all, sizeof own, LKS_UINT8));
    for (int r = 0; r < s->W; r++)
        s->all[r].address[sizeof own.address - 1] = '\0';
    return LKS_OK;
}

static int by_key(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->rank - y->rank;
}

/* Keep the ranks of this rank's part. Each run of ranks on one machine is a host of the part. */
static void find_part(struct split *s, int color)
{
    for (int r = 0; r < s->W; r++)
        if (s->all[r].color == color)
            s->all[s->n++] = s->all[r];
    qsort(s->all, (size_t)s->n, sizeof *s->all, by_key);
    for (int r = 0; r < s->n; r++)
        if (s->all[r].rank == s->comm->world.rank)
            s->rank = r;
    s->end = s->n;
    for (int r = 0; r < s->n; r++) {
        if (r > 0 && s->all[r].machine == s->all[r - 1].machine)
            continue;
        s->n_hosts++;
        if (r <= s->rank) {
            s->first = r;
            s->host = s->n_hosts - 1;
        } else if (r < s->end) {
            s->end = r;
        }
    }
}

/* Prepare what this rank contributes to the opening of its part. */
static lks_status prepare(struct split *s)
{
    const lks_world world = {s->rank, s->n, s->rank - s->first, s->end - s->first};
    LKS__TRY(lks__comm_new(s->n_hosts == 1 ? &lks__comm_shm : s->comm->ops, &world,
                           s->comm->timeout_s, &s->made));
    if (s->rank == s->first) {
        LKS__TRY(lks__segment_create(s->end - s->first, &s->segment));
        for (int r = s->first; r < s->end; r++)
            lks__segment_expect(s->segment, r - s->first, s->all[r].pid);
        lks__segment_offer(s->segment, s->own.segment);
    }
    if (s->n_hosts == 1)
        return LKS_OK;
    s->part = calloc(1, sizeof *s->part);
    int *numbers = calloc(2 * (size_t)s->n, sizeof *numbers);
    if (s->part == NULL || numbers == NULL) {
        free(numbers);
        return lks__no_memory("for a part of %d ranks", s->n);
    }
    s->part->numbers = numbers;
    s->part->ranks = numbers + s->n;
    s->part->host = s->host;
    s->part->n_hosts = s->n_hosts;
    s->part->tag = s->all[0].tag;
    for (int r = 0; r < s->n; r++) {
        numbers[r] = s->all[r].number;
        s->part->ranks[r] = s->all[r].rank;
    }
    memcpy(s->part->address, s->all[s->rank].address, sizeof s->part->address);
    if (s->rank != 0 || !s->engine->needs_store)
        return LKS_OK;
    LKS__TRY(lks__hier_part_serve(s->part));
    s->own.port = s->part->store_port;
    return LKS_OK;
}

/* Use the offers of this rank's host and of its part. */
static lks_status use_offers(struct split *s)
{
    const struct wish *first = &s->all[0];
    if (s->part != NULL) {
        memcpy(s->part->store_address, first->address, sizeof s->part->store_address);
        s->part->store_port = s->offers[first->rank].port;
    }
    if (s->rank == s->first)
        return LKS_OK;
    struct offer *o = &s->offers[s->all[s->first].rank];
    o->segment[sizeof o->segment - 1] = '\0';
    const lks_status st = lks__segment_take(o->segment, s->end - s->first, &s->segment);
    return st == LKS_ERR_PEER ? lks__fail(st, "rank %d has ended", s->all[s->first].rank) : st;
}

/* Exchange offers and statuses: if a rank has failed, all fail, so that none waits for it. */
static lks_status agree(struct split *s, lks_status st)
{
    s->own.status = st;
    if (st != LKS_OK)
        snprintf(s->own.text, sizeof s->own.text, "%s", lks_last_error());
    LKS__TRY(lks_comm_all_gather(s->comm, &s->own, s->offers, sizeof s->own, LKS_UINT8));
    for (int r = 0; r < s->W; r++) {
        struct offer *o = &s->offers[r];
        if (o->status == LKS_OK)
            continue;
        o->text[sizeof o->text - 1] = '\0';
        return lks__fail((lks_status)o->status, "lks_comm_split, rank %d: %s", r,
                         lks__shown(o->text, sizeof o->text + 64));
    }
    return LKS_OK;
}

static lks_status open_part(struct split *s, lks_comm **part_p)
{
    lks__segment *segment = s->segment;
    struct lks__hier_part *hosts = s->part;
    lks_comm *part = s->made;
    part->machine = s->comm->machine;
    lks__comm_part_of(part, s->comm);
    s->segment = NULL; /* they are the part's now */
    s->part = NULL;
    s->made = NULL;
    lks_status st = hosts == NULL ? lks__shm_open_on(part, segment)
                                  : lks__hier_open(part, s->engine, segment, hosts);
    if (st == LKS_ERR_PEER || st == LKS_ERR_NOMEM) /* ranks of other hosts may wait for it */
        lks_comm_abort(s->comm, lks_last_error());
    return lks__comm_opened(part, st, part_p);
}

static lks_status split(struct split *s, int color, int key, lks_comm **part_p)
{
    LKS__TRY(open_split(s));
    LKS__TRY(exchange_wishes(s, color, key));
    if (color >= 0)
        find_part(s, color);
    LKS__TRY(agree(s, color >= 0 ? prepare(s) : LKS_OK));
    LKS__TRY(agree(s, color >= 0 ? use_offers(s) : LKS_OK));
    return color >= 0 ? open_part(s, part_p) : LKS_OK;
}

lks_status lks_comm_split(lks_comm *comm, int color, int key, lks_comm **part_p)
{
    LKS__FLOAT_MODE();
    LKS__CALLED_BY(SPLIT);
    LKS__NEED("lks_comm_split", part_p);
    *part_p = NULL;
    LKS__NEED("lks_comm_split", comm);
    if (color < -1)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_split: color is %d: use a number from 0 up, or -1 for no part",
                         color);
    LKS__TRY(lks__comm_check_open(comm, "lks_comm_split"));
    struct split s = {.comm = comm, .W = comm->world.world_size, .engine = lks__hier_engine(comm)};
    lks_status st = split(&s, color, key, part_p);
    close_split(&s);
    return st;
}
