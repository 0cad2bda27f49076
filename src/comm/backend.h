/* comm/backend.h - the interface of a communication backend. */
#ifndef LKS_COMM_BACKEND_H
#define LKS_COMM_BACKEND_H

#include <stdbool.h>

#include "base/status.h"
#include "compute/cpu/exec.h"
#include "lockstep/reduce.h"

/* The module of an engine between hosts: a row of comm/engines.h. */
struct lks__engine_module {
    const char *file, *package; /* the module's, and the Debian package that it is built against */
    const char *launcher;       /* the program that must start its ranks; NULL: any, as ours */
    struct {
        bool (*fits)(void); /* NULL: there is no other one */
        const char *file, *package;
    } other; /* what is taken in place of `file` if it fits this process and can be loaded */
};

/* comm.c checks arguments once and dispatches through this table; backends trust their arguments.
 * When the group is opened, empty slots get a default that returns ERR_SUPPORT (or does nothing, if
 * it returns nothing), so callers need no NULL tests. */
struct lks_comm_ops {
    const char *name;                        /* of --backend */
    const struct lks__engine_module *engine; /* NULL: it is for one host, and needs none */
    /* Can its module be loaded? If so, the backend is ready, though perhaps not in this process.
     * NULL: it needs none. */
    bool (*loads)(const struct lks_comm_ops *ops, char *why, size_t why_bytes);

    /* Could this backend serve `world`? If not, `why` is half a sentence. `ops` is its own table.
     */
    bool (*probe)(const struct lks_comm_ops *ops, const lks_world *world, char *why,
                  size_t why_bytes);
    lks_status (*open)(lks_comm *comm); /* fills comm->state */
    void (*close)(lks_comm *comm);

    void (*abort)(lks_comm *comm, const char *why); /* from any thread; makes waiters return */
    void (*note)(lks_comm *comm, uint64_t step, const char *phase);
    void (*beat)(lks_comm *comm);
    void (*ask_stop)(lks_comm *comm, int signo); /* may be called in a signal handler */
    int (*asked_stop)(const lks_comm *comm);
    void (*saving)(lks_comm *comm, bool saving);
    void (*uses)(lks_comm *comm, const char *device);
    lks_status (*among_devices)(lks_comm *comm, bool waits);

    lks_status (*alloc)(lks_comm *comm, int kind, size_t bytes, void **mem_p);
    void *(*peer)(const lks_comm *comm, const void *mem, int peer);

    lks_status (*barrier)(lks_comm *comm);
    lks_status (*broadcast)(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);
    lks_status (*all_gather)(lks_comm *comm, const void *mine, void *all, size_t count,
                             lks_dtype dtype);
    /* Only types and operations that lks__can_combine() allows. */
    lks_status (*all_reduce)(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op);
    lks_status (*replicate)(lks_comm *comm, void *mem, size_t bytes);
    void (*host_share)(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);
    lks_status (*gather_shares)(lks_comm *comm, void *mem, const size_t *block_start,
                                size_t n_blocks, int to_first);
    void (*drop)(lks_comm *comm, void *mem, size_t from, size_t end);

    lks_status (*reduce_start)(lks_comm *comm, const lks_reduction *r, lks_work **work_p);
    lks_status (*progress)(lks_comm *comm);
    lks_status (*wait)(lks_comm *comm, lks_work *work); /* always releases `work` */
    void (*forget)(lks_comm *comm, lks_work *work);     /* no thread will wait for it */
};

struct lks_comm {
    struct lks_comm_ops ops;
    lks_world world;
    const char *backend; /* the program's; this group may be one host of it */
    int first_rank;      /* added to ranks in messages; a group may be one host of a world */
    double timeout_s;
    lks__exec exec; /* k NULL: the reference kernels; pool NULL: only the caller's thread */
    double wait_s;  /* spent in lks_work_wait() since lks_comm_take_wait_s() */
    uint64_t step;  /* of the last note, if has_step */
    bool has_step;
    bool noted;    /* by the program, which then knows better than lks_ddp */
    int n_holders; /* number of lks__comm_hold() calls */
    bool closed;   /* only the handle is still valid */
    void *state;   /* data of the backend */
};

/* The head of every backend's operation in flight. Backends keep the memory of works until the
 * group is closed, so that a second wait can be refused. */
