/* The calls on an open group: checks their arguments once and passes them to the backend. */
#include "lockstep/reduce.h"

#include <unistd.h>

#include "base/number/cpu.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/tree/combine.h"
#include "comm/tree/tree.h"

static _Thread_local lks__call current_call;

lks__call lks__comm_call(void)
{
    return current_call;
}

lks__call lks__comm_call_begins(lks__call call)
{
    const lks__call before = current_call;
    current_call = call;
    return before;
}

void lks__comm_call_ends(const lks__call *before)
{
    current_call = *before;
}

static lks_status check_there(const lks_comm *comm, const char *what)
{
    LKS__TRY(lks__comm_check_fork(comm, what));
    if (comm->closed)
        return lks__fail(LKS_ERR_ARG, "%s: this group was closed before by lks_comm_close()", what);
    return LKS_OK;
}

lks_status lks__comm_check_open(const lks_comm *comm, const char *what)
{
    LKS__TRY(check_there(comm, what));
    lks__works_idle(comm, true);
    return LKS_OK;
}

/* ERR_PEER if mpirun, srun or torchrun was killed, because no other process ends its ranks. */
static lks_status check_launcher(lks_comm *comm, const char *what)
{
    if (comm->launcher == 0 || getppid() == comm->launcher)
        return LKS_OK;
    return lks__comm_fail_call(
        comm, lks__fail(LKS_ERR_PEER, "%s: the launcher of this rank, process %d, was killed", what,
                        (int)comm->launcher));
}

static void leave(lks_comm **comm)
{
    atomic_store_explicit(&(*comm)->inside, NULL, memory_order_release);
}

/* lks__comm_check_open(), and ERR_ARG if another thread is in a collective of the group. */
static lks_status enter(lks_comm *comm, const char *call)
{
    const char *other = NULL;
    LKS__TRY(check_there(comm, call));
    LKS__TRY(check_launcher(comm, call));
    if (!atomic_compare_exchange_strong(&comm->inside, &other, call))
        return lks__fail(LKS_ERR_ARG,
                         "%s: this group is in %s, called by another thread or interrupted by a "
                         "signal handler: use a group from one thread at a time; lks_comm_split() "
                         "makes one for another thread",
                         call, other);
    lks__works_idle(comm, true);
    return LKS_OK;
}

/* Refuse other threads for the rest of the function. */
#define ENTER(comm, call)                                                                          \
    LKS__TRY(enter(comm, call));                                                                   \
    __attribute__((unused, cleanup(leave))) lks_comm *entered_ = comm

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
    return comm != NULL ? comm->ops->name : "none";
}

