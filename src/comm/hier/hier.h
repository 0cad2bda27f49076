/* comm/hier/hier.h - groups over several hosts: shm within each, an engine between them.
 *
 * The ranks of a host are a group of their own, in shared memory, with one replica. Their leader,
 * local rank 0, has a thread that speaks to the other hosts' leaders. Collectives meet on the host
 * first, then among hosts, then on the host again. In a reduction each host adds its ranks' parts
 * as far as the canonical tree allows; the hosts exchange shards of these sums (all-to-all), each
 * adds its shard in the tree's order, and the shards are gathered. All engines therefore give the
 * bits of shm.
 *
 * Every operation between hosts begins with an exchange of mails, as in shm: calls that differ are
 * found before any data moves. */
#ifndef LKS_COMM_HIER_HIER_H
#define LKS_COMM_HIER_HIER_H

#include <pthread.h>

#include "comm/backend.h"
#include "comm/hier/engine.h"
#include "comm/plan.h"
#include "comm/shm/host.h"
#include "net/store.h"

enum {
    LKS__HIER_MAX_HOSTS = 1024,
    LKS__HIER_JOBS = LKS__SHM_IN_FLIGHT + 2, /* reductions in flight, and one call that waits */
    LKS__HIER_SUMS = 2,                      /* pieces of an all-reduce under way */
    LKS__HIER_SUM_BLOCKS = 512,              /* the most that a piece has */
};

/* One operation for the leader's thread. */
struct lks__hier_job {
    struct lks__shm_mail mail; /* our side of it */

    /* Reductions; who waits for them is told through shared memory. */
    struct lks__shm_between between;

    /* The others: what moves after the mails, where kind >= 0; the caller waits for `done`. */
    struct lks__hier_wait *wait;
};

enum { LKS__HIER_OWN_SUM = 100 }; /* behind the engine's kinds */

struct lks__hier_wait {
    int move; /* enum lks__engine_kind, LKS__HIER_OWN_SUM, or -1: the mails are all */
    int root;
    const void *send; /* LKS__ENGINE_ALL_TO_ALL; pieces lie one behind the other, here and there */
    const size_t *send_bytes;
    void *buf;
    const size_t *bytes;         /* [n_hosts] pieces, or [1] for a broadcast */
    struct lks__shm_mail *mails; /* [n_hosts] out, NULL: not wanted */
    double seconds;              /* out: LKS__HIER_OWN_SUM */
    bool done;
    lks_status st;
};

/* What a leader sends to the others several times a second. Plain data: builds are equal. */
struct lks__hier_heartbeat {
    uint32_t magic;
    int32_t status;              /* of the host's failure, LKS_OK: none */
    int32_t left;                /* it has closed the group in order */
    int32_t stop_signal, saving; /* asks all ranks to stop; one of the host's saves */
    int32_t rank; /* the one that has been silent for longest and doesn't wait, or that the
                   * failure is about; -1: all wait, or none is known */
    uint64_t step;
    double age_s;
    char phase[LKS__SHM_PHASE + 1];
    char text[900]; /* of the failure */
};
_Static_assert(sizeof(struct lks__hier_heartbeat) <= LKS__ENGINE_NOTE, "a note fits");

struct lks__hier_host {
    struct lks__hier_heartbeat last; /* the newest */
    double last_s;                   /* when it came */
    bool gone;
};

struct lks__hier {
    lks_comm *comm;  /* of the world */
    lks_comm *local; /* of this host, on shm */
    const lks__engine *ops;
    lks__engine_join join;
    lks__store_server *server; /* rank 0's, where no launcher serves a store */
    bool leads;
    int host, n_hosts;
    int *first; /* [n_hosts + 1] the first rank of each host */

    /* Pieces of lks_comm_all_reduce() under way. */
    struct lks__hier_sum {
        float *own, *common; /* [sum_room] */
        double *sumsq;
        size_t start[LKS__HIER_SUM_BLOCKS + 1]; /* borders of blocks */
        lks_work *work;
    } sums[LKS__HIER_SUMS];
    size_t sum_room; /* elements */

    /* --- the leader's alone --- */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct lks__hier_job jobs[LKS__HIER_JOBS];
    unsigned first_job, n_jobs;
    int joined; /* 1; -1: it failed */
    bool ready, stop;
    bool stuck; /* the thread is inside the engine for good */
    char open_why[512];

