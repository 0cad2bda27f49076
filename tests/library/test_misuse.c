/* A table of wrong calls on one rank: each returns the status and the sentence in the table, and
 * the group, the lks_ddp and the sampler go on as if it had not been made. */
#include "support.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "lockstep/lockstep.h"

enum { N = 100, BLOCKS = 2 };

/* The objects of each row: a group of one rank, memory for a reduction, an lks_ddp (V = 2, A = 2)
 * and a sampler. */
struct here {
    lks_comm *comm, *other;
    lks_ddp *ddp, *other_ddp;
    lks_sampler *sampler, *other_sampler;
    lks_work *work;
    float value[2][N], grad[2][N];
    lks_param params[2];
    lks_world world;
    lks_comm_options options;
    lks_sampler_options sampled;
    float *own, *common;
    void *mem;
    size_t start[BLOCKS + 1];
    lks_part part;
    lks_reduction r;
    size_t first, end;
    char bytes[N];
    const char *dir; /* empty */
    lks_tensor state[2];
    bool found;
    char *text;
};

/* --- changes of one argument, for the table --------------------------------------------------- */

static lks_status open_world(struct here *h, lks_world w)
{
    return lks_comm_open(&w, &h->options, &h->other);
}

static lks_status open_with(struct here *h, const char *backend, double timeout_s)
{
    lks_comm_options o = {backend, timeout_s};
    return lks_comm_open(&h->world, &o, &h->other);
}

static lks_status from_env(struct here *h, const char *name, const char *value)
{
    setenv(name, value, 1);
    lks_status st = lks_world_from_env(&h->world);
    unsetenv(name);
    return st;
}

static lks_status init_with(struct here *h, const char *timeout)
{
    setenv("LOCKSTEP_TIMEOUT", timeout, 1);
    lks_status st = lks_comm_init(&h->other);
    unsetenv("LOCKSTEP_TIMEOUT");
    return st;
}

static lks_status save_more(struct here *h, lks_checkpoint_more more)
{
    return lks_checkpoint_save_more(h->comm, h->dir, 1, h->state, 2, &more, 0);
}

static lks_status save_own(struct here *h, lks_tensor own)
{
    return save_more(h, (lks_checkpoint_more){&own, 1, NULL});
}

static lks_status open_param(struct here *h, lks_param p)
{
    lks_param both[2] = {h->params[0], p};
    return lks_ddp_open(h->comm, both, 2, NULL, &h->other_ddp);
}

static lks_status open_ddp(struct here *h, lks_ddp_options o)
{
    return lks_ddp_open(h->comm, h->params, 2, &o, &h->other_ddp);
}

static lks_status open_sampler(struct here *h, uint64_t n, int replicas, bool drop_last)
{
    lks_sampler_options o = {.dataset_size = n, .replicas = replicas, .drop_last = drop_last};
    return lks_sampler_open(&o, &h->other_sampler);
}

#define reduce_all lks_comm_all_reduce /* keeps rows of the table short */

/* SET changes h->r; then starting the reduction must fail. */
#define REDUCE(set) ((set), lks_comm_reduce_start(h->comm, &h->r, &h->work))

/* SET changes the second tensor. */
#define SAVE(set) (h->state[1].set, lks_checkpoint_save(h->comm, h->dir, 1, h->state, 2, 0))

#define OPENED(...) open_ddp(h, (lks_ddp_options){__VA_ARGS__})
#define BEGUN(call) (lks_ddp_begin(h->ddp, 0) != LKS_OK ? LKS_ERR_PEER : (call))

static lks_status no_gradient(struct here *h)
{
    h->params[0].grad = h->params[1].grad = NULL;
    return lks_ddp_open(h->comm, h->params, 2, NULL, &h->other_ddp);
}

static lks_status step_half(struct here *h)
{
    LKS__TRY(lks_ddp_begin(h->ddp, 0));
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1));
    return lks_ddp_step(h->ddp, NULL);
}

static lks_status mark_twice(struct here *h)
{
    LKS__TRY(lks_ddp_begin(h->ddp, 0));
    LKS__TRY(lks_ddp_mark_ready(h->ddp, 1));
    return lks_ddp_mark_ready(h->ddp, 1);
}

static lks_status whole_leaf(struct here *h, int v)
{
    LKS__TRY(lks_ddp_begin(h->ddp, v));
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1));
    return lks_ddp_accumulate(h->ddp, 1);
}

static lks_status after_all_leaves(struct here *h, lks_status (*call)(struct here *h))
{
    LKS__TRY(whole_leaf(h, 0));
    LKS__TRY(whole_leaf(h, 1));
    return call(h);
}

static lks_status begin_third(struct here *h)
{
    return lks_ddp_begin(h->ddp, 2);
}

static lks_status begin_again(struct here *h)
{
    return lks_ddp_begin(h->ddp, 0);
}

static lks_status mark_late(struct here *h)
{
    return lks_ddp_mark_ready(h->ddp, 0);
}

static lks_status step_early(struct here *h)
{
    LKS__TRY(whole_leaf(h, 0));
    return lks_ddp_step(h->ddp, NULL);
}

/* Weights whose sum is infinite: in one virtual rank, and over all of them. */
static lks_status weigh_too_much(struct here *h)
{
    LKS__TRY(lks_ddp_begin(h->ddp, 0));
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1e308) == LKS_OK ? LKS_OK : LKS_ERR_IO);
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1e308) == LKS_OK ? LKS_OK : LKS_ERR_IO);
    LKS__TRY(lks_ddp_begin(h->ddp, 1));
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1));
    LKS__TRY(lks_ddp_accumulate(h->ddp, 1));
    return lks_ddp_step(h->ddp, NULL);
}

static lks_status weigh_other(struct here *h)
{
    LKS__TRY(open_ddp(h, (lks_ddp_options){.weight = 2}));
    LKS__TRY(lks_ddp_begin(h->other_ddp, 0));
    LKS__TRY(lks_ddp_accumulate(h->other_ddp, 2) == LKS_OK ? LKS_OK : LKS_ERR_IO);
    LKS__TRY(lks_ddp_step(h->other_ddp, NULL) == LKS_OK ? LKS_OK : LKS_ERR_IO);
    LKS__TRY(lks_ddp_begin(h->other_ddp, 0));
    const lks_status st = lks_ddp_accumulate(h->other_ddp, 3);
    lks_ddp_close(h->other_ddp);
    h->other_ddp = NULL;
    return st;
}

static lks_status weigh(struct here *h, double each)
{
    for (int v = 0; v < 2; v++) {
        LKS__TRY(lks_ddp_begin(h->ddp, v));
        LKS__TRY(lks_ddp_accumulate(h->ddp, each));
        LKS__TRY(lks_ddp_accumulate(h->ddp, 0));
    }
    return lks_ddp_step(h->ddp, NULL);
}

static lks_status wait_twice(struct here *h)
{
    lks_work *one, *two;
    LKS__TRY(lks_comm_reduce_start(h->comm, &h->r, &one));
    LKS__TRY(lks_work_wait(one));
    lks_status st = lks_work_wait(one);
    /* From now on two operations must not get the same handle. */
    LKS__TRY(lks_comm_reduce_start(h->comm, &h->r, &one));
    LKS__TRY(lks_comm_reduce_start(h->comm, &h->r, &two));
    if (one == two)
        return LKS_ERR_DIVERGED;
    LKS__TRY(lks_work_wait(one));
    LKS__TRY(lks_work_wait(two));
    return st == LKS_ERR_ARG ? lks_work_wait(one) : st;
}