void lks__comm_use(lks_comm *comm, const lks__exec *exec)
{
    comm->exec = *exec;
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

lks_status lks_comm_alloc(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_alloc", mem_p);
    *mem_p = NULL;
    LKS__NEED("lks_comm_alloc", comm);
    if (kind != LKS_MEM_OWN && kind != LKS_MEM_COMMON && kind != LKS_MEM_LAZY)
        return lks__fail(LKS_ERR_ARG, "lks_comm_alloc: there is no kind of memory %d", (int)kind);
    /* Far above any machine, and far below sizes at which offsets of all ranks could wrap. */
    if (bytes > (size_t)1 << 46)
        return lks__fail(LKS_ERR_NOMEM, "can't reserve %zu bytes of shared memory: no machine can",
                         bytes);
    LKS__TRY(lks__comm_check_open(comm, "lks_comm_alloc"));
    return comm->ops->alloc(comm, kind, bytes, mem_p);
}

/* False if the group is closed. The thread of started operations uses the same lists, so it must
 * have nothing to do. */
static bool is_idle(const lks_comm *comm)
{
    return !lks__comm_is_closed(comm) && lks__works_idle(comm, true);
}

void lks__comm_free(lks_comm *comm, void *mem)
{
    if (mem != NULL && is_idle(comm))
        comm->host->ops->free(comm->host, mem);
}

void *lks_comm_peer(const lks_comm *comm, const void *mem, int peer)
{
    if (comm == NULL || mem == NULL || peer < 0 || peer >= comm->world.world_size || !is_idle(comm))
        return NULL;
    return comm->ops->peer(comm, mem, peer);
}

/* --- collectives -------------------------------------------------------------------------- */

lks_status lks_comm_barrier(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_barrier", comm);
    ENTER(comm, "lks_comm_barrier");
    return comm->ops->barrier(comm);
}

/* More than any machine addresses, which has 57 bits at most. */
static const size_t MOST_BYTES = (size_t)1 << 57;

/* Check the type, and that `count` elements of `ranks` ranks fit into memory. */
static lks_status check_elements(const char *call, size_t count, lks_dtype dtype, int ranks)
{
    const size_t size = lks_dtype_bytes(dtype);
    if (size == 0)
        return lks__fail(LKS_ERR_ARG, "%s: there is no data type %d: use LKS_FLOAT32, ...", call,
                         (int)dtype);
    if (count > MOST_BYTES / size / (size_t)ranks)
        return lks__fail(LKS_ERR_ARG,
                         "%s: %zu %s elements per rank are more than memory can address", call,
                         count, lks_dtype_name(dtype));
    return LKS_OK;
}

lks_status lks_comm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_broadcast", comm);
    LKS__NEED_IF(count > 0, "lks_comm_broadcast", buf);
    LKS__TRY(check_elements("lks_comm_broadcast", count, dtype, 1));
    if (root < 0 || root >= comm->world.world_size)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_broadcast: root is %d, but the group has ranks 0 to %d", root,
                         comm->world.world_size - 1);
    ENTER(comm, "lks_comm_broadcast");
    return comm->ops->broadcast(comm, buf, count, dtype, root);
}

/* ERR_ARG if the `bytes` of `mine` overlap the `total` bytes of `all` in another place than this
 * rank's part, `at` bytes from the start. */
static lks_status check_apart(const char *call, const void *mine, size_t bytes, const void *all,
                              size_t total, size_t at)
{
    const uintptr_t from = (uintptr_t)mine, into = (uintptr_t)all;
    if (bytes == 0 || from >= into + total || into >= from + bytes || from == into + at)
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG,
                     "%s: mine overlaps all: it may be this rank's part, or memory outside all",
                     call);
}

lks_status lks_comm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_all_gather", comm);
    LKS__NEED_IF(count > 0, "lks_comm_all_gather", mine);
    LKS__NEED_IF(count > 0, "lks_comm_all_gather", all);
    LKS__TRY(check_elements("lks_comm_all_gather", count, dtype, comm->world.world_size));
    ENTER(comm, "lks_comm_all_gather");
    const size_t bytes = count * lks_dtype_bytes(dtype);
    LKS__TRY(check_apart("lks_comm_all_gather", mine, bytes, all,
                         bytes * (size_t)comm->world.world_size, bytes * (size_t)comm->world.rank));
    return comm->ops->all_gather(comm, mine, all, count, dtype);
}

lks_status lks_comm_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                 lks_dtype dtype)
{
    LKS__FLOAT_MODE();
    static const char call[] = "lks_comm_all_gather_v";
    size_t total = 0, before = 0;
    LKS__NEED(call, comm);
    LKS__NEED(call, counts);
    for (int r = 0; r < comm->world.world_size; r++) {
        before = r == comm->world.rank ? total : before;
        if (__builtin_add_overflow(total, counts[r], &total))
            return lks__fail(LKS_ERR_ARG, "%s: the counts are more than memory can address", call);
    }
    const size_t count = counts[comm->world.rank], size = lks_dtype_bytes(dtype);
    LKS__NEED_IF(count > 0, call, mine);
    LKS__NEED_IF(total > 0, call, all);
    LKS__TRY(check_elements(call, total, dtype, 1));
    ENTER(comm, "lks_comm_all_gather_v");
    LKS__TRY(check_apart(call, mine, count * size, all, total * size, before * size));
    return comm->ops->all_gather_v(comm, mine, all, counts, dtype);
}