    /* --- the thread's alone --- */
    void *engine;
    struct lks__hier_host *hosts;                               /* [n_hosts] */
    struct lks__shm_mail *mails;                                /* [n_hosts] */
    size_t *mail_bytes, *send_bytes, *recv_bytes, *sumsq_bytes; /* [n_hosts] */
    size_t *send_at, *recv_at;                                  /* [n_hosts] */
    size_t *slots; /* [LKS__ENGINE_SLOTS][4][n_hosts]: places and sizes of what is in progress */
    uint64_t n_started, n_ended; /* of the engine's operations; they end in order */
    struct lks__plan plan;       /* reduce.c */
    struct lks__shm_plan *shm_plan;
    float *staging; /* pieces of other hosts */
    size_t staging_bytes;
    uint16_t *narrow; /* LKS_WIRE_BFLOAT16: a whole bucket as it is sent, and pieces as they come */
    size_t narrow_bytes;
    uint64_t number; /* of the operation between hosts */
    double sent_s, looked_s;
    bool sent_failure;
    int32_t sent_stop, sent_saving;
    int late;      /* the rank of another host that a failure is about; -1: none is known */
    unsigned idle; /* looks since something happened */
};

/* --- hier.c ------------------------------------------------------------------------------- */

/* For free(); all 0. calloc() would not put mails on the cache lines that their type has. */
struct lks__shm_mail *lks__hier_mails(int n);

/* Open `comm` over `engine`. `segment`: this host's, taken over; NULL: the environment's, or one
 * that the ranks of the host agree on through the engine. */
lks_status lks__hier_open(lks_comm *comm, const lks__engine *engine, lks__segment *segment);
void lks__hier_close(lks_comm *comm);

/* The slots of a backend that is made of an engine; name, probe and open are its own. */
#define LKS__HIER_OPS                                                                              \
    .close = lks__hier_close, .abort = lks__hier_abort, .note = lks__hier_note,                    \
    .beat = lks__hier_beat, .ask_stop = lks__hier_ask_stop, .asked_stop = lks__hier_asked_stop,    \
    .saving = lks__hier_saving, .alloc = lks__hier_alloc, .peer = lks__hier_peer,                  \
    .barrier = lks__hier_barrier, .broadcast = lks__hier_broadcast,                                \
    .all_gather = lks__hier_all_gather, .all_reduce = lks__hier_all_reduce,                        \
    .replicate = lks__hier_replicate, .host_share = lks__hier_host_share,                          \
    .gather_shares = lks__hier_gather_shares, .drop = lks__hier_drop,                              \
    .reduce_start = lks__hier_reduce_start, .progress = lks__hier_progress,                        \
    .wait = lks__hier_work_wait, .forget = lks__hier_work_forget

void lks__hier_abort(lks_comm *comm, const char *why);
void lks__hier_note(lks_comm *comm, uint64_t step, const char *phase);
void lks__hier_beat(lks_comm *comm);
void lks__hier_ask_stop(lks_comm *comm, int signo);
int lks__hier_asked_stop(const lks_comm *comm);
void lks__hier_saving(lks_comm *comm, bool saving);
void *lks__hier_peer(const lks_comm *comm, const void *mem, int peer);

/* Seconds that the engine's own sum of `count` floats at `buf` takes among the hosts, in an order
 * of its own; every rank calls it. ERR_SUPPORT where `comm` is on no engine. */
lks_status lks__hier_own_sum(lks_comm *comm, float *buf, size_t count, double *seconds_p);

/* --- rendezvous.c ------------------------------------------------------------------------- */

/* Does the environment name a store, or where rank 0 is to serve one? */
bool lks__hier_can_meet(void);
/* Fill in what an engine needs that finds its hosts through the job's store. */
lks_status lks__hier_rendezvous_open(struct lks__hier *h);
void lks__hier_rendezvous_close(struct lks__hier *h); /* nothing open is fine */
/* When all hosts have met: rank 0's store is needed no more. */
void lks__hier_rendezvous_end(struct lks__hier *h);

/* --- collective.c ------------------------------------------------------------------------- */

lks_status lks__hier_alloc(lks_comm *comm, int kind, size_t bytes, void **mem_p);
lks_status lks__hier_barrier(lks_comm *comm);
lks_status lks__hier_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);
lks_status lks__hier_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                                lks_dtype dtype);
lks_status lks__hier_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype,
                                lks_op op);