/* Questions about a closed part, and an operation of it. */
static lks_status closed_part(struct here *h)
{
    lks_comm *part = NULL;
    size_t first = 1, end = 1;
    LKS__TRY(lks_comm_split(h->comm, 0, 0, &part));
    lks_comm_close(part);
    lks_comm_host_share(part, 4, &first, &end);
    if (strcmp(lks_comm_backend(part), "closed") != 0 || first != 0 || end != 4)
        return LKS_OK;
    return lks_comm_barrier(part);
}

/* A part that was closed. */
static lks_comm *closed(struct here *h)
{
    lks_comm *part = NULL;
    if (lks_comm_split(h->comm, 0, 0, &part) == LKS_OK)
        lks_comm_close(part);
    return part;
}

static lks_status save_closed(struct here *h)
{
    lks_status st = lks_checkpoint_save(closed(h), h->dir, 1, h->state, 2, 0);
    return lks_test_count_files(h->dir) == 0 ? st : LKS_OK;
}

/* The group is closed before its works are waited for. */
static lks_status wait_closed(struct here *h, bool queued, lks_status (*call)(lks_work *work))
{
    lks_comm *comm;
    lks_work *work;
    h->r.count = h->r.n_blocks = 0;
    LKS__TRY(lks_comm_open(&h->world, &h->options, &comm));
    LKS__TRY(queued ? lks_comm_all_reduce_start(comm, h->value, 1, LKS_FLOAT32, LKS_SUM, &work)
                    : lks_comm_reduce_start(comm, &h->r, &work));
    lks_comm_close(comm);
    return call(work);
}

static lks_status test_only(lks_work *work)
{
    bool done;
    return lks_work_test(work, &done);
}

/* Two leaves; the second is `apart` elements after the first. */
static lks_status reduce_two(struct here *h, size_t apart)
{
    lks_part both[2] = {{{0, 0}, h->own}, {{0, 1}, h->own + apart}};
    h->r.n_leaves = h->r.n_parts = 2;
    h->r.parts = both;
    LKS__TRY(lks_comm_reduce_start(h->comm, &h->r, &h->work));
    LKS__TRY(lks_work_wait(h->work));
    return h->common[1] == 2 * (h->own[1] + h->own[1 + N]) ? LKS_OK : LKS_ERR_DIVERGED;
}

/* The caller's borders are overwritten before the reduction has ended. */
static lks_status borders_gone(struct here *h)
{
    lks_work *work;
    size_t *start = calloc(BLOCKS + 1, sizeof *start);
    memcpy(start, h->start, sizeof h->start);
    h->r.block_start = start;
    lks_status st = lks_comm_reduce_start(h->comm, &h->r, &work);
    memset(start, 0xff, sizeof h->start);
    free(start);
    return st == LKS_OK ? lks_work_wait(work) : st;
}

static lks_status sample(struct here *h, int replica, uint64_t i)
{
    return lks_sampler_index(h->sampler, replica, i) == UINT64_MAX ? LKS_ERR_ARG : LKS_OK;
}

static lks_status close_in_step(struct here *h)
{
    LKS__TRY(whole_leaf(h, 0));
    LKS__TRY(whole_leaf(h, 1));
    lks_ddp_close(h->ddp); /* its reductions are in flight */
    h->ddp = NULL;
    char *junk = malloc(1 << 16);
    memset(junk, 0x7f, 1 << 16);
    free(junk);
    LKS__TRY(lks_comm_barrier(h->comm)); /* completes them */
    return lks_ddp_open(h->comm, h->params, 2,
                        &(lks_ddp_options){.virtual_ranks = 2, .micro_steps = 2}, &h->ddp);
}

/* The group is closed before its lks_ddp: later calls are refused. */
static lks_status closed_group(struct here *h, bool in_step, lks_status (*call)(lks_ddp *d))
{
    lks_comm *comm;
    lks_ddp *d;
    LKS__TRY(lks_comm_open(&h->world, &h->options, &comm));
    LKS__TRY(lks_ddp_open(comm, h->params, 2, NULL, &d));
    if (in_step) {
        LKS__TRY(lks_ddp_begin(d, 0));
        LKS__TRY(lks_ddp_mark_ready(d, 1));
    }
    lks_comm_close(comm);
    lks_comm_close(comm); /* the lks_ddp still has its handle */
    lks_status st = call(d);
    lks_ddp_close(d);
    return st;
}

static lks_status call_begin(lks_ddp *d)
{
    return lks_ddp_begin(d, 0);
}

static lks_status call_mark(lks_ddp *d)
{
    return lks_ddp_mark_ready(d, 0);
}

static lks_status call_accumulate(lks_ddp *d)
{
    return lks_ddp_accumulate(d, 1);
}

static lks_status call_step(lks_ddp *d)
{
    return lks_ddp_step(d, NULL);
}

/* Functions without a status: their results for NULL, and calls that are ignored. */
static lks_status no_status(struct here *h)
{
    lks_comm_close(NULL);
    lks_ddp_close(NULL);
    lks_sampler_close(NULL);
    lks_comm_abort(NULL, "why");
    lks_comm_note(NULL, 1, "phase");
    lks_comm_note(h->comm, 1, NULL);
    lks_comm_note(h->comm, 1, "");
    lks_comm_beat(NULL);
    lks_comm_drop(NULL, h->common, 0, 1);
    lks_comm_drop(h->comm, NULL, 0, 1);
    lks_comm_drop(h->comm, h->common, 0, 4); /* not lazy memory */
    lks_comm_drop(h->comm, h->value, 0, 4);
    lks_comm_drop(h->comm, h->common, 4, 0);
    lks_comm_drop(h->comm, h->common, 0, SIZE_MAX);
    lks_sampler_set_epoch(NULL, 1);
    h->first = h->end = 7;
    lks_comm_host_share(h->comm, 5, NULL, &h->end);
    lks_comm_host_share(NULL, 5, &h->first, &h->end);
    bool fine = h->first == 0 && h->end == 0 && lks_comm_rank(NULL) == -1 &&
                lks_comm_world_size(NULL) == 0 && lks_comm_world(NULL) == NULL &&
                lks_comm_leader(NULL) == -1 && strcmp(lks_comm_backend(NULL), "none") == 0 &&
                lks_comm_take_wait_s(NULL) == 0 && lks_comm_peer(NULL, h->own, 0) == NULL &&
                lks_comm_peer(h->comm, NULL, 0) == NULL &&
                lks_comm_peer(h->comm, h->own, 1) == NULL &&
                lks_comm_peer(h->comm, h->own, -1) == NULL &&
                lks_comm_peer(h->comm, h->common, 0) == NULL && lks_ddp_first(NULL) == 0 &&
                lks_ddp_end(NULL) == 0 && lks_ddp_gradient(NULL, 0) == NULL &&
                !lks_ddp_used(NULL, 0) && !lks_ddp_used(h->ddp, 2) &&
                !lks_ddp_used(h->ddp, SIZE_MAX) && lks_sampler_count(NULL) == 0 &&
                lks_status_text((lks_status)99) != NULL && lks_last_error() != NULL;
    return fine ? LKS_OK : LKS_ERR_DIVERGED;
}

static const size_t much = SIZE_MAX, two = 2;

/* --- the table -------------------------------------------------------------------------------- */

