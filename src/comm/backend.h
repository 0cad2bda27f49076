/* comm/backend.h - the interface of a communication backend. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"
#include "compute/cpu/exec.h"
#include "lockstep/reduce.h"

/* The module of an engine between hosts: a row of comm/engines.h. */
struct lks__engine_module {
    const char *file, *package; /* the module, and the Debian package that it is built against */
    const char *launcher; /* the program that must start its ranks; NULL: any, including ours */
    struct {
        bool (*fits)(void); /* NULL: there is no alternative */
        const char *file, *package;
    } other; /* the alternative to `file`, if it fits this process and can be loaded */
};

/* group.c checks arguments once and calls the slots of open groups only; backends trust their
 * arguments. */
struct lks_comm_ops {
    const char *name;                        /* as in --backend */
    const struct lks__engine_module *engine; /* NULL: it serves one host and needs no engine */
    /* True if its module can be loaded: then the backend is ready, though perhaps not in this
     * process. NULL: it needs no module. */
    bool (*loads)(const struct lks_comm_ops *ops, char *why, size_t why_bytes);

    /* True if this backend could serve `world`. If not, `why` is half a sentence. `ops` is this
     * table. */
    bool (*probe)(const struct lks_comm_ops *ops, const lks_world *world, char *why,
                  size_t why_bytes);
    lks_status (*open)(lks_comm *comm); /* fills comm->state */
    void (*close)(lks_comm *comm);

    lks_status (*alloc)(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p);
    void *(*peer)(const lks_comm *comm, const void *mem, int peer);

    lks_status (*barrier)(lks_comm *comm);
    lks_status (*broadcast)(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);
    lks_status (*all_gather)(lks_comm *comm, const void *mine, void *all, size_t count,
                             lks_dtype dtype);
    /* Only types and operations that lks__can_combine() allows. */
    lks_status (*all_reduce)(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op);
    lks_status (*reduce_scatter)(lks_comm *comm, const void *all, void *mine, size_t count,
                                 lks_dtype dtype, lks_op op);
    lks_status (*all_gather_v)(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                               lks_dtype dtype);
    lks_status (*replicate)(lks_comm *comm, void *mem, size_t bytes);
    /* NULL: there is one host, whose share is everything. */
    void (*host_share)(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);
    lks_status (*gather_shares)(lks_comm *comm, void *mem, const size_t *block_start,
                                size_t n_blocks, int to_first);

    lks_status (*reduce_start)(lks_comm *comm, const lks_reduction *r, lks_work **work_p);
    lks_status (*wait)(lks_comm *comm, lks_work *work); /* always releases `work` */

    /* Called with the group of this host's ranks. */
    void (*drop)(lks_comm *comm, void *mem, size_t from, size_t end);
    void (*free)(lks_comm *comm, void *mem); /* lks__comm_free() */
    lks_status (*progress)(lks_comm *comm);
    void (*forget)(lks_comm *comm, lks_work *work); /* no thread will wait for it */
    lks_status (*test)(lks_comm *comm, lks_work *work, bool *done_p);
};

struct lks_comm {
    const struct lks_comm_ops *ops;
    /* The group of this host's ranks; this group itself if there is only one host. NULL: this group
     * isn't open. */
    lks_comm *host;
    lks_comm *whole; /* the group that this one was split from; NULL: none */
    int machine;     /* number of this rank's host in the job's first group */
    lks_world world;
    const char *backend; /* the backend that the program sees; this group may be one host of it */
    int first_rank;      /* added to ranks in messages; a group may be one host of a world ... */
    int n_ranks;         /* ... of so many ranks, according to this rank's variables */
    double timeout_s;
    const char *fails_with; /* lks__comm_fail_with(); NULL: nothing has failed */
    lks__exec exec;         /* pool NULL: only the caller's thread */
    lks__kernels kernels;   /* of exec, until lks__comm_use() */
    double wait_s;          /* spent in lks_work_wait() since lks_comm_take_wait_s() */
    /* Of the last lks_comm_note(), if has_step; the thread of works.c reads both. */
    _Atomic uint64_t step;
    atomic_bool has_step;
    struct lks__works *works;      /* NULL: no operation was started */
    uint16_t n_ddps, n_optimizers; /* opened; they number the objects of calls */
    bool noted;                   /* the program calls lks_comm_note() itself, so lks_ddp doesn't */
    int n_holders;                /* number of lks__comm_hold() calls */
    bool closed;                  /* only the handle is still valid */
    _Atomic(const char *) inside; /* the collective that a thread of the program is in, or NULL */
    unsigned forks;               /* how often the process had forked when it was opened */
    pid_t launcher;               /* the group fails when this parent is killed; 0: none */
    void *state;                  /* data of the backend */
};

