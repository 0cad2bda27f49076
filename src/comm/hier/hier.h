/* comm/hier/hier.h - groups over several hosts: shm on each, an engine between them.
 *
 * The ranks of a host form a separate group, in shared memory, with one replica. Their leader,
 * local rank 0, has a thread that communicates with the other hosts' leaders. Each collective
 * starts on the host, continues among hosts, and ends on the host. In a reduction each host adds
 * its ranks' parts as far as the canonical tree allows; the hosts exchange shards of these sums
 * (all-to-all), each adds its shard in the tree's order, and the shards are gathered. So all
 * engines produce the bits of shm.
 *
 * Every operation between hosts begins with an exchange of descriptors, as in shm: calls that don't
 * match are found before any data move. */
#pragma once

#include <pthread.h>

#include "comm/backend.h"
#include "comm/hier/link/engine.h"
#include "comm/shm/host.h"
#include "comm/store/store.h"
#include "comm/tree/plan.h"

enum {
    LKS__HIER_MAX_HOSTS = 1024,
    LKS__HIER_TASKS = LKS__SHM_IN_FLIGHT + 2, /* reductions in flight, and one blocking call */
    LKS__HIER_SUMS = 2,                       /* pieces of an all-reduce in progress */
    LKS__HIER_SUM_BLOCKS = 512,               /* maximal number of blocks in a piece */
    LKS__HIER_WHO = 128,                      /* size of a host's description */
};

/* Seconds between heartbeats. */
#define LKS__HIER_HEARTBEAT_S 0.2

/* One operation for the leader's thread. */
struct lks__hier_task {
    struct lks__shm_descriptor desc; /* the descriptor on our side */

    /* For reductions: waiters are woken through shared memory. */
    struct lks__shm_between between;

    /* For other operations: the transfer after the descriptors; the caller waits for `done`. */
    struct lks__hier_wait *wait;
};

struct lks__hier_wait {
    lks__engine_op op;                 /* the transfer; kind -1: only descriptors */
    struct lks__shm_descriptor *descs; /* [n_hosts] out; NULL: not needed */
    bool done;
    lks_status st;
};

/* The message that a leader sends to the others several times a second. Plain data, because all
 * hosts run the same build. */
struct lks__hier_heartbeat {
    uint32_t magic;
    int32_t status; /* status of the host's failure; LKS_OK: none */
    int32_t left;   /* the host has left the group in order */
    /* stop_signal asks all ranks to stop; saving: a rank of the host saves a checkpoint. */
    int32_t stop_signal, saving;
    /* The rank that has been silent for longest without waiting, or that caused the failure; -1:
     * all wait, or not known. */
    int32_t rank;
    int32_t ended;  /* a rank of the host whose process has ended before it left; -1: none */
    uint64_t begun; /* operations between hosts that need nothing more from the host's ranks */
    uint64_t step;
    double age_s;
    char phase[LKS__SHM_PHASE + 1];
    char name[64];  /* the host's name, safe on a terminal */
    char text[864]; /* text of the failure */
};
_Static_assert(sizeof(struct lks__hier_heartbeat) <= LKS__ENGINE_MESSAGE, "a heartbeat fits");

struct lks__hier_host {
    struct lks__hier_heartbeat last; /* the latest heartbeat */
    double last_s;                   /* time of arrival */
    double ended_s;                  /* when a heartbeat first had an ended rank; 0: not yet */
    int32_t ended;                   /* that rank */
    bool gone;
};

/* A group that was split from another one: facts that the environment doesn't have. */
struct lks__hier_part {
    int host, n_hosts;
    int *numbers; /* [world_size] of the ranks in the engine (engine.h) */
    int tag;      /* engine.h */
    int *ranks;   /* [world_size] their numbers in the group that was split */
    /* For an engine that needs a store: this host's address, the part's store, and rank 0's server
     * of it. */
    char address[64], store_address[64];
    int store_port;
    lks__store_server *server;
};