/* row, call, status, part of its sentence */
#define WORLD_ROWS(X)                                                                              \
    X(from_env_null, lks_world_from_env(NULL), ERR_ARG, "lks_world_from_env: world is NULL")       \
    X(from_env_text, from_env(h, "RANK", "one"), ERR_CONFIG, "RANK=one: a whole number")           \
    X(from_env_below, from_env(h, "RANK", "-1"), ERR_CONFIG, "RANK=-1: a whole number")            \
    X(from_env_alone, from_env(h, "RANK", "3"), ERR_CONFIG, "WORLD_SIZE is not")                   \
    X(from_env_no_rank, from_env(h, "WORLD_SIZE", "2"), ERR_CONFIG, "RANK is not set")             \
    X(open_null_world, lks_comm_open(NULL, &h->options, &h->other), ERR_ARG, "world is NULL")      \
    X(open_null_options, lks_comm_open(&h->world, NULL, &h->other), ERR_ARG, "options is NULL")    \
    X(open_null_out, lks_comm_open(&h->world, &h->options, NULL), ERR_ARG, "comm_p is NULL")       \
    X(init_timeout, init_with(h, "ten"), ERR_CONFIG, "LOCKSTEP_TIMEOUT=ten: seconds")              \
    X(init_no_time, init_with(h, "0"), ERR_CONFIG, "LOCKSTEP_TIMEOUT=0: seconds")                  \
    X(init_time, init_with(h, "2.5"), OK, "")                                                      \
    X(init_null_out, lks_comm_init(NULL), ERR_ARG, "lks_comm_init: comm_p is NULL")                \
    X(open_no_backend, open_with(h, NULL, 60), ERR_ARG, "options->backend is NULL")                \
    X(open_odd_backend, open_with(h, "nc\033cl", 60), ERR_SUPPORT, "no backend \"nc\\x1bcl\"")     \
    X(open_no_time, open_with(h, "auto", 0), ERR_ARG, "must be more than 0")                       \
    X(open_back_in_time, open_with(h, "auto", -1), ERR_ARG, "must be more than 0")                 \
    X(open_nan_time, open_with(h, "auto", NAN), ERR_ARG, "must be more than 0")                    \
    X(open_endless_time, open_with(h, "auto", INFINITY), OK, "")                                   \
    X(open_rank_high, open_world(h, (lks_world){1, 1, 0, 1}), ERR_ARG, "RANK is 1")                \
    X(open_rank_low, open_world(h, (lks_world){-1, 1, 0, 1}), ERR_ARG, "RANK is -1")               \
    X(open_empty, open_world(h, (lks_world){0, 0, 0, 0}), ERR_ARG, "WORLD_SIZE 0")                 \
    X(open_local, open_world(h, (lks_world){0, 1, 1, 1}), ERR_ARG, "LOCAL_RANK is 1")              \
    X(open_local_low, open_world(h, (lks_world){0, 1, -1, 1}), ERR_ARG, "LOCAL_RANK is -1")        \
    X(open_local_more, open_world(h, (lks_world){0, 1, 0, 2}), ERR_ARG, "no host has more ranks")  \
    X(open_all_ranks, open_world(h, (lks_world){0, INT_MAX, 0, INT_MAX}), ERR_SUPPORT, "shm: ")