/* The head of every backend's operation in flight. The memory of works is never freed, so that a
 * second wait can be refused, and one after lks_comm_close(). */
struct lks_work {
    lks_comm *comm;
    lks_work *next; /* among those of closed groups */
    bool queued;    /* of works.c */
    bool live;      /* set by the backend at the start; cleared when it is released */
};

extern const struct lks_comm_ops lks__comm_shm;

/* The backends, shm first, in the order in which "auto" tries them; NULL after the last. */
const struct lks_comm_ops *lks__backend_at(int index);
/* ops->probe(). Unless the user has `chosen` this backend, also false if its engine needs another
 * launcher, and lockstep run or torchrun has started this rank: the variables of an mpirun or srun
 * that started that launcher say nothing about its ranks. */
bool lks__backend_probe(const struct lks_comm_ops *ops, const lks_world *world, bool chosen,
                        char *why, size_t why_bytes);

/* Make a handle that is not open yet. Open it with ops->open(), or the backend's own function. */
lks_status lks__comm_new(const struct lks_comm_ops *ops, const lks_world *world, double timeout_s,
                         lks_comm **comm_p);
/* This rank has failed for this reason, which stays valid: groups that it opens from now on only
 * report that to the ranks which wait for it, as soon as it has reached them. Over an engine that
 * all ranks join, such as MPI, the caller reports it in the open group. */
void lks__comm_fail_with(const char *why);
/* Finish the opening of `comm`, which has returned `st`: set *comm_p, or tell the others of the
 * failure and close it. Returns `st`. */
lks_status lks__comm_opened(lks_comm *comm, lks_status st, lks_comm **comm_p);
/* ERR_ARG if the group is closed, or was inherited; `call` is for the message. Otherwise wait for
 * its operations in flight. */
lks_status lks__comm_check_open(const lks_comm *comm, const char *call);

/* Compute reductions with these kernels and threads. `exec` is copied; the objects that it points
 * to must live until the group is closed. Bits don't depend on it. */
void lks__comm_use(lks_comm *comm, const lks__exec *exec);

/* The public call that starts an operation of the group, which must be the same on all ranks:
 * programs know their own calls, but not the operations inside. 0: the program starts the operation
 * itself. */