struct lks__hier {
    struct lks__hier_part *part; /* NULL: the environment describes the group */
    lks_comm *comm;              /* the group of all ranks */
    lks_comm *local;             /* the group of this host, on shm */
    const lks__engine *ops;
    lks__engine_join join;
    lks__store_server *server; /* rank 0's store, if the launcher doesn't serve one */
    lks__store *store;         /* the connection to the job's store while hosts meet */
    unsigned group;            /* number of this group in the process, part of its keys */
    bool leads;
    int host, n_hosts;
    char name[64]; /* this host's name */
    int *first;    /* [n_hosts + 1] the first rank of each host */

    /* Pieces of lks_comm_all_reduce() in progress. */
    struct lks__hier_sum {
        float *own, *common; /* [sum_room] */
        double *sumsq;
        size_t start[LKS__HIER_SUM_BLOCKS + 1]; /* borders of blocks */
        lks_work *work;
    } sums[LKS__HIER_SUMS];
    size_t sum_room; /* elements */

    /* --- only for the leader --- */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    struct lks__hier_task tasks[LKS__HIER_TASKS];
    unsigned first_task, n_tasks;
    int joined; /* 1; -1: it failed */
    bool ready, stop;
    bool stuck;         /* the thread will not return from the engine */
    int meets;          /* 1 + the host to which Gloo connects; 0: none, or unknown */
    double met_s;       /* start of the current wait for a host */
    atomic_bool serves; /* the thread is connected to the other hosts; not guarded */
    char open_why[512];

    /* --- only for the thread --- */
    void *engine;
    struct lks__hier_host *hosts;      /* [n_hosts] */
    struct lks__shm_descriptor *descs; /* [n_hosts] */
    /* [LKS__ENGINE_SLOTS][4][n_hosts]: offsets and sizes of operations in progress; then the memory
     * of the lists below. */
    size_t *slots;
    size_t *desc_bytes, *send_bytes, *recv_bytes, *sumsq_bytes; /* [n_hosts] */
    size_t *send_at, *recv_at;                                  /* [n_hosts] */
    uint64_t n_started, n_ended; /* operations of the engine; they end in order */
    struct lks__plan plan;       /* reduce.c: of the hosts' sums, and of this host's parts */
    struct lks__plan shm_plan;
    float *staging; /* pieces of other hosts */
    size_t staging_bytes;
    uint16_t *narrow; /* for LKS_WIRE_BFLOAT16: a whole bucket to send, and the received pieces */
    size_t narrow_bytes;
    uint64_t number; /* of the current operation between hosts */
    uint64_t begun;  /* as in a heartbeat */
    double sent_s, looked_s;
    double began_s;           /* when the current operation between hosts began to wait */
    double stopped_s, back_s; /* length of this process's last stops; when it was continued */
    bool sent_failure;
    int32_t sent_stop, sent_saving;
    int late;      /* the rank of another host that caused a failure; -1: not known */
    unsigned idle; /* polls without an event */
};

/* --- hier.c ------------------------------------------------------------------------------- */

/* Allocate zeroed descriptors; free() them. calloc() wouldn't align them to cache lines, as their
 * type requires. */
struct lks__shm_descriptor *lks__hier_descriptors(int n);

/* Open `comm` over `engine`. `segment`: this host's, taken over. NULL: the segment that the
 * environment names, or one that the ranks of the host agree on through the engine. `part` is taken
 * over, too; NULL: the environment describes the group. */
lks_status lks__hier_open(lks_comm *comm, const lks__engine *engine, lks__segment *segment,
                          struct lks__hier_part *part);
void lks__hier_close(lks_comm *comm);

/* The backends of the engines (modules.c), in the order of comm/engines.h; NULL after the last. */
const struct lks_comm_ops *lks__hier_backend(int index);