#define COMM_ROWS(X)                                                                               \
    X(barrier_null, lks_comm_barrier(NULL), ERR_ARG, "comm is NULL")                               \
    X(progress_null, lks_comm_progress(NULL), ERR_ARG, "comm is NULL")                             \
    X(broadcast_null, lks_comm_broadcast(NULL, h->bytes, 1, LKS_UINT8, 0), ERR_ARG,                \
      "comm is NULL")                                                                              \
    X(broadcast_null_buf, lks_comm_broadcast(h->comm, NULL, 1, LKS_UINT8, 0), ERR_ARG,             \
      "buf is NULL")                                                                               \
    X(broadcast_nothing, lks_comm_broadcast(h->comm, NULL, 0, LKS_UINT8, 0), OK, "")               \
    X(broadcast_root, lks_comm_broadcast(h->comm, h->bytes, 1, LKS_UINT8, 1), ERR_ARG,             \
      "root is 1, but the group has ranks 0 to 0")                                                 \
    X(broadcast_root_low, lks_comm_broadcast(h->comm, h->bytes, 1, LKS_UINT8, -1), ERR_ARG,        \
      "root is -1, but")                                                                           \
    X(all_gather_null, lks_comm_all_gather(NULL, h->bytes, h->bytes, 1, LKS_UINT8), ERR_ARG,       \
      "comm is NULL")                                                                              \
    X(all_gather_mine, lks_comm_all_gather(h->comm, NULL, h->bytes, 1, LKS_UINT8), ERR_ARG,        \
      "mine is NULL")                                                                              \
    X(all_gather_all, lks_comm_all_gather(h->comm, h->bytes, NULL, 1, LKS_UINT8), ERR_ARG,         \
      "all is NULL")                                                                               \
    X(all_gather_nothing, lks_comm_all_gather(h->comm, NULL, NULL, 0, LKS_UINT8), OK, "")          \
    X(all_gather_overlap, lks_comm_all_gather(h->comm, h->bytes + 1, h->bytes, 9, LKS_UINT8),      \
      ERR_ARG, "mine overlaps all")                                                                \
    X(all_gather_in_place, lks_comm_all_gather(h->comm, h->bytes, h->bytes, N, LKS_UINT8), OK, "") \
    X(broadcast_type, lks_comm_broadcast(h->comm, h->bytes, 1, (lks_dtype)0, 0), ERR_ARG,          \
      "no data type 0")                                                                            \
    X(broadcast_much, lks_comm_broadcast(h->comm, h->bytes, SIZE_MAX / 4, LKS_INT64, 0), ERR_ARG,  \
      "are more than memory can address")                                                          \
    X(broadcast_old, lks_comm_broadcast(h->comm, h->bytes, 0, (lks_dtype)11, 0), ERR_ARG,          \
      "no data type 11")                                                                           \
    X(all_gather_type, lks_comm_all_gather(h->comm, h->bytes, h->bytes, 1, (lks_dtype)-1),         \
      ERR_ARG, "no data type -1")                                                                  \
    X(all_gather_more, lks_comm_all_gather(h->comm, h->bytes, h->bytes, SIZE_MAX, LKS_FLOAT16),    \
      ERR_ARG, "float16 elements per rank are more than memory")                                   \
    X(all_reduce_null, reduce_all(NULL, h->common, 1, LKS_FLOAT32, LKS_SUM), ERR_ARG,              \
      "comm is NULL")                                                                              \
    X(all_reduce_null_buf, reduce_all(h->comm, NULL, 1, LKS_INT64, LKS_MAX), ERR_ARG,              \
      "buf is NULL")                                                                               \
    X(all_reduce_overflow, reduce_all(h->comm, h->common, SIZE_MAX / 4, LKS_FLOAT32, LKS_SUM),     \
      ERR_ARG, "elements per rank are more than memory can address")                               \
    X(all_reduce_nothing, reduce_all(h->comm, NULL, 0, LKS_FLOAT64, LKS_MIN), OK, "")              \
    X(all_reduce_type, reduce_all(h->comm, h->common, 1, (lks_dtype)0, LKS_SUM), ERR_ARG,          \
      "lks_comm_all_reduce: there is no data type 0")                                              \
    X(all_reduce_bytes, reduce_all(h->comm, h->common, 1, LKS_UINT8, LKS_SUM), ERR_ARG,            \
      "uint8 elements can't be reduced: use float32")                                              \
    X(all_reduce_bool, reduce_all(h->comm, h->common, 1, LKS_BOOL, LKS_MAX), ERR_ARG,              \
      "bool elements can't be reduced")                                                            \
    X(all_reduce_mean, reduce_all(h->comm, h->common, 1, LKS_INT64, LKS_MEAN), ERR_ARG,            \
      "a mean of int64 elements would be cut: use LKS_SUM")                                        \
    X(scatter_null, lks_comm_reduce_scatter(NULL, h->common, h->common, 1, LKS_INT32, LKS_SUM),    \
      ERR_ARG, "lks_comm_reduce_scatter: comm is NULL")                                            \
    X(scatter_null_mine, lks_comm_reduce_scatter(h->comm, h->common, NULL, 1, LKS_INT32, LKS_SUM), \
      ERR_ARG, "lks_comm_reduce_scatter: mine is NULL")                                            \
    X(scatter_much,                                                                                \
      lks_comm_reduce_scatter(h->comm, h->common, h->common, SIZE_MAX, LKS_INT32, LKS_SUM),        \
      ERR_ARG, "more than memory can address")                                                     \
    X(scatter_op, lks_comm_reduce_scatter(h->comm, h->common, h->common, 1, LKS_INT32, (lks_op)9), \
      ERR_ARG, "lks_comm_reduce_scatter: there is no operation 9")                                 \
    X(scatter_overlap,                                                                             \
      lks_comm_reduce_scatter(h->comm, h->common, (char *)h->common + 4, 2, LKS_INT32, LKS_SUM),   \
      ERR_ARG, "mine overlaps all")                                                                \
    X(gather_v_null, lks_comm_all_gather_v(h->comm, h->bytes, h->bytes, NULL, LKS_UINT8), ERR_ARG, \
      "lks_comm_all_gather_v: counts is NULL")                                                     \
    X(gather_v_much, lks_comm_all_gather_v(h->comm, h->bytes, h->bytes, &much, LKS_FLOAT64),       \
      ERR_ARG, "are more than memory can address")                                                 \
    X(gather_v_overlap, lks_comm_all_gather_v(h->comm, h->bytes, h->bytes + 1, &two, LKS_UINT8),   \
      ERR_ARG, "mine overlaps all")                                                                \
    X(all_reduce_op, reduce_all(h->comm, h->common, 1, LKS_INT32, (lks_op)0), ERR_ARG,             \
      "no operation 0: use LKS_SUM, LKS_MEAN, LKS_PROD, LKS_MIN or LKS_MAX")                       \
    X(all_reduce_op_high, reduce_all(h->comm, h->common, 1, LKS_INT32, (lks_op)106), ERR_ARG,      \
      "no operation 106")                                                                          \
    X(all_reduce_exchanged,                                                                        \
      reduce_all(h->comm, h->common, 1, (lks_dtype)LKS_SUM, (lks_op)LKS_INT32), ERR_ARG,           \
      "no data type 101")                                                                          \
    X(all_reduce_odd, reduce_all(h->comm, (char *)h->common + 4, 1, LKS_INT64, LKS_SUM), ERR_ARG,  \
      "buf is not aligned as int64 elements are")                                                  \
    X(split_null, lks_comm_split(NULL, 0, 0, &h->other), ERR_ARG, "comm is NULL")                  \
    X(split_null_out, lks_comm_split(h->comm, 0, 0, NULL), ERR_ARG, "part_p is NULL")              \
    X(split_color, lks_comm_split(h->comm, -2, 0, &h->other), ERR_ARG, "color is -2")              \
    X(alloc_null, lks_comm_alloc(NULL, LKS_MEM_OWN, 1, &h->mem), ERR_ARG, "comm is NULL")          \
    X(alloc_null_out, lks_comm_alloc(h->comm, LKS_MEM_OWN, 1, NULL), ERR_ARG, "mem_p is NULL")     \
    X(alloc_kind, lks_comm_alloc(h->comm, 3, 1, &h->mem), ERR_ARG, "no kind of memory 3")          \
    X(alloc_kind_low, lks_comm_alloc(h->comm, -1, 1, &h->mem), ERR_ARG, "no kind of memory -1")    \
    X(alloc_all, lks_comm_alloc(h->comm, LKS_MEM_OWN, SIZE_MAX, &h->mem), ERR_NOMEM, "can't res")  \
    X(alloc_much, lks_comm_alloc(h->comm, LKS_MEM_COMMON, (size_t)1 << 45, &h->mem), ERR_NOMEM,    \
      "can't reserve")                                                                             \
    X(alloc_nothing, lks_comm_alloc(h->comm, LKS_MEM_OWN, 0, &h->mem), OK, "")                     \
    X(replicate_null, lks_comm_replicate(NULL, h->common, 1), ERR_ARG, "comm is NULL")             \
    X(replicate_null_mem, lks_comm_replicate(h->comm, NULL, 1), ERR_ARG, "mem is NULL")            \
    X(replicate_private, lks_comm_replicate(h->comm, h->bytes, 1), ERR_ARG,                        \
      "not in common memory")                                                                      \
    X(replicate_own, lks_comm_replicate(h->comm, h->own, 1), ERR_ARG, "not in common memory")      \
    X(replicate_beyond, lks_comm_replicate(h->comm, h->common, 1 << 20), ERR_ARG, "1048576 bytes") \
    X(shares_null, lks_comm_gather_shares(NULL, h->common, h->start, BLOCKS, 0), ERR_ARG, "NULL")  \
    X(shares_null_mem, lks_comm_gather_shares(h->comm, NULL, h->start, 2, 0), ERR_ARG,             \
      "mem is NULL")                                                                               \
    X(shares_null_start, lks_comm_gather_shares(h->comm, h->common, NULL, 2, 0), ERR_ARG, "NULL")  \
    X(shares_private, lks_comm_gather_shares(h->comm, h->bytes, h->start, BLOCKS, 0), ERR_ARG,     \
      "not in common or lazy memory")                                                              \
    X(shares_backwards,                                                                            \
      (h->start[1] = N + 1, lks_comm_gather_shares(h->comm, h->common, h->start, BLOCKS, 0)),      \
      ERR_ARG, "block 1 starts at 101 and ends at 100")                                            \
    X(wait_null, lks_work_wait(NULL), ERR_ARG, "work is NULL")                                     \
    X(wait_twice, wait_twice(h), ERR_ARG, "has released this work")                                \
    X(closed_part, closed_part(h), ERR_ARG, "this group was closed before")                        \
    X(closed_progress, lks_comm_progress(closed(h)), ERR_ARG, "this group was closed before")      \
    X(closed_alloc, lks_comm_alloc(closed(h), LKS_MEM_OWN, 1, &h->mem), ERR_ARG,                   \
      "lks_comm_alloc: this group was closed before")                                              \
    X(closed_replicate, lks_comm_replicate(closed(h), h->common, 1), ERR_ARG,                      \
      "lks_comm_replicate: this group was closed before")                                          \
    X(closed_reduce, lks_comm_reduce_start(closed(h), &h->r, &h->work), ERR_ARG,                   \
      "lks_comm_reduce_start: this group was closed before")                                       \
    X(closed_ddp, lks_ddp_open(closed(h), h->params, 2, NULL, &h->other_ddp), ERR_ARG,             \
      "lks_ddp_open: this group was closed before")                                                \
    X(closed_save, save_closed(h), ERR_ARG, "lks_checkpoint_save: this group was closed before")   \
    X(closed_load, lks_checkpoint_load(closed(h), h->dir, h->state, 2, NULL, &h->found), ERR_ARG,  \
      "lks_checkpoint_load: this group was closed before")                                         \
    X(wait_closed, wait_closed(h, true, lks_work_wait), ERR_ARG, "or lks_comm_close() has")        \
    X(reduce_closed, wait_closed(h, false, lks_work_wait), ERR_ARG, "or lks_comm_close() has")     \
    X(test_closed, wait_closed(h, true, test_only), ERR_ARG, "lks_work_test: lks_work_wait() or")  \
    X(no_status, no_status(h), OK, "")

