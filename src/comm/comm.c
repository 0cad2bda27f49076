#include "lockstep/reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "comm/backend.h"
#include "comm/hier/hier.h"
#include "comm/tree/combine.h"
#include "comm/tree/tree.h"
#include "comm/world.h"

/* Far longer than any job, and far below the limit of times in microseconds. */
static const double MOST_TIMEOUT_S = 1e6;

const struct lks_comm_ops *lks__comm_backend(int index)
{
    return index == 0 ? &lks__comm_shm : lks__hier_backend(index - 1);
}

/* --- who calls ---------------------------------------------------------------------------- */

static _Thread_local enum lks__caller current_caller;

enum lks__caller lks__comm_caller(void)
{
    return current_caller;
}

enum lks__caller lks__comm_call_begins(enum lks__caller caller)
{
    const enum lks__caller before = current_caller;
    current_caller = caller;
    return before;
}

void lks__comm_call_ends(const enum lks__caller *before)
{
    current_caller = *before;
}

/* --- defaults for empty slots ------------------------------------------------------------- */

static lks_status unsupported(const lks_comm *comm, const char *what)
{
    if (comm->closed)
        return lks__fail(LKS_ERR_ARG, "%s: this group was closed before by lks_comm_close()", what);
    return lks__fail(LKS_ERR_SUPPORT, "the backend %s has no %s", comm->ops.name, what);
}

static lks_status no_alloc(lks_comm *comm, int kind, size_t bytes, void **mem_p)
{
    return unsupported(comm, "its own memory");
}

static void *no_peer(const lks_comm *comm, const void *mem, int peer)
{
    return NULL;
}

static lks_status no_barrier(lks_comm *comm)
{
    return unsupported(comm, "barrier");
}

static lks_status no_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root)
{
    return unsupported(comm, "broadcast");
}

static lks_status no_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                                lks_dtype dtype)
{
    return unsupported(comm, "all_gather");
}

static lks_status no_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op)
{
    return unsupported(comm, "all_reduce");
}

static lks_status no_replicate(lks_comm *comm, void *mem, size_t bytes)
{
    return unsupported(comm, "replicate");
}

/* A group on one host: its share is everything. */
static void no_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end)
{
    *first = 0;
    *end = n_blocks;
}

static lks_status no_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                   size_t n_blocks, int to_first)
{
    return comm->ops.barrier(comm);
}

static void no_drop(lks_comm *comm, void *mem, size_t from, size_t end)
{
}

static lks_status no_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p)
{
    return unsupported(comm, "reductions in flight");
}

static lks_status no_progress(lks_comm *comm)
{
    return LKS_OK;
}

static lks_status no_wait(lks_comm *comm, lks_work *work)
{
    return unsupported(comm, "operations in flight");
}

static void no_forget(lks_comm *comm, lks_work *work)
{
}

static void no_abort(lks_comm *comm, const char *why)
{
}

static void no_note(lks_comm *comm, uint64_t step, const char *phase)
{
}

static void no_beat(lks_comm *comm)
{
}

static void no_ask_stop(lks_comm *comm, int signo)
{
}

static int no_asked_stop(const lks_comm *comm)
{
    return 0;
}

static void no_saving(lks_comm *comm, bool saving)
{
}

static void no_uses(lks_comm *comm, const char *device)
{
}

static lks_status no_among_devices(lks_comm *comm, bool waits)
{
    return LKS_OK;
}

static struct lks_comm_ops complete(const struct lks_comm_ops *given)
{
    struct lks_comm_ops ops = *given;
#define FILL(slot)                                                                                 \
    if (ops.slot == NULL)                                                                          \
    ops.slot = no_##slot
    FILL(abort);
    FILL(note);
    FILL(beat);
    FILL(ask_stop);
    FILL(asked_stop);
    FILL(saving);
    FILL(uses);
    FILL(among_devices);
    FILL(alloc);
    FILL(peer);
    FILL(barrier);
    FILL(broadcast);
    FILL(all_gather);
    FILL(all_reduce);
    FILL(replicate);
    FILL(host_share);
    FILL(gather_shares);
    FILL(drop);
    FILL(reduce_start);
    FILL(progress);
    FILL(wait);
    FILL(forget);
#undef FILL
    return ops;
}

/* --- opening and closing ------------------------------------------------------------------ */

/* "auto, shm, mpi or gloo" */
static void list_names(char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "auto");
    for (int i = 0; lks__comm_backend(i) != NULL && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 lks__comm_backend(i + 1) != NULL ? ", " : " or ",
                                 lks__comm_backend(i)->name);
}