/* All ranks of the host come to this call, then the hosts do: calls that differ are found here. */
lks_status lks__hier_meet_all(struct lks__hier *h, const struct lks__shm_mail *mail,
                              struct lks__hier_wait *wait);
/* h->sums has room for `count` floats, or for a piece of them: h->sum_room. */
lks_status lks__hier_open_sums(struct lks__hier *h, size_t count);
void lks__hier_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);
lks_status lks__hier_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                   size_t n_blocks, int to_first);
void lks__hier_drop(lks_comm *comm, void *mem, size_t from, size_t end);
/* Where host `host`'s share of n_blocks begins; that of host n_hosts is the end. */
size_t lks__hier_share_start(const struct lks__hier *h, size_t n_blocks, int host);
lks_status lks__hier_replicate(lks_comm *comm, void *mem, size_t bytes);

/* --- combine.c ---------------------------------------------------------------------------- */

/* All-reduce of any type and operation; `mail`: all ranks have met with it. */
lks_status lks__hier_combine(lks_comm *comm, struct lks__shm_mail *mail, void *buf, size_t count,
                             lks_dtype dtype, lks_op op);

/* --- reduce.c ----------------------------------------------------------------------------- */

lks_status lks__hier_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);
lks_status lks__hier_progress(lks_comm *comm);
lks_status lks__hier_work_wait(lks_comm *comm, lks_work *work);
void lks__hier_work_forget(lks_comm *comm, lks_work *work);
/* The thread's side of a reduction. */
lks_status lks__hier_reduce(struct lks__hier *h, struct lks__hier_job *job);

/* --- wire.c ------------------------------------------------------------------------------- */

/* To bfloat16, to nearest, ties to even; and back. */
void lks__wire_narrow(uint16_t *out, const float *x, size_t n);
void lks__wire_widen(float *out, const uint16_t *x, size_t n);

/* --- thread.c: the leader's thread ---------------------------------------------------------- */

/* Start the thread and wait until it has joined the engine. */
lks_status lks__hier_thread_open(struct lks__hier *h);
void lks__hier_thread_ready(struct lks__hier *h); /* everything it needs is there */
void lks__hier_thread_close(struct lks__hier *h); /* orderly where the group hasn't failed */
bool lks__hier_is_busy(struct lks__hier *h);      /* operations are queued or run */
/* Hand over an operation; `wait` NULL for reductions. */
lks_status lks__hier_post(struct lks__hier *h, const struct lks__hier_job *job);
/* Hand it over and wait. */
lks_status lks__hier_call(struct lks__hier *h, const struct lks__shm_mail *mail,
                          struct lks__hier_wait *wait);

/* --- operations.c: in the leader's thread ------------------------------------------------- */

/* Start one operation of the engine; a failure becomes the group's. Places and sizes are copied
 * (places NULL: pieces one behind the other), memory is not. *ticket_p counts them. */
lks_status lks__hier_start(struct lks__hier *h, const lks__engine_op *op, uint64_t *ticket_p);
/* Until all operations up to `ticket` have ended, while heartbeats come and go. */
lks_status lks__hier_finish(struct lks__hier *h, uint64_t ticket);
lks_status lks__hier_move(struct lks__hier *h, const lks__engine_op *op); /* both */
/* Meet all hosts at this operation; their mails stand in h->mails. */
lks_status lks__hier_meet(struct lks__hier *h, const struct lks__shm_mail *mail);
/* Nothing to do just now: look at heartbeats, and rest a little. Fails if the group has. */
lks_status lks__hier_pause(struct lks__hier *h);

/* --- heartbeat.c: in the leader's thread --------------------------------------------------- */

/* Send and receive heartbeats; a failure anywhere becomes this host's, and is returned. `waits`:
 * for other hosts, so a host or rank that has stood still for the deadline is a failure, too. */
lks_status lks__hier_look(struct lks__hier *h, bool waits);
/* Make `text` the group's failure and return it. `rank` of this host, or -1. */
lks_status lks__hier_fail(struct lks__hier *h, lks_status st, int rank, const char *text);
/* The engine failed, `why` in its words: wait for the cause, and make that the group's failure. */
lks_status lks__hier_engine_failed(struct lks__hier *h, const char *why);
/* Send the last heartbeat and leave the engine, which is gone afterwards. */
void lks__hier_end_engine(struct lks__hier *h, bool orderly);

#endif