#define REDUCE_ROWS(X)                                                                             \
    X(reduce_null, lks_comm_reduce_start(NULL, &h->r, &h->work), ERR_ARG, "comm is NULL")          \
    X(reduce_null_r, lks_comm_reduce_start(h->comm, NULL, &h->work), ERR_ARG, "r is NULL")         \
    X(reduce_null_out, lks_comm_reduce_start(h->comm, &h->r, NULL), ERR_ARG, "work_p is NULL")     \
    X(reduce_no_parts, REDUCE(h->r.parts = NULL), ERR_ARG, "r->parts is NULL")                     \
    X(reduce_no_blocks, REDUCE(h->r.block_start = NULL), ERR_ARG, "r->block_start is NULL")        \
    X(reduce_no_sumsq, REDUCE(h->r.block_sumsq = NULL), ERR_ARG, "r->block_sumsq is NULL")         \
    X(reduce_no_dst, REDUCE(h->r.dst = NULL), ERR_ARG, "r->dst is NULL")                           \
    X(reduce_no_buf, REDUCE(h->part.buf = NULL), ERR_ARG, "part 0 is no node of the tree over 1")  \
    X(reduce_no_leaves, REDUCE(h->r.n_leaves = 0), ERR_ARG, "0 leaves: 1 to ")                     \
    X(reduce_many_leaves, REDUCE(h->r.n_leaves = INT_MAX), ERR_ARG, "2147483647 leaves: 1 to ")    \
    X(reduce_parts_low, REDUCE(h->r.n_parts = -1), ERR_ARG, "-1 parts")                            \
    X(reduce_parts_high, REDUCE(h->r.n_parts = 35), ERR_ARG, "35 parts")                           \
    X(reduce_level, REDUCE(h->part.node.level = 1), ERR_ARG, "part 0 is no node")                  \
    X(reduce_index, REDUCE(h->part.node.index = -1), ERR_ARG, "part 0 is no node")                 \
    X(reduce_count, REDUCE(h->r.count = SIZE_MAX), ERR_ARG,                                        \
      "elements are more than memory can address")                                                 \
    X(reduce_wire, REDUCE(h->r.wire = 2), ERR_ARG, "no wire format 2")                             \
    X(reduce_scatter_way, REDUCE(h->r.scatter = 2), ERR_ARG, "no way to scatter 2")                \
    X(reduce_short, REDUCE(h->start[BLOCKS] = N - 1), ERR_ARG, "2 blocks cover [0, 99) of 100")    \
    X(reduce_late, REDUCE(h->start[0] = 1), ERR_ARG, "2 blocks cover [1, 100) of 100")             \
    X(reduce_none, REDUCE(h->r.n_blocks = 0), ERR_ARG, "0 blocks cover [0, 0) of 100")             \
    X(reduce_backwards, REDUCE(h->start[1] = N + 1), ERR_ARG, "block 1 starts at 101")             \
    X(reduce_private, REDUCE(h->part.buf = h->value[0]), ERR_ARG, "not in this rank's own memory") \
    X(reduce_common_part, REDUCE(h->part.buf = h->common), ERR_ARG, "not in this rank's own")      \
    X(reduce_odd_part, REDUCE(h->part.buf = (float *)((char *)h->own + 2)), ERR_ARG,               \
      "or not aligned as floats are")                                                              \
    X(reduce_private_dst, REDUCE(h->r.dst = h->value[0]), ERR_ARG, "neither in common memory nor") \
    X(reduce_odd_dst, REDUCE(h->r.dst = (float *)((char *)h->common + 2)), ERR_ARG, "not aligned") \
    X(reduce_private_sumsq, REDUCE(h->r.block_sumsq = (double *)(void *)h->value), ERR_ARG,        \
      "block_sumsq, 2 blocks, is not in common memory")                                            \
    X(reduce_odd_sumsq, REDUCE(h->r.block_sumsq = (double *)(void *)(h->common + N + 1)), ERR_ARG, \
      "not aligned")                                                                               \
    X(reduce_beyond, REDUCE((h->r.count = h->start[BLOCKS] = 1 << 20)), ERR_ARG, "1048576 elem")   \
    X(reduce_over_itself, REDUCE(h->r.dst = h->own + 1), ERR_ARG,                                  \
      "dst, 100 elements, overlaps part")                                                          \
    X(reduce_twice_there, reduce_two(h, 1), ERR_ARG, "parts 0 and 1, 100 elements, overlap")       \
    X(reduce_two, reduce_two(h, N), OK, "")                                                        \
    X(reduce_borders_gone, borders_gone(h), OK, "")

#define DDP_OPEN_ROWS(X)                                                                           \
    X(ddp_null, lks_ddp_open(NULL, h->params, 2, NULL, &h->other_ddp), ERR_ARG, "comm is NULL")    \
    X(ddp_null_params, lks_ddp_open(h->comm, NULL, 2, NULL, &h->other_ddp), ERR_ARG,               \
      "params is NULL")                                                                            \
    X(ddp_null_out, lks_ddp_open(h->comm, h->params, 2, NULL, NULL), ERR_ARG, "ddp_p is NULL")     \
    X(ddp_no_params, lks_ddp_open(h->comm, h->params, 0, NULL, &h->other_ddp), ERR_ARG,            \
      "0 parameters: 1 to ")                                                                       \
    X(ddp_many_params, lks_ddp_open(h->comm, h->params, SIZE_MAX, NULL, &h->other_ddp), ERR_ARG,   \
      "18446744073709551615 parameters")                                                           \
    X(ddp_no_name, open_param(h, (lks_param){NULL, h->value[1], h->grad[1], N}), ERR_ARG,          \
      "parameter 1: its name is NULL")                                                             \
    X(ddp_empty_name, open_param(h, (lks_param){"", h->value[1], h->grad[1], N}), ERR_ARG,         \
      "parameter 1: its name is empty")                                                            \
    X(ddp_no_value, open_param(h, (lks_param){"b", NULL, h->grad[1], N}), ERR_ARG,                 \
      "parameter 1: its value is NULL")                                                            \
    X(ddp_no_count, open_param(h, (lks_param){"b", h->value[1], h->grad[1], 0}), ERR_ARG,          \
      "parameter 1: its count is 0")                                                               \
    X(ddp_overflow, open_param(h, (lks_param){"b", h->value[1], h->grad[1], SIZE_MAX}), ERR_ARG,   \
      "are the counts right?")                                                                     \
    X(ddp_overflow_4, open_param(h, (lks_param){"b", h->value[1], h->grad[1], SIZE_MAX / 4}),      \
      ERR_ARG, "are the counts right?")                                                            \
    X(ddp_count, open_param(h, (lks_param){"b", h->value[1], h->grad[1], (size_t)1 << 43}),        \
      ERR_ARG, "up to number 1, with 8796093022208 elements")                                      \
    X(ddp_frozen_count, open_param(h, (lks_param){"b", h->value[1], NULL, SIZE_MAX / 4}), ERR_ARG, \
      "are the counts right?")                                                                     \
    X(ddp_bytes, open_param(h, (lks_param){"b", h->value[1], h->grad[1], 4 * N}), ERR_ARG,         \
      "overlaps memory of parameter 1: give a tied parameter once, and apart from its gradient; "  \
      "count elements, not bytes")                                                                 \
    X(ddp_tied, open_param(h, (lks_param){"b", h->value[1], h->grad[0], N}), ERR_ARG,              \
      "give a tied parameter once")                                                                \
    X(ddp_overlap, open_param(h, (lks_param){"b", h->value[0] + N - 1, h->grad[1], N}), ERR_ARG,   \
      "memory of parameter 1 overlaps memory of parameter 0")                                      \
    X(ddp_grad_is_value, open_param(h, (lks_param){"b", h->value[1], h->value[1], N}), ERR_ARG,    \
      "apart from its gradient")                                                                   \
    X(ddp_odd, open_param(h, (lks_param){"b", (float *)(h->bytes + 2), h->grad[1], 8}), ERR_ARG,   \
      "parameter 1 are not aligned")                                                               \
    X(ddp_frozen, no_gradient(h), ERR_ARG, "no parameter has a gradient")                          \
    X(ddp_own, OPENED(.own_gradients = true), ERR_ARG, "with own_gradients set grad to NULL")      \
    X(ddp_v_low, OPENED(.virtual_ranks = -1), ERR_ARG, "-1 virtual ranks: 1 to 1024")              \
    X(ddp_v_most, OPENED(.virtual_ranks = 1024), OK, "")                                           \
    X(ddp_v_high, OPENED(.virtual_ranks = 1025), ERR_ARG, "1025 virtual ranks")                    \
    X(ddp_a_low, OPENED(.micro_steps = -1), ERR_ARG, "-1 micro-steps")                             \
    X(ddp_a_high, OPENED(.micro_steps = (1 << 20) + 1), ERR_ARG, "1048577 micro-st")               \
    X(ddp_a_most, OPENED(.micro_steps = 1 << 20), OK, "")                                          \
    X(ddp_mb_low, OPENED(.bucket_mb = -1), ERR_ARG, "buckets of -1 MB")                            \
    X(ddp_mb_nan, OPENED(.bucket_mb = NAN), ERR_ARG, "MB: more than 0")                            \
    X(ddp_mb_high, OPENED(.bucket_mb = INFINITY), ERR_ARG, "buckets of inf MB")                    \
    X(ddp_wire, OPENED(.wire = (lks_wire)2), ERR_ARG, "no wire format 2")                          \
    X(ddp_weight_low, OPENED(.weight = -1), ERR_ARG, "the weight is -1: it is")                    \
    X(ddp_weight_nan, OPENED(.weight = NAN), ERR_ARG, "the weight is")                             \
    X(ddp_weight_large, OPENED(.weight = 1e60), ERR_ARG,                                           \
      "lks_ddp_open: the weights of a step's micro-steps add up to 1e+60")