/* "auto" chooses the first backend whose probe succeeds. */
static lks_status choose(const char *name, const lks_world *world,
                         const struct lks_comm_ops **ops_p)
{
    bool any = strcmp(name, "auto") == 0;
    char why[512], reasons[1024] = "";
    for (int i = 0; lks__comm_backend(i) != NULL; i++) {
        const struct lks_comm_ops *ops = lks__comm_backend(i);
        if (!any && strcmp(name, ops->name) != 0)
            continue;
        if (ops->probe(ops, world, why, sizeof why)) {
            *ops_p = ops;
            return LKS_OK;
        }
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? "; " : "", ops->name,
                 why);
    }
    if (reasons[0] != '\0')
        return lks__fail(LKS_ERR_SUPPORT, "no way to reach the other ranks: %s", reasons);
    char shown[64], names[256];
    list_names(names, sizeof names);
    return lks__fail(LKS_ERR_SUPPORT, "there is no backend \"%s\": use %s",
                     lks__escape(shown, sizeof shown, name, strlen(name)), names);
}

lks_status lks__comm_new(const struct lks_comm_ops *ops, const lks_world *world, double timeout_s,
                         lks_comm **comm_p)
{
    lks_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the group's handle");
    comm->ops = complete(ops);
    comm->backend = ops->name;
    comm->world = *world;
    comm->timeout_s = timeout_s;
    *comm_p = comm;
    return LKS_OK;
}

lks_status lks_comm_open(const lks_world *world, const lks_comm_options *options, lks_comm **comm_p)
{
    LKS__FLOAT_MODE();
    if (world == NULL || options == NULL || comm_p == NULL || options->backend == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_comm_open: an argument is NULL");
    if (!(options->timeout_s > 0))
        return lks__fail(LKS_ERR_ARG, "the deadline of waits is %g s: it must be more than 0",
                         options->timeout_s);
    LKS__TRY(lks__world_check(LKS_ERR_ARG, world));
    const struct lks_comm_ops *ops;
    LKS__TRY(choose(options->backend, world, &ops));
    lks_comm *comm = NULL;
    LKS__TRY(lks__comm_new(ops, world, fmin(options->timeout_s, MOST_TIMEOUT_S), &comm));
    lks_status st = comm->ops.open(comm);
    if (st != LKS_OK) {
        lks_comm_close(comm);
        return st;
    }
    *comm_p = comm;
    return LKS_OK;
}

lks_status lks_comm_init(lks_comm **comm_p)
{
    lks_world world;
    LKS__TRY(lks_world_from_env(&world));
    return lks_comm_open(&world, &(lks_comm_options){"auto", 60}, comm_p);
}

void lks_comm_close(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    static const struct lks_comm_ops nothing = {.name = "closed"};
    if (comm == NULL || comm->closed)
        return;
    comm->ops.close(comm);
    comm->ops = complete(&nothing);
    comm->closed = true;
    if (comm->n_holders == 0)
        free(comm);
}

void lks__comm_hold(lks_comm *comm)
{
    comm->n_holders++;
}

void lks__comm_release(lks_comm *comm)
{
    if (--comm->n_holders == 0 && comm->closed)
        free(comm);
}

bool lks__comm_is_closed(const lks_comm *comm)
{
    return comm->closed;
}

int lks_comm_rank(const lks_comm *comm)
{
    return comm != NULL ? comm->world.rank : -1;
}

int lks_comm_world_size(const lks_comm *comm)
{
    return comm != NULL ? comm->world.world_size : 0;
}

const lks_world *lks_comm_world(const lks_comm *comm)
{
    return comm != NULL ? &comm->world : NULL;
}

int lks_comm_leader(const lks_comm *comm)
{
    return comm != NULL ? comm->world.rank - comm->world.local_rank : -1;
}

const char *lks_comm_backend(const lks_comm *comm)
{
    return comm != NULL ? comm->ops.name : "none";
}

void lks__comm_use(lks_comm *comm, const lks__exec *exec)
{
    comm->exec = *exec;
}

void lks_comm_abort(lks_comm *comm, const char *why)
{
    LKS__FLOAT_MODE();
    if (comm != NULL)
        comm->ops.abort(comm, why != NULL ? why : "no reason was given");
}

void lks_comm_note(lks_comm *comm, uint64_t step, const char *phase)
{
    LKS__FLOAT_MODE();
    if (comm == NULL)
        return;
    comm->noted = false;
    lks__comm_note_for(comm, step, phase);
    comm->noted = true;
}

void lks__comm_note_for(lks_comm *comm, uint64_t step, const char *phase)
{
    if (comm->noted)
        return;
    comm->step = step;
    comm->has_step = true;
    comm->ops.note(comm, step, phase != NULL ? phase : "");
}

void lks_comm_beat(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    if (comm != NULL)
        comm->ops.beat(comm);
}

void lks__comm_ask_stop(lks_comm *comm, int signo)
{
    comm->ops.ask_stop(comm, signo);
}

int lks__comm_asked_stop(const lks_comm *comm)
{
    return comm->ops.asked_stop(comm);
}

void lks__comm_saving(lks_comm *comm, bool saving)
{
    comm->ops.saving(comm, saving);
}

void lks__comm_uses(lks_comm *comm, const char *device)
{
    comm->ops.uses(comm, device);
}

lks_status lks__comm_among_devices(lks_comm *comm, bool waits)
{
    return comm->ops.among_devices(comm, waits);
}

double lks_comm_take_wait_s(lks_comm *comm)
{
    if (comm == NULL)
        return 0;
    double s = comm->wait_s;
    comm->wait_s = 0;
    return s;
}

/* --- memory ------------------------------------------------------------------------------- */

lks_status lks_comm_alloc(lks_comm *comm, int kind, size_t bytes, void **mem_p)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || mem_p == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_comm_alloc: an argument is NULL");
    if (kind != LKS_MEM_OWN && kind != LKS_MEM_COMMON && kind != LKS_MEM_LAZY)
        return lks__fail(LKS_ERR_ARG, "lks_comm_alloc: there is no kind of memory %d", kind);
    /* Far above any machine, and far below sizes at which offsets of all ranks could wrap. */
    if (bytes > (size_t)1 << 46)
        return lks__fail(LKS_ERR_NOMEM, "can't reserve %zu bytes of shared memory: no machine can",
                         bytes);
    return comm->ops.alloc(comm, kind, bytes, mem_p);
}