static lks_status check_aligned(const char *call, const char *name, const void *buf,
                                lks_dtype dtype)
{
    if ((uintptr_t)buf % lks_dtype_bytes(dtype) == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG, "%s: %s is not aligned as %s elements are", call, name,
                     lks_dtype_name(dtype));
}

static lks_status check_combine(const char *call, lks_dtype dtype, lks_op op)
{
    if (!lks__can_combine(LKS_FLOAT32, op))
        return lks__fail(LKS_ERR_ARG,
                         "%s: there is no operation %d: use LKS_SUM, LKS_MEAN, LKS_PROD, LKS_MIN "
                         "or LKS_MAX",
                         call, (int)op);
    if (!lks__can_combine(dtype, LKS_SUM))
        return lks__fail(LKS_ERR_ARG,
                         "%s: %s elements can't be reduced: use float32, float64, int32, float16, "
                         "bfloat16, or int64, whose sums have the same bits as uint64's",
                         call, lks_dtype_name(dtype));
    if (!lks__can_combine(dtype, op))
        return lks__fail(LKS_ERR_ARG,
                         "%s: a mean of %s elements would be cut: use LKS_SUM and divide", call,
                         lks_dtype_name(dtype));
    return LKS_OK;
}

lks_status lks_comm_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                   lks_dtype dtype, lks_op op)
{
    LKS__FLOAT_MODE();
    static const char call[] = "lks_comm_reduce_scatter";
    LKS__NEED(call, comm);
    LKS__NEED_IF(count > 0, call, all);
    LKS__NEED_IF(count > 0, call, mine);
    LKS__TRY(check_elements(call, count, dtype, comm->world.world_size));
    LKS__TRY(check_combine(call, dtype, op));
    LKS__TRY(check_aligned(call, "all", all, dtype));
    LKS__TRY(check_aligned(call, "mine", mine, dtype));
    ENTER(comm, "lks_comm_reduce_scatter");
    const size_t bytes = count * lks_dtype_bytes(dtype);
    LKS__TRY(check_apart(call, mine, bytes, all, bytes * (size_t)comm->world.world_size,
                         bytes * (size_t)comm->world.rank));
    return comm->ops->reduce_scatter(comm, all, mine, count, dtype, op);
}

static lks_status check_all_reduce(const char *call, const lks_comm *comm, const void *buf,
                                   size_t count, lks_dtype dtype, lks_op op)
{
    LKS__NEED(call, comm);
    LKS__NEED_IF(count > 0, call, buf);
    LKS__TRY(check_elements(call, count, dtype, 1));
    LKS__TRY(check_combine(call, dtype, op));
    return check_aligned(call, "buf", buf, dtype);
}

lks_status lks_comm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op)
{
    LKS__FLOAT_MODE();
    LKS__TRY(check_all_reduce("lks_comm_all_reduce", comm, buf, count, dtype, op));
    ENTER(comm, "lks_comm_all_reduce");
    return comm->ops->all_reduce(comm, buf, count, dtype, op);
}

lks_status lks_comm_all_reduce_start(lks_comm *comm, void *buf, size_t count, lks_dtype dtype,
                                     lks_op op, lks_work **work_p)
{
    LKS__FLOAT_MODE();
    static const char call[] = "lks_comm_all_reduce_start";
    LKS__NEED(call, work_p);
    LKS__TRY(check_all_reduce(call, comm, buf, count, dtype, op));
    LKS__TRY(check_there(comm, call));
    LKS__TRY(check_launcher(comm, call));
    return lks__comm_fail_alone(comm, lks__works_start(comm, buf, count, dtype, op, work_p));
}

lks_status lks_comm_replicate(lks_comm *comm, void *mem, size_t bytes)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_replicate", comm);
    LKS__NEED_IF(bytes > 0, "lks_comm_replicate", mem);
    LKS__TRY(lks__comm_check_open(comm, "lks_comm_replicate"));
    return comm->ops->replicate(comm, mem, bytes);
}