#define DDP_ROWS(X)                                                                                \
    X(ddp_broadcast_null, lks_ddp_broadcast(NULL), ERR_ARG, "lks_ddp_broadcast: ddp is NULL")      \
    X(ddp_verify_null, lks_ddp_verify(NULL), ERR_ARG, "lks_ddp_verify: ddp is NULL")               \
    X(begin_null, lks_ddp_begin(NULL, 0), ERR_ARG, "lks_ddp_begin: ddp is NULL")                   \
    X(mark_null, lks_ddp_mark_ready(NULL, 0), ERR_ARG, "lks_ddp_mark_ready: ddp is NULL")          \
    X(loss_null, lks_ddp_add_loss(NULL, 0), ERR_ARG, "lks_ddp_add_loss: ddp is NULL")              \
    X(accumulate_null, lks_ddp_accumulate(NULL, 1), ERR_ARG, "lks_ddp_accumulate: ddp is NULL")    \
    X(step_null, lks_ddp_step(NULL, NULL), ERR_ARG, "lks_ddp_step: ddp is NULL")                   \
    X(begin_other, lks_ddp_begin(h->ddp, 1), ERR_ARG, "lks_ddp_begin() of virtual rank 0 is due")  \
    X(begin_low, lks_ddp_begin(h->ddp, -1), ERR_ARG, "lks_ddp_begin() of virtual rank 0 is due")   \
    X(begin_high, lks_ddp_begin(h->ddp, INT_MAX), ERR_ARG, "of virtual rank 0 is due")             \
    X(begin_twice, BEGUN(lks_ddp_begin(h->ddp, 0)), ERR_ARG, "micro-step 0 of virtual rank 0 (")   \
    X(begin_next, BEGUN(lks_ddp_begin(h->ddp, 1)), ERR_ARG, "lks_ddp_accumulate() is due")         \
    X(begin_third, after_all_leaves(h, begin_third), ERR_ARG, "lks_ddp_step() is due")             \
    X(begin_again, after_all_leaves(h, begin_again), ERR_ARG, "lks_ddp_step() is due")             \
    X(mark_early, lks_ddp_mark_ready(h->ddp, 0), ERR_ARG, "virtual rank 0 is due")                 \
    X(mark_late, after_all_leaves(h, mark_late), ERR_ARG, "lks_ddp_step() is due")                 \
    X(mark_beyond, BEGUN(lks_ddp_mark_ready(h->ddp, 2)), ERR_ARG,                                  \
      "no parameter 2: the list has 2")                                                            \
    X(mark_far, BEGUN(lks_ddp_mark_ready(h->ddp, SIZE_MAX)), ERR_ARG, "no parameter 184467440737") \
    X(mark_twice, mark_twice(h), ERR_ARG, "b was marked twice in micro-step 0 of virtual rank 0")  \
    X(loss_early, lks_ddp_add_loss(h->ddp, 1), ERR_ARG, "virtual rank 0 is due")                   \
    X(accumulate_early, lks_ddp_accumulate(h->ddp, 1), ERR_ARG, "virtual rank 0 is due")           \
    X(weight_low, BEGUN(lks_ddp_accumulate(h->ddp, -1)), ERR_ARG, "the weight is -1")              \
    X(weight_nan, BEGUN(lks_ddp_accumulate(h->ddp, NAN)), ERR_ARG, "the weight is")                \
    X(weight_inf, BEGUN(lks_ddp_accumulate(h->ddp, INFINITY)), ERR_ARG, "the weight is inf")       \
    X(weight_overflow, weigh_too_much(h), ERR_ARG, "micro-steps add up to inf, ")                  \
    X(weight_other, weigh_other(h), ERR_ARG, "the weight is 3, and lks_ddp_open() was given 2")    \
    X(weight_sum, weigh(h, 1e308), ERR_ARG, "add up to inf")                                       \
    X(weight_large, weigh(h, 1e60), ERR_ARG, "add up to 2e+60, by which no float")                 \
    X(weight_small, weigh(h, 1e-60), ERR_ARG, "add up to 2e-60, by which no float")                \
    X(step_first, lks_ddp_step(h->ddp, NULL), ERR_ARG, "virtual rank 0 is due")                    \
    X(step_begun, BEGUN(lks_ddp_step(h->ddp, NULL)), ERR_ARG, "lks_ddp_accumulate() is due, ")     \
    X(step_half, step_half(h), ERR_ARG, "at the end of micro-step 1 of virtual rank 0 (both")      \
    X(step_early, step_early(h), ERR_ARG, "lks_ddp_begin() of virtual rank 1 is due")              \
    X(broadcast_in_step, BEGUN(lks_ddp_broadcast(h->ddp)), OK, "")                                 \
    X(verify_in_step, BEGUN(lks_ddp_verify(h->ddp)), OK, "")                                       \
    X(close_in_step, close_in_step(h), OK, "")                                                     \
    X(closed_begin, closed_group(h, false, call_begin), ERR_ARG, "lks_ddp_begin: its group was")   \
    X(closed_mark, closed_group(h, true, call_mark), ERR_ARG, "call lks_ddp_close() first")        \
    X(closed_accumulate, closed_group(h, true, call_accumulate), ERR_ARG, "group was closed")      \
    X(closed_step, closed_group(h, true, call_step), ERR_ARG, "group was closed already")          \
    X(closed_broadcast, closed_group(h, false, lks_ddp_broadcast), ERR_ARG, "group was closed")    \
    X(closed_verify, closed_group(h, true, lks_ddp_verify), ERR_ARG, "group was closed already")