/* The engine that `comm` uses; NULL if it uses none. */
const lks__engine *lks__hier_engine(const lks_comm *comm);

/* The slots of a backend with an engine; each sets name, probe and open itself. */
#define LKS__HIER_OPS                                                                              \
    .close = lks__hier_close, .alloc = lks__hier_alloc, .peer = lks__hier_peer,                    \
    .barrier = lks__hier_barrier, .broadcast = lks__hier_broadcast,                                \
    .all_gather = lks__hier_all_gather, .all_reduce = lks__hier_all_reduce,                        \
    .reduce_scatter = lks__hier_reduce_scatter, .all_gather_v = lks__hier_all_gather_v,            \
    .replicate = lks__hier_replicate, .host_share = lks__hier_host_share,                          \
    .gather_shares = lks__hier_gather_shares, .reduce_start = lks__hier_reduce_start,              \
    .wait = lks__hier_work_wait

void *lks__hier_peer(const lks_comm *comm, const void *mem, int peer);

/* --- rendezvous.c ------------------------------------------------------------------------- */

/* True if the environment names a store, or an address at which rank 0 can serve one. */
bool lks__hier_can_meet(void);
/* Set the fields for an engine that finds its hosts through the job's store. */
lks_status lks__hier_rendezvous_open(struct lks__hier *h);
/* ERR_CONFIG if WORLD_SIZE or the number of hosts differs between hosts: an engine's
 * own message wouldn't say so. Host 0 waits for all hosts. Does nothing for a part. */
lks_status lks__hier_compare_worlds(struct lks__hier *h);
/* A host that waits for another one gives up so many seconds later than two that wait for each
 * other: they can't connect, and the other one may wait for a third. */
#define LKS__HIER_LATER_S 1.0
/* True if the host to which Gloo connects waits for this one, too, as the store says: there is no
 * connection between them. The caller holds the lock, so the thread doesn't use the store. */
bool lks__hier_apart(struct lks__hier *h);
/* Tell the hosts that wait in the rendezvous of this host's failure `st` and lks_last_error(), or
 * learn theirs, which may be its cause. Returns the group's failure. */
lks_status lks__hier_tell(struct lks__hier *h, lks_status st);
/* The same after a failure of this host's own ranks, before it has joined: tell its ranks, and from
 * its leader, if the others can be reached within seconds, the hosts. */
lks_status lks__hier_tell_early(struct lks__hier *h, lks_status st);
/* The address of this host in the job's network; every rank of the host calls it. */
lks_status lks__hier_address(lks_comm *comm, char address[64]);
/* On the first rank of a part: serve a store at part->address. */
lks_status lks__hier_part_serve(struct lks__hier_part *part);
void lks__hier_part_free(struct lks__hier_part *part); /* NULL does nothing */

/* --- collective.c ------------------------------------------------------------------------- */

lks_status lks__hier_alloc(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p);
lks_status lks__hier_barrier(lks_comm *comm);
lks_status lks__hier_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);
lks_status lks__hier_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                                lks_dtype dtype);
lks_status lks__hier_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype,
                                lks_op op);
lks_status lks__hier_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                    lks_dtype dtype, lks_op op);
lks_status lks__hier_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                  lks_dtype dtype);
/* Make room in h->sums for `count` floats, or for a piece of them: h->sum_room. */
lks_status lks__hier_open_sums(struct lks__hier *h, size_t count);
void lks__hier_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);
lks_status lks__hier_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                   size_t n_blocks, int to_first);
lks_status lks__hier_replicate(lks_comm *comm, void *mem, size_t bytes);

/* --- combine.c ---------------------------------------------------------------------------- */

/* All-reduce of any type and operation; all ranks have arrived with descriptor `desc`. `from`
 * [count] and `to` may be the same memory. With `scatter`, `from` has `count` elements for each
 * rank, and `to` gets this rank's. */