enum lks__caller {
    LKS__CALLER_PROGRAM,
    LKS__CALLER_DDP_STEP,
    LKS__CALLER_DDP_OPEN,
    LKS__CALLER_DDP_BROADCAST,
    LKS__CALLER_DDP_VERIFY,
    LKS__CALLER_CHECKPOINT_SAVE,
    LKS__CALLER_CHECKPOINT_SAVE_MORE,
    LKS__CALLER_CHECKPOINT_LOAD,
    LKS__CALLER_CHECKPOINT_LOAD_MORE,
    LKS__CALLER_CHECKPOINT_LIST,
    LKS__CALLER_CHECKPOINT_JSON,
    LKS__CALLER_ALL_REDUCE_START,
    LKS__CALLER_SPLIT,
    LKS__CALLER_OPTIMIZER_OPEN,
    LKS__CALLER_OPTIMIZER_STEP,
    LKS__CALLER_OPTIMIZER_STATE,
    LKS__CALLERS
};
/* The call that this thread's operations belong to. */
typedef struct lks__call {
    uint8_t caller;  /* enum lks__caller */
    uint16_t object; /* number of its lks_ddp or lks_optimizer in the group, from 1; 0: none */
} lks__call;
lks__call lks__comm_call(void);
/* Set it; returns the previous one. */
lks__call lks__comm_call_begins(lks__call call);
void lks__comm_call_ends(const lks__call *before);
/* The rest of the block belongs to that call, of the object with that number. */
#define LKS__CALLED_ON(name, number)                                                               \
    __attribute__((unused, cleanup(lks__comm_call_ends))) lks__call call_before_ =                 \
        lks__comm_call_begins((lks__call){LKS__CALLER_##name, (number)})
/* The same, of the object of the call that surrounds it. */
#define LKS__CALLED_BY(name) LKS__CALLED_ON(name, lks__comm_call().object)

/* Return lks_comm_alloc() memory: at once, or when no operation that may use it is in flight, but
 * at the latest when the group is closed. All ranks call it, each when it no longer uses the memory
 * itself. NULL, and memory of a closed group, are ignored. */
void lks__comm_free(lks_comm *comm, void *mem);

/* Keep the handle (not the group) beyond lks_comm_close(), so that an object that uses the group
 * can call lks__comm_is_closed() without reading freed memory. Each hold needs one release. Any
 * thread. */
void lks__comm_hold(lks_comm *comm);
void lks__comm_release(lks_comm *comm);
/* A zeroed work of `bytes` bytes, or one of a closed group; NULL: out of memory. All works with
 * equal `queued` have the same size. */
lks_work *lks__work_new(bool queued, size_t bytes);
/* Release a work whose group is being closed, for later groups. */
void lks__work_retire(lks_work *work);
bool lks__comm_is_closed(const lks_comm *comm); /* or inherited by a fork() */
/* `part` was split from `whole`, or belongs to a group that was; NULL: neither. */
void lks__comm_part_of(lks_comm *part, lks_comm *whole);
/* While a thread holds this lock, no group that other threads close loses its `host`. */
void lks__comm_lock(void);
void lks__comm_unlock(void);
/* Activity in a group is a heartbeat in those that it was split from: their ranks must not report
 * one that works in a part. Any thread. */
void lks__comm_beat_whole(const lks_comm *comm);
/* The number of this host's process `pid` in the first group that `comm` is a part of, as far as
 * that is open; -1: none. */
int lks__comm_number_in_whole(const lks_comm *comm, pid_t pid);
/* A part has lost a rank of this host (`st`, `text`). Fail the first group too, whose launcher can
 * then name the rank, unless the rank still makes progress there. */
void lks__comm_lost_in_whole(const lks_comm *comm, lks_status st, pid_t pid, const char *text);
/* True if the first group that `comm` is a part of has failed: its status and sentence. */
bool lks__comm_whole_failed(const lks_comm *comm, lks_status *st_p, char *text, size_t bytes);
/* A forked child inherits the handle, but not the rank: there every call fails, and
 * lks_comm_close() frees the child's copies without telling the group. ERR_ARG if `comm` was
 * inherited, else OK. */
lks_status lks__comm_check_fork(const lks_comm *comm, const char *call);
bool lks__comm_is_inherited(const lks_comm *comm);

/* Give up a wait. Returns at once; the group completes the operation together with its next ones.
 * The memory that the operation reads stays valid: lks_comm_alloc() memory, and the backend's copy
 * of the borders. NULL does nothing. */
void lks__work_forget(lks_work *work);

/* Operations that a thread of the group carries out (works.c). Arguments were checked. */
lks_status lks__works_start(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op,
                            lks_work **work_p);
lks_status lks__works_test(lks_work *work, bool *done_p);
lks_status lks__works_wait(lks_work *work);
/* True if no operation is in flight; `wait`: wait until then. */
bool lks__works_idle(const lks_comm *comm, bool wait);
void lks__works_close(lks_comm *comm);

/* Open `n` ranks in this process, on shm, one thread per rank: comms[r] is rank r. Close each with
 * lks_comm_close(). For tests. */
lks_status lks__comm_open_threads(int n, double timeout_s, lks_comm **comms);

/* For lists of backends: "ready", the program that must start the ranks, or the reason why the
 * backend can't be used. True if it can be used on this machine. */
enum { LKS__BACKEND_TEXT = 512 };
bool lks__comm_describe(const struct lks_comm_ops *ops, char text[LKS__BACKEND_TEXT]);