#define SAMPLER_ROWS(X)                                                                            \
    X(sampler_null, lks_sampler_open(NULL, &h->other_sampler), ERR_ARG, "options is NULL")         \
    X(sampler_null_out, lks_sampler_open(&h->sampled, NULL), ERR_ARG, "sampler_p is NULL")         \
    X(sampler_empty, open_sampler(h, 0, 1, false), ERR_ARG, "0 samples for 1")                     \
    X(sampler_large, open_sampler(h, (uint64_t)1 << 32, 1, false), ERR_ARG,                        \
      "4294967296 samples for 1 replicas")                                                         \
    X(sampler_nobody, open_sampler(h, 5, 0, false), ERR_ARG, "for 0 replicas")                     \
    X(sampler_below, open_sampler(h, 5, INT_MIN, false), ERR_ARG, "replicas: th")                  \
    X(sampler_nothing, open_sampler(h, 5, 6, true), ERR_ARG,                                       \
      "drop_last leaves nothing of 5 samples for 6 replicas")                                      \
    X(index_replica, sample(h, 3, 0), ERR_ARG, "sample 0 of replica 3: there are 4 samples for")   \
    X(index_low, sample(h, -1, 0), ERR_ARG, "replica -1")                                          \
    X(index_beyond, sample(h, 2, 4), ERR_ARG, "sample 4 of replica 2")                             \
    X(index_far, sample(h, 2, UINT64_MAX), ERR_ARG, "each of 3 replicas")                          \
    X(index_last, sample(h, 2, 3), OK, "")                                                         \
    X(index_null, lks_sampler_index(NULL, 0, 0) == UINT64_MAX ? LKS_ERR_ARG : LKS_OK, ERR_ARG,     \
      "there are 0 samples for each of 0 replicas")

#define CHECKPOINT_ROWS(X)                                                                         \
    X(save_null, lks_checkpoint_save(NULL, h->dir, 1, h->state, 2, 0), ERR_ARG, "comm is NULL")    \
    X(save_null_dir, lks_checkpoint_save(h->comm, NULL, 1, h->state, 2, 0), ERR_ARG,               \
      "dir is NULL")                                                                               \
    X(save_no_dir, lks_checkpoint_save(h->comm, "", 1, h->state, 2, 0), ERR_ARG, "dir is empty")   \
    X(save_step, lks_checkpoint_save(h->comm, h->dir, UINT64_MAX, h->state, 2, 0), ERR_ARG,        \
      "step 18446744073709551615, keep 0: a step is below 2^63")                                   \
    X(save_keep, lks_checkpoint_save(h->comm, h->dir, 1, h->state, 2, -1), ERR_ARG, "keep -1")     \
    X(save_null_list, lks_checkpoint_save(h->comm, h->dir, 1, NULL, 2, 0), ERR_ARG,                \
      "2 tensors at NULL")                                                                         \
    X(save_no_list, lks_checkpoint_save(h->comm, h->dir, 1, h->state, 0, 0), ERR_ARG,              \
      "0 tensors: 1 to")                                                                           \
    X(save_long_list, lks_checkpoint_save(h->comm, h->dir, 1, h->state, SIZE_MAX, 0), ERR_ARG,     \
      "18446744073709551615 tensors: 1 to")                                                        \
    X(save_no_name, SAVE(name = NULL), ERR_ARG, "tensor 1 (NULL): it has no name")                 \
    X(save_empty_name, SAVE(name = ""), ERR_ARG, "tensor 1 (): it has no name")                    \
    X(save_odd_name, SAVE(name = "a\xff"), ERR_ARG, "tensor 1 (a\\xff): its name is not UTF-8")    \
    X(save_their_name, SAVE(name = "__metadata__"), ERR_ARG,                                       \
      "that name is reserved by the format")                                                       \
    X(save_more_null, save_more(h, (lks_checkpoint_more){NULL, 1, NULL}), ERR_ARG,                 \
      "1 tensors at NULL")                                                                         \
    X(save_more_odd, save_own(h, (lks_tensor){.name = "r"}), ERR_ARG,                              \
      "tensor 0 (r): there is no such data type")                                                  \
    X(save_more_json, save_more(h, (lks_checkpoint_more){NULL, 0, "{"}), ERR_ARG,                  \
      "the program's own text is not valid JSON")                                                  \
    X(json_null, lks_checkpoint_json(NULL, h->dir, &h->text, NULL), ERR_ARG, "comm is NULL")       \
    X(json_null_out, lks_checkpoint_json(h->comm, h->dir, NULL, NULL), ERR_ARG, "json_p is NULL")  \
    X(json_no_dir, lks_checkpoint_json(h->comm, "", &h->text, NULL), ERR_ARG, "dir is empty")      \
    X(save_name_twice, SAVE(name = "a"), ERR_ARG, "the name a is in the list twice")               \
    X(save_no_type, SAVE(dtype = (lks_dtype)0), ERR_ARG,                                           \
      "tensor 1 (b): there is no such data type")                                                  \
    X(save_odd_type, SAVE(dtype = (lks_dtype)LKS_SUM), ERR_ARG, "there is no such data type")      \
    X(save_dims, SAVE(n_dims = 65), ERR_ARG, "or more than 64 dimensions")                         \
    X(save_dims_low, SAVE(n_dims = -1), ERR_ARG, "it has fewer than 0")                            \
    X(save_shape, SAVE(shape[0] = UINT64_MAX), ERR_ARG,                                            \
      "its shape is more than memory can address")                                                 \
    X(save_shape_wraps, SAVE(shape[0] = (uint64_t)1 << 62), ERR_ARG,                               \
      "its shape is more than memory")                                                             \
    X(save_no_data, SAVE(data = NULL), ERR_ARG, "its data are NULL")                               \
    X(save_shape_large, (h->state[1].n_dims = 1, SAVE(shape[0] = (uint64_t)1 << 61)), ERR_ARG,     \
      "its shape is more than memory")                                                             \
    X(save_nothing, (h->state[1].shape[0] = 0, h->state[1].dtype = LKS_INT64, SAVE(data = NULL)),  \
      OK, "")                                                                                      \
    X(save_there, lks_checkpoint_save(h->comm, "/dev/null/here", 1, h->state, 2, 0), ERR_IO,       \
      "checkpoint ckpt-00000001 is not saved")                                                     \
    X(load_more_null, lks_checkpoint_load_more(NULL, h->dir, h->state, 2, NULL, NULL, NULL),       \
      ERR_ARG, "lks_checkpoint_load_more: comm is NULL")                                           \
    X(load_null, lks_checkpoint_load(NULL, h->dir, h->state, 2, NULL, &h->found), ERR_ARG,         \
      "comm is NULL")                                                                              \
    X(load_null_dir, lks_checkpoint_load(h->comm, NULL, h->state, 2, NULL, &h->found), ERR_ARG,    \
      "dir is NULL")                                                                               \
    X(load_no_dir, lks_checkpoint_load(h->comm, "", h->state, 2, NULL, &h->found), ERR_ARG,        \
      "dir is empty")                                                                              \
    X(load_null_list, lks_checkpoint_load(h->comm, h->dir, NULL, 2, NULL, &h->found), ERR_ARG,     \
      "tensors at NULL")                                                                           \
    X(load_no_data,                                                                                \
      (h->state[0].data = NULL,                                                                    \
       lks_checkpoint_load(h->comm, h->dir, h->state, 2, NULL, &h->found)),                        \
      ERR_ARG, "tensor 0 (a): its data are NULL")                                                  \
    X(load_none, lks_checkpoint_load(h->comm, h->dir, h->state, 2, NULL, NULL), ERR_IO,            \
      "there is no checkpoint")                                                                    \
    X(load_new_start, lks_checkpoint_load(h->comm, h->dir, h->state, 2, NULL, &h->found), OK, "")