lks_status lks__hier_combine(lks_comm *comm, struct lks__shm_descriptor *desc, const void *from,
                             void *to, size_t count, lks_dtype dtype, lks_op op, bool scatter);

/* --- reduce.c ----------------------------------------------------------------------------- */

lks_status lks__hier_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);
lks_status lks__hier_work_wait(lks_comm *comm, lks_work *work);
/* The part of a reduction that the leader's thread does. */
lks_status lks__hier_reduce(struct lks__hier *h, struct lks__hier_task *task);
/* Convert to bfloat16 for sending (to nearest, ties to even), and back. */
void lks__wire_narrow(uint16_t *out, const float *x, size_t n);
void lks__wire_widen(float *out, const uint16_t *x, size_t n);

/* --- thread.c: the leader's thread ---------------------------------------------------------- */

/* Start the thread and wait until it has joined the engine. */
lks_status lks__hier_thread_open(struct lks__hier *h);
/* The failure, now or if it `waits` within 2 s, of the group that this one becomes a part of: an
 * engine or a store that can't be reached doesn't tell which rank has ended, but that group's
 * threads do. A heartbeat in both groups. */
lks_status lks__hier_whole_failed(struct lks__hier *h, bool waits);
void lks__hier_thread_ready(struct lks__hier *h); /* all that it needs is set */
void lks__hier_thread_close(struct lks__hier *h); /* orderly, unless the group has failed */
bool lks__hier_is_busy(struct lks__hier *h);      /* true if operations are queued or running */
/* True while this rank's thread is connected to the other hosts. After a failure it tells them and
 * disconnects. False on a rank that doesn't lead its host, and for a group of shared memory. */
bool lks__hier_serves(const lks_comm *comm);
/* Queue an operation; `wait` is NULL for reductions. */
lks_status lks__hier_post(struct lks__hier *h, const struct lks__hier_task *task);
/* Queue an operation and wait for it. */
lks_status lks__hier_call(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                          struct lks__hier_wait *wait);

/* --- operations.c: only the leader's thread calls these ------------------------------------ */

/* Start one operation of the engine. If that fails, the group fails. Offsets and sizes are copied
 * (offsets NULL: consecutive pieces), memory is not. *ticket_p is its number. */
lks_status lks__hier_start(struct lks__hier *h, const lks__engine_op *op, uint64_t *ticket_p);
/* Wait for all operations up to `ticket`, while exchanging heartbeats. */
lks_status lks__hier_finish(struct lks__hier *h, uint64_t ticket);
/* Start and finish, in parts if it is too large for the engine. Pieces are consecutive. */
lks_status lks__hier_move(struct lks__hier *h, const lks__engine_op *op);
/* Exchange the descriptors of this operation with all hosts, into h->descs. */
lks_status lks__hier_meet(struct lks__hier *h, const struct lks__shm_descriptor *desc);
/* Call it while there is nothing to do: checks heartbeats, and rests briefly. Fails if the group
 * has failed. `for_hosts`: this host waits for other hosts. */
lks_status lks__hier_pause(struct lks__hier *h, bool for_hosts);

/* --- heartbeat.c: only the leader's thread calls these ------------------------------------- */

/* Send and receive heartbeats. A failure anywhere becomes this host's, and is returned. `waits`:
 * this host waits for other hosts, so a host that has made no progress for the deadline is a
 * failure, too. */
lks_status lks__hier_look(struct lks__hier *h, bool waits);
/* Record `text` as the group's failure and return it. The cause is `rank` of this host, or -1. */
lks_status lks__hier_fail(struct lks__hier *h, lks_status st, int rank, const char *text);
/* The engine failed with message `why`: wait for the cause, and record it as the group's
 * failure. */
lks_status lks__hier_engine_failed(struct lks__hier *h, const char *why);
/* Send the last heartbeat, leave the engine and set it to NULL. */
void lks__hier_end_engine(struct lks__hier *h, bool orderly);