void lks_comm_drop(lks_comm *comm, void *mem, size_t from, size_t end)
{
    if (comm != NULL && mem != NULL && from < end && is_idle(comm))
        comm->host->ops->drop(comm->host, mem, from, end);
}

void lks_comm_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end)
{
    if (first == NULL || end == NULL)
        return;
    *first = 0;
    *end = comm != NULL ? n_blocks : 0;
    if (comm != NULL && comm->ops->host_share != NULL)
        comm->ops->host_share(comm, n_blocks, first, end);
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
    LKS__NEED("lks_comm_gather_shares", comm);
    LKS__NEED("lks_comm_gather_shares", block_start);
    LKS__NEED_IF(n_blocks > 0, "lks_comm_gather_shares", mem);
    LKS__TRY(check_order("lks_comm_gather_shares", block_start, n_blocks));
    LKS__TRY(lks__comm_check_open(comm, "lks_comm_gather_shares"));
    return comm->ops->gather_shares(comm, mem, block_start, n_blocks, to_first);
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
    static const char call[] = "lks_comm_reduce_start";
    LKS__NEED(call, comm);
    LKS__NEED(call, r);
    LKS__NEED(call, work_p);
    LKS__NEED_IF(r->n_parts > 0, call, r->parts);
    LKS__NEED_IF(r->n_blocks > 0, call, r->block_start);
    LKS__NEED_IF(r->n_blocks > 0, call, r->block_sumsq);
    LKS__NEED_IF(r->count > 0, call, r->dst);
    if (r->n_leaves < 1 || r->n_leaves > LKS__TREE_MAX_LEAVES)
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: %d leaves: 1 to %d are possible",
                         r->n_leaves, LKS__TREE_MAX_LEAVES);
    if (r->n_parts < 0 || r->n_parts > LKS__TREE_MAX_COVER)
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_reduce_start: %d parts: a rank has at most %d maximal nodes",
                         r->n_parts, LKS__TREE_MAX_COVER);
    if (r->count > PTRDIFF_MAX / sizeof(float))
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
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: there is no wire format %d",
                         (int)r->wire);
    if (r->scatter != LKS_SCATTER_NONE && r->scatter != LKS_SCATTER_HOSTS)
        return lks__fail(LKS_ERR_ARG, "lks_comm_reduce_start: there is no way to scatter %d",
                         (int)r->scatter);
    LKS__TRY(check_blocks(r));
    LKS__TRY(lks__comm_check_open(comm, call));
    LKS__TRY(check_launcher(comm, call));
    return comm->ops->reduce_start(comm, r, work_p);
}

lks_status lks_comm_progress(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_progress", comm);
    LKS__TRY(check_there(comm, "lks_comm_progress"));
    return lks__works_idle(comm, false) ? comm->host->ops->progress(comm->host) : LKS_OK;
}

static lks_status released(const char *call)
{
    return lks__fail(LKS_ERR_ARG,
                     "%s: lks_work_wait() or lks_comm_close() has released this work: wait for "
                     "each work once, before its group is closed",
                     call);
}

lks_status lks_work_test(lks_work *work, bool *done_p)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_work_test", work);
    LKS__NEED("lks_work_test", done_p);
    if (!work->live)
        return released("lks_work_test");
    *done_p = false;
    LKS__TRY(check_there(work->comm, "lks_work_test"));
    if (work->queued)
        return lks__works_test(work, done_p);
    if (!lks__works_idle(work->comm, false))
        return LKS_OK;
    return work->comm->host->ops->test(work->comm->host, work, done_p);
}

lks_status lks_work_wait(lks_work *work)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_work_wait", work);
    if (!work->live)
        return released("lks_work_wait");
    work->live = false;
    LKS__TRY(check_there(work->comm, "lks_work_wait"));
    if (work->queued)
        return lks__works_wait(work);
    lks__works_idle(work->comm, true);
    return work->comm->ops->wait(work->comm, work);
}

void lks__work_forget(lks_work *work)
{
    if (work == NULL || !work->live)
        return;
    work->live = false;
    if (is_idle(work->comm))
        work->comm->host->ops->forget(work->comm->host, work);
}