#define ALL_ROWS(X)                                                                                \
    WORLD_ROWS(X)                                                                                  \
    COMM_ROWS(X) REDUCE_ROWS(X) DDP_OPEN_ROWS(X) DDP_ROWS(X) SAMPLER_ROWS(X) CHECKPOINT_ROWS(X)

#define X(name, call, st, text)                                                                    \
    static lks_status run_##name(struct here *h)                                                   \
    {                                                                                              \
        return call;                                                                               \
    }
ALL_ROWS(X)
#undef X

static const struct row {
    const char *name;
    lks_status (*run)(struct here *h);
    lks_status status;
    const char *text;
} rows[] = {
#define X(name, call, st, text) {#name, run_##name, LKS_##st, text},
    ALL_ROWS(X)
#undef X
};

/* --- before and after a row ------------------------------------------------------------------- */

static void set_up(struct here *h)
{
    void *own, *common;
    *h = (struct here){.world = {0, 1, 0, 1},
                       .options = {"auto", 60},
                       .sampled = {.dataset_size = 11, .replicas = 3}};
    assert_ok(lks_comm_open(&h->world, &h->options, &h->comm));
    assert_ok(lks_comm_alloc(h->comm, LKS_MEM_OWN, 2 * N * sizeof(float), &own));
    assert_ok(lks_comm_alloc(h->comm, LKS_MEM_COMMON, 2 * N * sizeof(float), &common));
    h->own = own;
    h->common = common;
    for (int i = 0; i < 2 * N; i++)
        h->own[i] = (float)i;
    h->start[1] = N / 2;
    h->start[BLOCKS] = N;
    h->part = (lks_part){{0, 0}, h->own};
    h->r = (lks_reduction){.n_leaves = 1,
                           .parts = &h->part,
                           .n_parts = 1,
                           .scale = 2,
                           .count = N,
                           .block_start = h->start,
                           .n_blocks = BLOCKS,
                           .block_sumsq = (double *)(void *)(h->common + N),
                           .dst = h->common};
    h->params[0] = (lks_param){"a", h->value[0], h->grad[0], N};
    h->params[1] = (lks_param){"b", h->value[1], h->grad[1], N};
    assert_ok(lks_ddp_open(
        h->comm, h->params, 2,
        &(lks_ddp_options){.virtual_ranks = 2, .micro_steps = 2, .bucket_mb = 1e-4}, &h->ddp));
    assert_ok(lks_sampler_open(&h->sampled, &h->sampler));
    h->dir = lks_test_folder();
    h->state[0] = (lks_tensor){"a", LKS_FLOAT32, 1, {N}, h->value[0]};
    h->state[1] = (lks_tensor){"b", LKS_FLOAT32, 2, {N / 2, 2}, h->value[1]};
}

/* Complete a step from any state in which the row has left the lks_ddp, following its errors; then
 * make a whole one. */
static void finish_step(struct here *h)
{
    for (int v = 0; v < 2; v++) {
        lks_ddp_begin(h->ddp, v);
        while (lks_ddp_accumulate(h->ddp, 1) == LKS_OK)
            ;
    }
    if (lks_ddp_step(h->ddp, NULL) != LKS_OK) /* the row's weights were too large */
        assert_contains(lks_last_error(), "add up to");
}

static void check_alive(struct here *h)
{
    lks_ddp_result result;
    float sum = 3;
    assert_ok(lks_comm_all_reduce(h->comm, &sum, 1, LKS_FLOAT32, LKS_SUM));
    assert_true(sum == 3);
    finish_step(h);
    for (int v = 0; v < 2; v++) {
        assert_ok(lks_ddp_begin(h->ddp, v));
        for (int i = 0; i < N; i++)
            h->grad[0][i] = h->grad[1][i] = (float)(v + 1);
        assert_ok(lks_ddp_accumulate(h->ddp, 1));
        assert_ok(lks_ddp_accumulate(h->ddp, 1));
    }
    assert_ok(lks_ddp_step(h->ddp, &result));
    assert_true(result.weight == 4 && h->grad[0][0] == 0.75f && h->grad[1][N - 1] == 0.75f);
    assert_int_equal(lks_sampler_count(h->sampler), 4);
}

static void tear_down(struct here *h)
{
    lks_sampler_close(h->sampler);
    lks_sampler_close(h->other_sampler);
    lks_ddp_close(h->other_ddp);
    lks_ddp_close(h->ddp);
    lks_comm_close(h->other);
    lks_comm_close(h->comm);
}

TEST(test_rows)
{
    static struct here h;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        print_message("%s\n", row->name);
        set_up(&h);
        lks_status st = row->run(&h);
        if (st != row->status)
            fail_msg("%s: %s instead of %s: %s", row->name, lks_status_text(st),
                     lks_status_text(row->status), lks_last_error());
        if (st != LKS_OK)
            assert_contains(lks_last_error(), row->text);
        if (st != LKS_OK &&
            (h.other != NULL || h.other_ddp != NULL || h.other_sampler != NULL || h.mem != NULL))
            fail_msg("%s: something was given although the call failed", row->name);
        check_alive(&h);
        tear_down(&h);
    }
}

/* A call that opens or allocates something leaves no address of an earlier one if it fails. */
TEST(test_given_nothing)
{
    static struct here h;
    set_up(&h);
    lks_comm *comm = h.comm, *part = h.comm;
    lks_ddp *ddp = h.ddp;
    lks_sampler *sampler = h.sampler;
    lks_optimizer *optimizer = (lks_optimizer *)&h;
    assert_int_equal(lks_comm_open(NULL, &h.options, &comm), LKS_ERR_ARG);
    assert_null(comm);
    setenv("LOCKSTEP_TIMEOUT", "soon", 1);
    comm = h.comm;
    assert_int_equal(lks_comm_init(&comm), LKS_ERR_CONFIG);
    assert_null(comm);
    unsetenv("LOCKSTEP_TIMEOUT");
    assert_int_equal(lks_comm_split(h.comm, -2, 0, &part), LKS_ERR_ARG);
    assert_null(part);
    part = h.comm;
    assert_int_equal(lks_comm_split(NULL, 0, 0, &part), LKS_ERR_ARG);
    assert_null(part);
    void *mem = &h;
    assert_int_equal(lks_comm_alloc(h.comm, (lks_mem)7, 8, &mem), LKS_ERR_ARG);
    assert_null(mem);
    mem = &h;
    assert_int_equal(lks_comm_alloc(NULL, LKS_MEM_OWN, 8, &mem), LKS_ERR_ARG);
    assert_null(mem);
    assert_int_equal(lks_ddp_open(h.comm, NULL, 1, NULL, &ddp), LKS_ERR_ARG);
    assert_null(ddp);
    assert_int_equal(lks_sampler_open(NULL, &sampler), LKS_ERR_ARG);
    assert_null(sampler);
    assert_int_equal(lks_optimizer_open(NULL, LKS_SGD, NULL, 1, &optimizer), LKS_ERR_ARG);
    assert_null(optimizer);
    char *text = h.bytes;
    assert_int_equal(lks_checkpoint_json(h.comm, "", &text, NULL), LKS_ERR_ARG);
    assert_null(text);
    lks_tensor *tensors = h.state;
    size_t n = 2;
    assert_int_equal(lks_checkpoint_list(h.comm, "", &tensors, &n, NULL), LKS_ERR_ARG);
    assert_true(tensors == NULL && n == 0);
    tensors = h.state;
    assert_int_equal(lks_checkpoint_list(h.comm, "", &tensors, NULL, NULL), LKS_ERR_ARG);
    assert_null(tensors);
    tear_down(&h);
}