struct lks_work {
    lks_comm *comm;
    bool live; /* set by the backend at the start; cleared by a wait or lks__work_forget() */
};

extern const struct lks_comm_ops lks__comm_shm;

/* The backends: shm and the engines, in the order in which "auto" tries them; NULL after the
 * last. */
const struct lks_comm_ops *lks__comm_backend(int index);

/* Make a handle that is not open yet: next comes ops.open(), or the backend's own function. */
lks_status lks__comm_new(const struct lks_comm_ops *ops, const lks_world *world, double timeout_s,
                         lks_comm **comm_p);

/* Compute reductions with these kernels and threads; `exec` is copied, what it points to must live
 * until the group is closed. Bits don't depend on it. */
void lks__comm_use(lks_comm *comm, const lks__exec *exec);

/* lks_comm_note() by a part of the library, for a program that never calls it. */
void lks__comm_note_for(lks_comm *comm, uint64_t step, const char *phase);

/* The public call that makes an operation of the group, for messages: programs know their own
 * calls, not the operations in them. 0: the program starts the operation itself. */
enum lks__caller {
    LKS__CALLER_PROGRAM,
    LKS__CALLER_DDP_STEP,
    LKS__CALLER_DDP_OPEN,
    LKS__CALLER_DDP_BROADCAST,
    LKS__CALLER_DDP_VERIFY,
    LKS__CALLER_CHECKPOINT_SAVE,
    LKS__CALLER_CHECKPOINT_LOAD,
    LKS__CALLERS
};
enum lks__caller lks__comm_caller(void); /* of this thread's operations */
/* Set it; returns the one before. */
enum lks__caller lks__comm_call_begins(enum lks__caller caller);
void lks__comm_call_ends(const enum lks__caller *before);
/* As the first line of a block: the rest of it belongs to that call. */
#define LKS__CALLED_BY(name)                                                                       \
    __attribute__((cleanup(lks__comm_call_ends))) enum lks__caller caller_before_ =                \
        lks__comm_call_begins(LKS__CALLER_##name)

/* A request to stop, outside collectives: all ranks of the host see it at once, those of other
 * hosts with their next heartbeat. The first signal is kept; 0: no request. lks__comm_ask_stop()
 * may be called in a signal handler. Ranks must agree before they act on the request. */
void lks__comm_ask_stop(lks_comm *comm, int signo);
int lks__comm_asked_stop(const lks_comm *comm);

/* This rank writes a checkpoint, or waits for the last one of the run: the launcher doesn't let a
 * second signal interrupt that. */
void lks__comm_saving(lks_comm *comm, bool saving);

/* What this rank computes on, for messages; "": the CPU. */
void lks__comm_uses(lks_comm *comm, const char *device);

/* Devices move memory to each other without the group, which only looks on. `waits`: this rank's
 * device is inside such a move, and this rank waits for it. Call it again and again meanwhile, and
 * once with false behind it; a change is a heartbeat. ERR_TIMEOUT names a rank that isn't inside
 * one and whose heartbeat has stood still for the deadline and a little: so one that finds its own
 * device still can say so before. ERR_PEER names one whose process has ended. */
lks_status lks__comm_among_devices(lks_comm *comm, bool waits);

/* Keep the handle (not the group) beyond lks_comm_close(), so that an object that uses the group
 * can call lks__comm_is_closed() and doesn't read freed memory. One release for each hold. */
void lks__comm_hold(lks_comm *comm);
void lks__comm_release(lks_comm *comm);
bool lks__comm_is_closed(const lks_comm *comm);

/* Give up a wait: returns at once, and the group completes the operation together with its next
 * ones. All that the operation reads remains: memory from lks_comm_alloc(), and the backend's copy
 * of the borders. NULL does nothing. */
void lks__work_forget(lks_work *work);

/* Open `n` ranks in this process, on shm, one thread for each: comms[r] is rank r. Close each with
 * lks_comm_close(). For tests. */
lks_status lks__comm_open_threads(int n, double timeout_s, lks_comm **comms);

/* For lists of backends: "ready", which program must start the ranks, or why not. True if it can be
 * used on this machine. */
enum { LKS__BACKEND_TEXT = 512 };
bool lks__comm_describe(const struct lks_comm_ops *ops, char text[LKS__BACKEND_TEXT]);

#endif