void *lks_comm_peer(const lks_comm *comm, const void *mem, int peer)
{
    if (comm == NULL || mem == NULL || peer < 0 || peer >= comm->world.world_size)
        return NULL;
    return comm->ops.peer(comm, mem, peer);
}

/* --- collectives -------------------------------------------------------------------------- */

lks_status lks_comm_barrier(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    if (comm == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_comm_barrier: comm is NULL");
    return comm->ops.barrier(comm);
}

/* Check the type, and that `count` elements of `ranks` ranks fit into memory. */
static lks_status check_elements(const char *call, size_t count, lks_dtype dtype, int ranks)
{
    const size_t size = lks_dtype_bytes(dtype);
    if (size == 0)
        return lks__fail(LKS_ERR_ARG, "%s: there is no data type %d: use LKS_FLOAT32, ...", call,
                         (int)dtype);
    if (count > SIZE_MAX / size / (size_t)ranks)
        return lks__fail(LKS_ERR_ARG,
                         "%s: %zu %s elements of %d ranks are more than memory can address", call,
                         count, lks_dtype_name(dtype), ranks);
    return LKS_OK;
}

lks_status lks_comm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || (buf == NULL && count > 0))
        return lks__fail(LKS_ERR_ARG, "lks_comm_broadcast: an argument is NULL");
    LKS__TRY(check_elements("lks_comm_broadcast", count, dtype, 1));
    if (root < 0 || root >= comm->world.world_size)
        return lks__fail(LKS_ERR_ARG, "lks_comm_broadcast: root is %d in a world of %d", root,
                         comm->world.world_size);
    return comm->ops.broadcast(comm, buf, count, dtype, root);
}

lks_status lks_comm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || ((mine == NULL || all == NULL) && count > 0))
        return lks__fail(LKS_ERR_ARG, "lks_comm_all_gather: an argument is NULL");
    LKS__TRY(check_elements("lks_comm_all_gather", count, dtype, comm->world.world_size));
    return comm->ops.all_gather(comm, mine, all, count, dtype);
}

lks_status lks_comm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op)
{
    LKS__FLOAT_MODE();
    static const char call[] = "lks_comm_all_reduce";
    if (comm == NULL || (buf == NULL && count > 0))
        return lks__fail(LKS_ERR_ARG, "%s: an argument is NULL", call);
    LKS__TRY(check_elements(call, count, dtype, 1));
    if (op != LKS_SUM && op != LKS_MIN && op != LKS_MAX)
        return lks__fail(LKS_ERR_ARG,
                         "%s: there is no operation %d: use LKS_SUM, LKS_MIN or LKS_MAX", call,
                         (int)op);
    if (!lks__can_combine(dtype, op))
        return lks__fail(LKS_ERR_ARG,
                         "%s: %s elements can't be reduced: use float32, float64, int32 or int64",
                         call, lks_dtype_name(dtype));
    if ((uintptr_t)buf % lks_dtype_bytes(dtype) != 0)
        return lks__fail(LKS_ERR_ARG, "%s: buf is not aligned as %s elements are", call,
                         lks_dtype_name(dtype));
    return comm->ops.all_reduce(comm, buf, count, dtype, op);
}

lks_status lks_comm_replicate(lks_comm *comm, void *mem, size_t bytes)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || (mem == NULL && bytes > 0))
        return lks__fail(LKS_ERR_ARG, "lks_comm_replicate: an argument is NULL");
    return comm->ops.replicate(comm, mem, bytes);
}

void lks_comm_drop(lks_comm *comm, void *mem, size_t from, size_t end)
{
    if (comm != NULL && mem != NULL && from < end)
        comm->ops.drop(comm, mem, from, end);
}

void lks_comm_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end)
{
    if (first == NULL || end == NULL)
        return;
    *first = *end = 0;
    if (comm != NULL)
        comm->ops.host_share(comm, n_blocks, first, end);
}

static lks_status check_order(const char *call, const size_t *start, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++)
        if (start[b] > start[b + 1])
            return lks__fail(LKS_ERR_ARG, "%s: block %zu starts at %zu and ends at %zu", call, b,
                             start[b], start[b + 1]);
    return LKS_OK;
}

lks_status lks_comm_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                  size_t n_blocks, int to_first)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || block_start == NULL || (mem == NULL && n_blocks > 0))
        return lks__fail(LKS_ERR_ARG, "lks_comm_gather_shares: an argument is NULL");
    LKS__TRY(check_order("lks_comm_gather_shares", block_start, n_blocks));
    return comm->ops.gather_shares(comm, mem, block_start, n_blocks, to_first);
}

static lks_status check_blocks(const lks_reduction *r)
{
    const size_t *start = r->block_start;
    size_t first = r->n_blocks > 0 ? start[0] : 0, end = r->n_blocks > 0 ? start[r->n_blocks] : 0;
    if (first != 0 || end != r->count)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: %zu blocks cover [%zu, %zu) of %zu elements",
                         r->n_blocks, first, end, r->count);
    return check_order("lks_comm_reduce_start", start, r->n_blocks);
}

lks_status lks_comm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p)
{
    LKS__FLOAT_MODE();
    if (comm == NULL || r == NULL || work_p == NULL || (r->parts == NULL && r->n_parts > 0) ||
        (r->n_blocks > 0 && (r->block_start == NULL || r->block_sumsq == NULL)) ||
        (r->dst == NULL && r->count > 0))
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: an argument is NULL");
    if (r->n_leaves < 1 || r->n_leaves > LKS__TREE_MAX_LEAVES)
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: %d leaves: 1 to %d are possible",
                         r->n_leaves, LKS__TREE_MAX_LEAVES);
    if (r->n_parts < 0 || r->n_parts > LKS__TREE_MAX_COVER)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: %d parts: a rank has at most %d maximal nodes",
                         r->n_parts, LKS__TREE_MAX_COVER);
    if (r->count > SIZE_MAX / sizeof(float))
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: %zu elements are more than memory can address",
                         r->count);
    for (int i = 0; i < r->n_parts; i++)
        if (!lks__tree_valid(r->n_leaves, r->parts[i].node) ||
            (r->parts[i].buf == NULL && r->count > 0))
            return lks__fail(LKS_ERR_ARG,
                             "lks_comm_reduce_start: part %d is no node of the tree over %d "
                             "leaves, or has no buffer",
                             i, r->n_leaves);
    if (r->wire != LKS_WIRE_FLOAT32 && r->wire != LKS_WIRE_BFLOAT16)
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: there is no wire format %d", r->wire);
    LKS__TRY(check_blocks(r));
    return comm->ops.reduce_start(comm, r, work_p);
}

lks_status lks_comm_progress(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    if (comm == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_comm_progress: comm is NULL");
    return comm->ops.progress(comm);
}

lks_status lks_work_wait(lks_work *work)
{
    LKS__FLOAT_MODE();
    if (work == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_work_wait: work is NULL");
    if (!work->live)
        return lks__fail(LKS_ERR_ARG, "lks_work_wait: this work was waited for already: once "
                                      "releases it");
    work->live = false;
    return work->comm->ops.wait(work->comm, work);
}

void lks__work_forget(lks_work *work)
{
    if (work == NULL || !work->live)
        return;
    work->live = false;
    work->comm->ops.forget(work->comm, work);
}

bool lks__comm_describe(const struct lks_comm_ops *ops, char text[LKS__BACKEND_TEXT])
{
    const char *launcher = ops->engine != NULL ? ops->engine->launcher : NULL;
    if (ops->loads == NULL)
        snprintf(text, LKS__BACKEND_TEXT, "ready");
    else if (!ops->loads(ops, text, LKS__BACKEND_TEXT))
        return false;
    else if (launcher != NULL)
        snprintf(text, LKS__BACKEND_TEXT, "ready, in ranks that %s starts", launcher);
    else
        snprintf(text, LKS__BACKEND_TEXT, "ready, in ranks that lockstep run or torchrun starts");
    return true;
}
