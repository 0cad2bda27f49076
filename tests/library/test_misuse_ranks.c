/* A table of calls that don't match those of other ranks, or come too late for them. Each ends
 * within seconds, on every rank with the status and the sentence in the table, and freed memory
 * isn't read. Ranks are threads, of one host and of several (an engine of threads), so that
 * sanitizers see all of them. With the argument `gloo`, ranks are processes, and hosts use Gloo.
 *
 * Rank 0 plays one part, all others the other one. */
#include "support.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/fake_engine.h"
#include "comm/hosts.h"
#include "comm/shm/shm.h"
#include "lockstep/lockstep.h"

enum { N = 5000, N_PARAMS = 3 };

/* A group's deadline, and the limit for a row: no row may end by the deadline. */
static const double TIMEOUT_S = 60, MOST_S = 20;

struct row;

struct rank {
    pthread_t thread;
    pthread_barrier_t *played;
    struct fake_rank place;
    const struct row *row;
    lks_comm *comm;
    lks_ddp *ddp;
    lks_param params[N_PARAMS];
    lks_ddp_options options;
    float value[N_PARAMS][N], grad[N_PARAMS][N];
    char dir[256];
    lks_status status;
    char said[1024];
    int fails_at; /* number of its allocation that fails; 0: none does */
    int n_allocs; /* in its part of a row that fails */
};

struct row {
    const char *name;
    lks_status (*run)(struct rank *r, bool first); /* first: this is rank 0 */
    lks_status first, others;                      /* expected status */
    const char *first_says, *others_say;
};

/* --- parts of a program ----------------------------------------------------------------------- */

/* Small buckets: each parameter has its own. */
static lks_status open_ddp(struct rank *r)
{
    static const char *const names[N_PARAMS] = {"in", "weight", "out"};
    static const size_t counts[N_PARAMS] = {7, N, 60};
    for (int i = 0; i < N_PARAMS; i++)
        r->params[i] = (lks_param){names[i], r->value[i], r->grad[i], counts[i]};
    r->options.bucket_mb = 1e-4;
    return lks_ddp_open(r->comm, r->params, N_PARAMS, &r->options, &r->ddp);
}

static void fill(struct rank *r)
{
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < N; i++)
            r->grad[p][i] = (float)(lks_comm_rank(r->comm) + 1);
}

/* Up to lks_ddp_accumulate(), when all buckets are in flight. */
static lks_status backward(struct rank *r, lks_ddp *d)
{
    LKS__TRY(lks_ddp_begin(d, lks_ddp_first(d)));
    fill(r);
    return lks_ddp_accumulate(d, 1);
}

/* One bucket is in flight, the others are not. */
static lks_status half_backward(struct rank *r, lks_ddp *d)
{
    LKS__TRY(lks_ddp_begin(d, lks_ddp_first(d)));
    fill(r);
    return lks_ddp_mark_ready(d, N_PARAMS - 1);
}

static lks_status check_mean(const struct rank *r)
{
    float want = (float)(lks_comm_world_size(r->comm) + 1) / 2;
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < r->params[p].count; i++)
            if (r->grad[p][i] != want)
                return lks__fail(LKS_ERR_DIVERGED, "the mean is %g instead of %g",
                                 (double)r->grad[p][i], (double)want);
    return LKS_OK;
}

static lks_status whole_step(struct rank *r, lks_ddp *d)
{
    LKS__TRY(backward(r, d));
    LKS__TRY(lks_ddp_step(d, NULL));
    return check_mean(r);
}

static void close_ddp(struct rank *r)
{
    lks_ddp_close(r->ddp);
    r->ddp = NULL;
    /* Overwrite freed memory. */
    for (size_t bytes = 16; bytes < 100000; bytes *= 2) {
        void *junk = malloc(bytes);
        memset(junk, 0x7f, bytes);
        free(junk);
    }
}

static void close_comm(struct rank *r)
{
    lks_comm_close(r->comm);
    r->comm = NULL;
}

static void soon(void)
{
    usleep(100 * 1000);
}

/* --- lks_ddp ---------------------------------------------------------------------------------- */

static lks_status other_order(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    close_ddp(r);
    lks_param swapped[N_PARAMS] = {r->params[1], r->params[0], r->params[2]};
    return lks_ddp_open(r->comm, first ? r->params : swapped, N_PARAMS, NULL, &r->ddp);
}

static lks_status other_options(struct rank *r, bool first)
{
    r->options.virtual_ranks = first ? 8 : 16;
    return open_ddp(r);
}

static lks_status other_wire(struct rank *r, bool first)
{
    r->options.wire = first ? LKS_WIRE_FLOAT32 : LKS_WIRE_BFLOAT16;
    return open_ddp(r);
}

static lks_status other_weight(struct rank *r, bool first)
{
    r->options.weight = first ? 4 : 0.5;
    return open_ddp(r);
}

static lks_status other_stores(struct rank *r, bool first)
{
    r->options.overwrites = first;
    return open_ddp(r);
}

/* Hosts send 1 + 2^-10 as 1; one host sends nothing. */
static lks_status narrow_wire(struct rank *r, bool first)
{
    const float one = 1 + 0x1p-10f;
    r->options.wire = LKS_WIRE_BFLOAT16;
    LKS__TRY(open_ddp(r));
    LKS__TRY(lks_ddp_begin(r->ddp, lks_ddp_first(r->ddp)));
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < r->params[p].count; i++)
            r->grad[p][i] = one;
    LKS__TRY(lks_ddp_accumulate(r->ddp, 1));
    LKS__TRY(lks_ddp_step(r->ddp, NULL));
    const bool several = lks_comm_world(r->comm)->local_world_size < lks_comm_world_size(r->comm);
    for (size_t i = 0; i < N; i++)
        if ((r->grad[1][i] == one) == several || r->grad[1][i] < 1 || r->grad[1][i] > one)
            return lks__fail(LKS_ERR_DIVERGED, "the mean is %.9g", (double)r->grad[1][i]);
    return LKS_OK;
}

static lks_status other_buckets(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    close_ddp(r);
    return lks_ddp_open(r->comm, r->params, N_PARAMS, first ? NULL : &r->options, &r->ddp);
}

static lks_status opened_by_one(struct rank *r, bool first)
{
    return first ? open_ddp(r) : lks_comm_barrier(r->comm);
}

static lks_status bad_list_of_one(struct rank *r, bool first)
{
    if (first)
        return open_ddp(r);
    lks_param p = {"in", NULL, r->grad[0], 7};
    lks_status st = lks_ddp_open(r->comm, &p, 1, NULL, &r->ddp);
    close_comm(r);
    return st;
}

/* All give up this step: after the same bucket, or after all of them. */
static lks_status all_give_up(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(half_backward(r, r->ddp));
    if (!first)
        soon();
    close_ddp(r);
    LKS__TRY(open_ddp(r));
    LKS__TRY(whole_step(r, r->ddp));
    LKS__TRY(backward(r, r->ddp));
    close_ddp(r);
    LKS__TRY(open_ddp(r));
    return whole_step(r, r->ddp);
}

/* Number of works that the group has ever made, if it uses only shared memory. */
static int count_works(const lks_comm *comm)
{
    int n = 0;
    if (strcmp(lks_comm_backend(comm), "shm") != 0)
        return 0;
    const struct lks__shm *g = comm->state;
    for (const struct lks__shm_work *k = g->all_works; k != NULL; k = k->next_made)
        n++;
    return n;
}

/* … many times: works without a wait are used again. */
static lks_status all_give_up_often(struct rank *r, bool first)
{
    for (int i = 0; i < 100; i++) {
        LKS__TRY(open_ddp(r));
        LKS__TRY(i % 3 == 0 ? backward(r, r->ddp) : half_backward(r, r->ddp));
        close_ddp(r);
    }
    if (count_works(r->comm) > LKS__SHM_IN_FLIGHT)
        return lks__fail(LKS_ERR_NOMEM, "%d works were made", count_works(r->comm));
    LKS__TRY(open_ddp(r));
    return whole_step(r, r->ddp);
}

static lks_status one_gives_up(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(half_backward(r, r->ddp));
    if (!first) {
        LKS__TRY(lks_ddp_accumulate(r->ddp, 1));
        return lks_ddp_step(r->ddp, NULL);
    }
    close_ddp(r);
    return open_ddp(r);
}

static lks_status one_gives_up_late(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(backward(r, r->ddp));
    if (!first)
        return lks_ddp_step(r->ddp, NULL);
    soon();
    close_ddp(r);
    return open_ddp(r);
}

static lks_status one_leaves(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(half_backward(r, r->ddp));
    if (!first) {
        LKS__TRY(lks_ddp_accumulate(r->ddp, 1));
        return lks_ddp_step(r->ddp, NULL);
    }
    soon();
    close_ddp(r);
    close_comm(r);
    return LKS_OK;
}

static lks_status others_leave(struct rank *r, bool first)
{
    return one_leaves(r, !first);
}

/* The group is closed before its lks_ddp, with reductions in flight. */
static lks_status group_goes_first(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(first ? half_backward(r, r->ddp) : backward(r, r->ddp));
    if (!first)
        return lks_ddp_step(r->ddp, NULL);
    soon();
    close_comm(r);
    lks_status st = lks_ddp_accumulate(r->ddp, 1);
    close_ddp(r);
    return st;
}

/* A failed step stays failed, with its reason. */
static lks_status after_failure(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(backward(r, r->ddp));
    if (first) {
        lks_comm_note(r->comm, 7, "backward");
        lks_comm_abort(r->comm, "the data is torn");
    }
    lks_status st = lks_ddp_step(r->ddp, NULL);
    if (st != lks_ddp_step(r->ddp, NULL) || st != lks_ddp_begin(r->ddp, 0) ||
        st != lks_ddp_accumulate(r->ddp, 1) || st != lks_ddp_broadcast(r->ddp))
        return LKS_ERR_DIVERGED;
    close_ddp(r);
    lks_status again = open_ddp(r);
    if (again != st)
        return LKS_ERR_DIVERGED;
    return lks_comm_barrier(r->comm);
}

/* The failure comes while buckets are started: the step must not end as if all had been started. */
static lks_status fails_in_backward(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    (void)lks_comm_barrier(r->comm); /* the others have opened theirs when the first fails */
    lks_status st = half_backward(r, r->ddp);
    if (first)
        lks_comm_abort(r->comm, "the data is torn");
    for (int i = 0; i < lks_test_tries(10000) && lks_comm_progress(r->comm) == LKS_OK; i++)
        usleep(1000); /* until the failure is known here */
    if (st == LKS_OK) /* else a mark has found it */
        st = lks_ddp_accumulate(r->ddp, 1);
    return st == LKS_ERR_PEER ? lks_ddp_step(r->ddp, NULL) : LKS_ERR_DIVERGED;
}

static lks_status two_of_them(struct rank *r, bool first)
{
    lks_ddp *one;
    LKS__TRY(open_ddp(r));
    one = r->ddp;
    LKS__TRY(open_ddp(r));
    LKS__TRY(backward(r, one));
    LKS__TRY(backward(r, r->ddp)); /* both are in flight */
    lks_status st = lks_ddp_step(r->ddp, NULL);
    LKS__THEN(st, lks_ddp_step(one, NULL));
    LKS__THEN(st, check_mean(r));
    lks_ddp_close(one);
    return st;
}

/* Buckets of the same shape that belong to different sums. */
static lks_status two_crossed(struct rank *r, bool first)
{
    lks_ddp *one;
    LKS__TRY(open_ddp(r));
    one = r->ddp;
    LKS__TRY(open_ddp(r));
    lks_status st = whole_step(r, first ? one : r->ddp);
    LKS__THEN(st, whole_step(r, first ? r->ddp : one));
    lks_ddp_close(one);
    return st;
}

/* Values of the same sizes that belong to different models. */
static lks_status models_crossed(struct rank *r, bool first)
{
    lks_ddp *one;
    LKS__TRY(open_ddp(r));
    one = r->ddp;
    LKS__TRY(open_ddp(r));
    lks_status st = lks_ddp_broadcast(first ? one : r->ddp);
    lks_ddp_close(one);
    return st;
}

static lks_status open_optimizer(struct rank *r, lks_optimizer **o_p)
{
    const lks_optimizer_param p = {"w", r->value[0], r->grad[0], LKS_PARAM_VECTOR, N, 1};
    return lks_optimizer_open(r->comm, LKS_ADAMW, &p, 1, o_p);
}

/* One rank's state, or with `steps` its step, meets the others' state of a second optimizer, or of
 * the same one. */
static lks_status optimizers_called(struct rank *r, bool first, bool steps)
{
    static const lks_rates rates = {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.9, .epsilon = 1};
    lks_optimizer *o[2] = {NULL, NULL};
    const lks_tensor *tensors;
    size_t n;
    lks_status st = open_optimizer(r, &o[0]);
    LKS__THEN(st, open_optimizer(r, &o[1]));
    if (st == LKS_OK && first && steps)
        st = lks_optimizer_step(o[0], &rates);
    else if (st == LKS_OK)
        st = lks_optimizer_state(o[!first && !steps], &tensors, &n);
    lks_optimizer_close(o[0]);
    lks_optimizer_close(o[1]);
    return st;
}

static lks_status optimizers_crossed(struct rank *r, bool first)
{
    return optimizers_called(r, first, false);
}

static lks_status state_and_step(struct rank *r, bool first)
{
    return optimizers_called(r, first, true);
}

static lks_status one_step_more(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(whole_step(r, r->ddp));
    if (first)
        return whole_step(r, r->ddp);
    return lks_ddp_verify(r->ddp);
}

/* Each weight is fine, but not their sum; the next step works. */
static lks_status too_much_weight(struct rank *r, bool first)
{
    lks_ddp *d;
    LKS__TRY(open_ddp(r));
    d = r->ddp;
    LKS__TRY(lks_ddp_begin(d, lks_ddp_first(d)));
    LKS__TRY(lks_ddp_accumulate(d, 1e308));
    lks_status st = lks_ddp_step(d, NULL);
    char said[512];
    snprintf(said, sizeof said, "%s", lks_last_error());
    LKS__TRY(whole_step(r, d));
    return lks__fail(st, "%s", said);
}

/* --- groups ----------------------------------------------------------------------------------- */

static lks_status gone_at_barrier(struct rank *r, bool first)
{
    if (!first)
        return lks_comm_barrier(r->comm);
    soon();
    close_comm(r);
    return LKS_OK;
}

static lks_status others_gone_at_sum(struct rank *r, bool first)
{
    if (first)
        return lks_comm_all_reduce(r->comm, r->value[0], N_PARAMS * N, LKS_FLOAT32, LKS_SUM);
    soon();
    close_comm(r);
    return LKS_OK;
}

/* A reduction of 100 elements whose borders are overwritten at once. */
static lks_status start_into(struct rank *r, float scale, bool zero, size_t at, lks_work **work_p)
{
    void *own, *common;
    LKS__TRY(lks_comm_alloc(r->comm, LKS_MEM_OWN, 400, &own));
    LKS__TRY(lks_comm_alloc(r->comm, LKS_MEM_COMMON, 1000, &common));
    size_t *start = calloc(2, sizeof *start);
    start[1] = 100;
    lks_part part = {{0, lks_comm_rank(r->comm)}, own};
    lks_reduction reduction = {.n_leaves = lks_comm_world_size(r->comm),
                               .parts = &part,
                               .n_parts = 1,
                               .scale = scale,
                               .scatter = zero,
                               .count = 100,
                               .block_start = start,
                               .n_blocks = 1,
                               .block_sumsq = (double *)common + 60,
                               .dst = (float *)common + at};
    lks_status st = lks_comm_reduce_start(r->comm, &reduction, work_p);
    memset(start, 0xff, 2 * sizeof *start);
    free(start);
    return st;
}

static lks_status start_reduction(struct rank *r, float scale, bool zero, lks_work **work_p)
{
    return start_into(r, scale, zero, 0, work_p);
}

static lks_status gone_in_flight(struct rank *r, bool first)
{
    lks_work *work;
    LKS__TRY(start_reduction(r, 1, false, &work));
    if (!first)
        return lks_work_wait(work);
    soon();
    close_comm(r);
    return LKS_OK;
}

static lks_status others_gone_in_flight(struct rank *r, bool first)
{
    return gone_in_flight(r, !first);
}

static lks_status all_gone_in_flight(struct rank *r, bool first)
{
    lks_work *work;
    LKS__TRY(start_reduction(r, 1, false, &work));
    soon(); /* all have started it */
    close_comm(r);
    return LKS_OK;
}

static lks_status other_scale(struct rank *r, bool first)
{
    lks_work *work;
    LKS__TRY(start_reduction(r, first ? 1 : 2, false, &work));
    lks_status st = lks_work_wait(work);
    return lks_work_wait(work) == LKS_ERR_ARG && st == LKS_ERR_ARG ? lks_comm_barrier(r->comm)
                                                                   : LKS_ERR_DIVERGED;
}

static lks_status other_output(struct rank *r, bool first)
{
    lks_work *work;
    LKS__TRY(start_into(r, 1, false, first ? 0 : 8, &work));
    return lks_work_wait(work);
}

static lks_status other_root(struct rank *r, bool first)
{
    LKS__TRY(lks_comm_broadcast(r->comm, r->value, 4000, LKS_UINT8, first ? 0 : 1));
    return lks_comm_barrier(r->comm); /* a rank on the root's own host may have all it needs */
}

static lks_status other_size(struct rank *r, bool first)
{
    char all[4000];
    return lks_comm_all_gather(r->comm, r->value, all, first ? 8 : 9, LKS_UINT8);
}

static lks_status other_kind(struct rank *r, bool first)
{
    void *mem;
    return lks_comm_alloc(r->comm, first ? LKS_MEM_OWN : LKS_MEM_COMMON, 100, &mem);
}

/* Two pieces of common memory of the same size: ranks pass different ones. */
static lks_status other_memory(struct rank *r, bool first)
{
    void *a, *b;
    LKS__TRY(lks_comm_alloc(r->comm, LKS_MEM_COMMON, 100, &a));
    LKS__TRY(lks_comm_alloc(r->comm, LKS_MEM_COMMON, 100, &b));
    return lks_comm_replicate(r->comm, first ? a : b, 100);
}

static lks_status other_shares(struct rank *r, bool first)
{
    void *mem;
    const size_t start[] = {0, 50, 100};
    LKS__TRY(lks_comm_alloc(r->comm, LKS_MEM_LAZY, 100, &mem));
    return lks_comm_gather_shares(r->comm, mem, start, 2, !first);
}

static lks_status other_call(struct rank *r, bool first)
{
    return first ? lks_comm_barrier(r->comm)
                 : lks_comm_all_reduce(r->comm, r->value[0], 1, LKS_FLOAT32, LKS_SUM);
}

static lks_status other_type(struct rank *r, bool first)
{
    lks_dtype dtype = first ? LKS_FLOAT32 : LKS_INT32; /* the same number of bytes */
    return lks_comm_all_reduce(r->comm, r->value[0], 300, dtype, LKS_SUM);
}

static lks_status other_op(struct rank *r, bool first)
{
    return lks_comm_all_reduce(r->comm, r->value[0], 2, LKS_INT64, first ? LKS_MIN : LKS_MAX);
}

static lks_status other_count(struct rank *r, bool first)
{
    return lks_comm_all_reduce(r->comm, r->value[0], first ? 2500 : 2499, LKS_FLOAT64, LKS_MIN);
}

static lks_status other_type_sent(struct rank *r, bool first)
{
    lks_dtype dtype = first ? LKS_FLOAT64 : LKS_INT64;
    LKS__TRY(lks_comm_broadcast(r->comm, r->value[0], 10, dtype, 0));
    return lks_comm_barrier(r->comm);
}

static lks_status other_type_gathered(struct rank *r, bool first)
{
    lks_dtype dtype = first ? LKS_BFLOAT16 : LKS_FLOAT16;
    return lks_comm_all_gather(r->comm, r->value[1], r->value[0], 10, dtype);
}

static lks_status other_scatter(struct rank *r, bool first)
{
    return lks_comm_reduce_scatter(r->comm, r->value[0], r->value[1], first ? 3 : 4, LKS_INT32,
                                   LKS_SUM);
}

static lks_status other_scatter_type(struct rank *r, bool first)
{
    return lks_comm_reduce_scatter(r->comm, r->value[0], r->value[1], 3,
                                   first ? LKS_INT32 : LKS_FLOAT32, LKS_SUM);
}

static lks_status other_scatter_op(struct rank *r, bool first)
{
    return lks_comm_reduce_scatter(r->comm, r->value[0], r->value[1], 3, LKS_INT32,
                                   first ? LKS_PROD : LKS_MIN);
}

static lks_status gather_v(struct rank *r, size_t one, size_t two, lks_dtype dtype)
{
    size_t counts[8] = {one, two};
    return lks_comm_all_gather_v(r->comm, r->value[1], r->value[0], counts, dtype);
}

static lks_status other_counts(struct rank *r, bool first)
{
    return gather_v(r, first ? 1 : 2, first ? 2 : 1, LKS_FLOAT32);
}

static lks_status other_counts_type(struct rank *r, bool first)
{
    return gather_v(r, 1, 2, first ? LKS_FLOAT32 : LKS_UINT64);
}

static lks_status started_or_barrier(struct rank *r, bool first)
{
    lks_work *work;
    if (!first)
        return lks_comm_barrier(r->comm);
    LKS__TRY(lks_comm_all_reduce_start(r->comm, r->value[0], 2, LKS_INT64, LKS_SUM, &work));
    return lks_work_wait(work);
}

static lks_status scatter_or_gather(struct rank *r, bool first)
{
    return first ? other_scatter(r, true) : gather_v(r, 1, 2, LKS_BOOL);
}

/* One rank's elements would fit into memory's addresses, and all ranks' don't. */
static lks_status gathers_too_much(struct rank *r, bool first)
{
    return lks_comm_all_gather(r->comm, r->value[1], r->value[0],
                               ((size_t)1 << 57) / sizeof(double), LKS_FLOAT64);
}

/* --- messages name the step ------------------------------------------------------------------- */

static lks_status steps_apart(struct rank *r, bool first)
{
    lks_comm_note(r->comm, first ? 7 : 8, first ? "evaluation" : NULL);
    return first ? lks_comm_barrier(r->comm)
                 : lks_comm_all_reduce(r->comm, r->value[0], 3, LKS_INT64, LKS_MAX);
}

static lks_status gone_in_step(struct rank *r, bool first)
{
    lks_comm_note(r->comm, 41, NULL);
    LKS__TRY(lks_comm_barrier(r->comm));
    lks_comm_note(r->comm, 42, NULL);
    if (!first)
        return lks_comm_barrier(r->comm);
    soon();
    close_comm(r);
    return LKS_OK;
}

static lks_status aborted_in_step(struct rank *r, bool first)
{
    lks_comm_note(r->comm, 5, NULL);
    if (first)
        lks_comm_abort(r->comm, "the disk is full");
    return lks_comm_barrier(r->comm);
}

/* The program notes nothing, so lks_ddp's count is named. */
static lks_status ddp_counts(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    for (int i = 0; i < (first ? 3 : 2); i++)
        LKS__TRY(whole_step(r, r->ddp));
    return lks_comm_barrier(r->comm);
}

/* All buckets are in flight on both ranks, so the calls meet at an operation inside the step. */
static lks_status barrier_for_step(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    LKS__TRY(backward(r, r->ddp));
    return first ? lks_comm_barrier(r->comm) : lks_ddp_step(r->ddp, NULL);
}

static lks_status too_many_ranks(struct rank *r, bool first)
{
    r->options.virtual_ranks = 1;
    return open_ddp(r);
}

/* Rank 0's parameter has moments for which no machine has memory; nothing reads its addresses. */
static lks_status optimizer_memory(struct rank *r, bool first)
{
    const size_t most = (size_t)1 << 50;
    lks_optimizer_param p = {"w", r->value[0], r->grad[0], LKS_PARAM_VECTOR, N, 1};
    lks_optimizer *o;
    if (first) {
        p.value = (float *)most;
        p.grad = (float *)(most << 8);
        p.rows = most;
    }
    return lks_optimizer_open(r->comm, LKS_ADAMW, &p, 1, &o);
}

/* The program's own step is named, and lks_ddp's count isn't. */
static lks_status program_counts(struct rank *r, bool first)
{
    lks_comm_note(r->comm, first ? 70 : 71, "mine");
    LKS__TRY(open_ddp(r));
    for (int i = 0; i < (first ? 3 : 2); i++)
        LKS__TRY(whole_step(r, r->ddp));
    return lks_comm_barrier(r->comm);
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* Rank 0's folder; those of other ranks aren't used. */
static const char *folder(struct rank *r, bool first)
{
    snprintf(r->dir, sizeof r->dir, "%s/lockstep-test-XXXXXX",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    return first ? mkdtemp(r->dir) : "/nowhere/at/all";
}

static lks_status remove_folder(struct rank *r, bool first, lks_status st)
{
    char cause[sizeof r->said], command[sizeof r->dir + 32];
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    snprintf(command, sizeof command, "rm -rf '%s'", r->dir);
    if (first && system(command) != 0)
        return LKS_ERR_IO;
    return st == LKS_OK ? st : lks__fail(st, "%s", cause);
}

static lks_status load_saved(struct rank *r, const char *dir, bool first)
{
    uint64_t step = 0;
    bool found = false;
    const lks_tensor state[] = {{"a", LKS_FLOAT32, 2, {2, N / 2}, r->value[0]},
                                {"b", LKS_INT64, 1, {N / 2}, r->value[1]}};
    LKS__TRY(lks_checkpoint_load(r->comm, dir, state, 2, &step, &found));
    if (found)
        return lks__fail(LKS_ERR_DIVERGED, "something is in a new folder");
    for (int i = 0; i < N; i++)
        r->value[0][i] = first ? (float)i : -1, r->value[1][i] = first ? 2 : 3;
    LKS__TRY(lks_checkpoint_save(r->comm, dir, 12, state, 2, 1));
    memset(r->value, 0x55, sizeof r->value);
    LKS__TRY(lks_checkpoint_load(r->comm, dir, state, 2, &step, &found));
    for (int i = 0; i < N; i++)
        if (!found || step != 12 || r->value[0][i] != (float)i || r->value[1][i] != 2)
            return lks__fail(LKS_ERR_DIVERGED, "loaded %g at %d", (double)r->value[0][i], i);
    return LKS_OK;
}

static lks_status saved_and_loaded(struct rank *r, bool first)
{
    lks_status st = load_saved(r, folder(r, first), first);
    return remove_folder(r, first, st);
}

static lks_status disk_of_rank_0(struct rank *r, bool first)
{
    const lks_tensor state = {"a", LKS_FLOAT32, 1, {N}, r->value[0]};
    lks_status st = lks_checkpoint_save(r->comm, first ? "/dev/null/a" : "/tmp", 1, &state, 1, 0);
    return lks_comm_barrier(r->comm) == LKS_OK ? st : LKS_ERR_DIVERGED;
}

/* Only rank 1 needs a checkpoint. */
static lks_status found_by_one(struct rank *r, bool first)
{
    bool found;
    const lks_tensor state = {"a", LKS_FLOAT32, 1, {N}, r->value[0]};
    return lks_checkpoint_load(r->comm, "/nonexistent/lks", &state, 1, NULL,
                               lks_comm_rank(r->comm) == 1 ? NULL : &found);
}

/* Rank 0 lists the checkpoint, the others ask for its text. The first rank that notices tells the
 * others, so a third rank may get ERR_PEER. */
static lks_status other_reading(struct rank *r, bool first)
{
    lks_tensor *list;
    char *text;
    size_t n;
    lks_status st = first ? lks_checkpoint_list(r->comm, "/nonexistent/lks", &list, &n, NULL)
                          : lks_checkpoint_json(r->comm, "/nonexistent/lks", &text, NULL);
    LKS__THEN(st, lks_comm_barrier(r->comm));
    return st == LKS_ERR_PEER && !first ? LKS_ERR_ARG : st;
}

static lks_status other_tensor(struct rank *r, bool first)
{
    const lks_tensor state = {"a", first ? LKS_FLOAT32 : LKS_INT32, 1, {N}, r->value[0]};
    lks_status st = lks_checkpoint_save(r->comm, "/dev/null/a", 1, &state, 1, 0);
    return lks_comm_barrier(r->comm) == LKS_OK ? st : LKS_ERR_PEER;
}

static lks_status aborted(struct rank *r, bool first)
{
    if (first) {
        soon();
        lks_comm_abort(r->comm, NULL);
        lks_comm_abort(r->comm, "the second reason");
    }
    return lks_comm_barrier(r->comm);
}

/* --- a rank without memory -------------------------------------------------------------------- */

/* In a call of all ranks one allocation of one rank fails, each in turn. The others, which may have
 * begun the call, don't wait for that rank until the deadline, and learn the reason. */

static _Thread_local int left; /* allocations of this thread until one fails; 0: none does */
static _Thread_local int n_allocs;

static bool fails(void)
{
    n_allocs++;
    if (left == 0 || --left > 0)
        return false;
    errno = ENOMEM;
    return true;
}

__typeof__(malloc) __real_malloc, __wrap_malloc;
void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

__typeof__(calloc) __real_calloc, __wrap_calloc;
void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

__typeof__(realloc) __real_realloc, __wrap_realloc;
void *__wrap_realloc(void *p, size_t bytes)
{
    return fails() ? NULL : __real_realloc(p, bytes);
}

__typeof__(aligned_alloc) __real_aligned_alloc, __wrap_aligned_alloc;
void *__wrap_aligned_alloc(size_t unit, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(unit, bytes);
}

__typeof__(strdup) __real_strdup, __wrap_strdup;
char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static void begin_failing(const struct rank *r)
{
    n_allocs = 0;
    left = r->fails_at;
}

/* The rest of the row has memory. */
static lks_status end_failing(struct rank *r, lks_status st)
{
    left = 0;
    r->n_allocs = n_allocs;
    return st;
}

#define FAILING(r, call) (begin_failing(r), end_failing(r, (call)))

/* Over Gloo: a rank runs out of memory while a part opens, first rank 1, then one of another host.
 * The others learn the reason from the part or from the whole group. */
static lks_status parts_without(struct rank *r, bool first)
{
    const lks_comm_options gloo = {"gloo", TIMEOUT_S};
    const int rank = lks_comm_rank(r->comm), W = lks_comm_world_size(r->comm);
    if (strcmp(lks_comm_backend(r->comm), "gloo") != 0)
        return LKS_OK; /* the engine of threads has no parts */
    for (int poor = 1; poor < W; poor++) {
        int32_t more = 1;
        for (int n = 1; more != 0; n++) {
            lks_comm *part;
            const double start = lks__sys_now();
            r->fails_at = rank == poor ? n : 0;
            lks_status st = FAILING(r, lks_comm_split(r->comm, 0, 0, &part));
            more = r->n_allocs >= n;
            /* On a machine that stalls, the reason may come too late: thread.c's NOTICED_S. */
            const bool late = st == LKS_ERR_PEER && lks__sys_now() - start > 2;
            if (st != LKS_OK && !late && strstr(lks_last_error(), "memory") == NULL)
                return lks__fail_in(LKS_ERR_DIVERGED, "allocation %d of rank %d", n, poor);
            lks_comm_close(part);
            if (lks_comm_broadcast(r->comm, &more, 1, LKS_INT32, poor) == LKS_OK)
                continue;
            more = 1;
            lks_comm_close(r->comm);
            LKS__TRY(lks_comm_open(&r->place.world, &gloo, &r->comm));
        }
    }
    return LKS_OK;
}

/* --- the table -------------------------------------------------------------------------------- */

#define DISAGREE "all ranks must start the same operations with the same sizes in the same order"

#define ROW(call, status, others_status, says, theirs)                                             \
    {                                                                                              \
        .name = #call, .run = call, .first = status, .others = others_status, .first_says = says,  \
        .others_say = theirs                                                                       \
    }
/* All ranks succeed; all get the same; the calls don't match, and rank 0's sentence shows them. */
#define FINE(call)              ROW(call, LKS_OK, LKS_OK, "", "")
#define ALL(call, status, says) ROW(call, status, status, says, says)
#define DIFFER(call, says)      ROW(call, LKS_ERR_ARG, LKS_ERR_ARG, says, DISAGREE)

static const struct row rows[] = {
    ALL(other_order, LKS_ERR_DIVERGED,
        "number 0 is weight with 5000 elements on rank 1, and in with 7 elements on rank 0"),
    ALL(other_options, LKS_ERR_DIVERGED, "virtual_ranks: 16 on rank 1, and 8 on rank 0"),
    ALL(other_wire, LKS_ERR_DIVERGED, "wire: 1 on rank 1, and 0 on rank 0"),
    ALL(other_weight, LKS_ERR_DIVERGED, "weight: 0.5 on rank 1, and 4 on rank 0"),
    ALL(other_stores, LKS_ERR_DIVERGED, "overwrites: 0 on rank 1, and 1 on rank 0"),
    FINE(narrow_wire),
    ROW(other_buckets, LKS_ERR_DIVERGED, LKS_ERR_DIVERGED, "bytes of a bucket",
        "bytes of a bucket: 104 on rank 1, and 26214400 on rank 0"),
    DIFFER(opened_by_one, "rank 0 called lks_ddp_open, rank 1 called lks_comm_barrier;"),
    ROW(bad_list_of_one, LKS_ERR_PEER, LKS_ERR_ARG, "left the group",
        "lks_ddp_open: parameter 0: its value is NULL"),
    FINE(all_give_up),
    FINE(all_give_up_often),
    ALL(one_gives_up, LKS_ERR_ARG, DISAGREE),
    ALL(one_gives_up_late, LKS_ERR_ARG, DISAGREE),
    ROW(one_leaves, LKS_OK, LKS_ERR_PEER, "", "the group"),
    ROW(others_leave, LKS_ERR_PEER, LKS_OK, "the group", ""),
    ROW(group_goes_first, LKS_ERR_ARG, LKS_ERR_PEER,
        "lks_ddp_accumulate: its group was closed already", "the group"),
    ALL(after_failure, LKS_ERR_PEER, "rank 0 failed at step 7, phase backward: the data is torn"),
    ROW(fails_in_backward, LKS_ERR_PEER, LKS_ERR_PEER,
        "lks_ddp_step: a step of this lks_ddp failed before", "and lks_ddp_close() is due: rank 0"),
    FINE(two_of_them),
    ROW(two_crossed, LKS_ERR_ARG, LKS_ERR_ARG,
        "rank 0 called lks_ddp_step of lks_ddp number 1 at step 0, rank 1 called lks_ddp_step of "
        "lks_ddp number 2",
        "rank 0 called lks_ddp_step of lks_ddp number 1"),
    ROW(models_crossed, LKS_ERR_ARG, LKS_ERR_ARG,
        "rank 0 called lks_ddp_broadcast of lks_ddp number 1, rank 1 called lks_ddp_broadcast of "
        "lks_ddp number 2;",
        "rank 0 called lks_ddp_broadcast of lks_ddp number 1"),
    ROW(optimizers_crossed, LKS_ERR_ARG, LKS_ERR_ARG,
        "rank 0 called lks_optimizer_state of lks_optimizer number 1, rank 1 called "
        "lks_optimizer_state of lks_optimizer number 2;",
        "rank 0 called lks_optimizer_state of lks_optimizer number 1"),
    ROW(state_and_step, LKS_ERR_ARG, LKS_ERR_ARG,
        "rank 0 called lks_optimizer_step, rank 1 called lks_optimizer_state;",
        "rank 0 called lks_optimizer_step"),
    ALL(one_step_more, LKS_ERR_ARG, DISAGREE),
    ALL(too_much_weight, LKS_ERR_ARG, "add up to inf"),
    ROW(gone_at_barrier, LKS_OK, LKS_ERR_PEER, "", "left the group"),
    ROW(others_gone_at_sum, LKS_ERR_PEER, LKS_OK, "left the group", ""),
    ROW(gone_in_flight, LKS_OK, LKS_ERR_PEER, "", "the group"),
    ROW(others_gone_in_flight, LKS_ERR_PEER, LKS_OK, "the group", ""),
    FINE(all_gone_in_flight),
    ALL(other_scale, LKS_ERR_ARG, DISAGREE),
    DIFFER(other_output, "lks_comm_reduce_start of 100 elements"),
    DIFFER(other_root, "4000 bytes from rank 1"),
    DIFFER(other_size, "all_gather of"),
    DIFFER(other_kind, "100 bytes of common memory"),
    DIFFER(other_memory, "replicate of 100 bytes"),
    DIFFER(other_shares, "gather_shares of 100"),
    DIFFER(other_call, "rank 1 called lks_comm_all_reduce of 1 float32 el"),
    DIFFER(other_type, "rank 0 called lks_comm_all_reduce of 300 float32 elements by sum, rank 1 "
                       "called lks_comm_all_reduce of 300 int32 elements by sum"),
    DIFFER(other_op, "rank 0 called lks_comm_all_reduce of 2 int64 elements by min, rank 1 called "
                     "lks_comm_all_reduce of 2 int64 elements by max"),
    DIFFER(other_count, "rank 0 called lks_comm_all_reduce of 2500 float64 elements by min, rank 1 "
                        "called lks_comm_all_reduce of 2499"),
    DIFFER(other_type_sent, "rank 0 called lks_comm_broadcast of 10 float64 elements from rank 0, "
                            "rank 1 called lks_comm_broadcast of 10 int64"),
    DIFFER(other_type_gathered, "rank 0 called lks_comm_all_gather of 10 bfloat16 elements, rank 1 "
                                "called lks_comm_all_gather of 10 float16"),
    DIFFER(other_scatter, "rank 0 called lks_comm_reduce_scatter of 3 int32 elements by sum, rank "
                          "1 called lks_comm_reduce_scatter of 4 int32 elements by sum"),
    DIFFER(other_scatter_type, "lks_comm_reduce_scatter of 3 int32 elements by sum, rank 1 called "
                               "lks_comm_reduce_scatter of 3 float32"),
    DIFFER(other_scatter_op,
           "elements by product, rank 1 called lks_comm_reduce_scatter of 3 int32 elements by min"),
    DIFFER(other_counts,
           "rank 0 called lks_comm_all_gather_v of 3 float32 elements with counts[0] = 1, rank 1 "
           "called lks_comm_all_gather_v of 3 float32 elements with counts[0] = 2;"),
    DIFFER(other_counts_type, "rank 1 called lks_comm_all_gather_v of 3 uint64 elements;"),
    DIFFER(started_or_barrier, "rank 0 called lks_comm_all_reduce_start of 2 int64 elements by "
                               "sum, rank 1 called lks_comm_barrier"),
    DIFFER(scatter_or_gather, "rank 0 called lks_comm_reduce_scatter of 3 int32 elements by sum, "
                              "rank 1 called lks_comm_all_gather_v of 3 bool elements"),
    ALL(gathers_too_much, LKS_ERR_ARG, "are more than memory can address"),
    DIFFER(steps_apart, "rank 0 called lks_comm_barrier at step 7, rank 1 called "
                        "lks_comm_all_reduce of 3 int64 elements by max at step 8;"),
    ROW(gone_in_step, LKS_OK, LKS_ERR_PEER, "", "barrier at step 42"),
    ALL(aborted_in_step, LKS_ERR_PEER, "rank 0 failed at step 5: the disk is full"),
    DIFFER(ddp_counts,
           "rank 0 called lks_ddp_step at step 2, rank 1 called lks_comm_barrier at step 2;"),
    DIFFER(barrier_for_step,
           "rank 0 called lks_comm_barrier at step 0, rank 1 called lks_ddp_step at step 0;"),
    ROW(too_many_ranks, LKS_ERR_ARG, LKS_ERR_ARG, "1 virtual rank for the ",
        "or use a group of at most 1 rank"),
    ALL(optimizer_memory, LKS_ERR_NOMEM, "lks_optimizer_open: rank 0: no memory for "),
    ALL(program_counts, LKS_ERR_ARG, " at step 70, rank 1 called lks_comm_barrier at step 71;"),
    FINE(saved_and_loaded),
    ALL(disk_of_rank_0, LKS_ERR_IO,
        "lks_checkpoint_save: rank 0: checkpoint ckpt-00000001 is not saved"),
    ALL(found_by_one, LKS_ERR_IO, "lks_checkpoint_load: rank 0: "),
    ALL(other_reading, LKS_ERR_ARG,
        "rank 0 called lks_checkpoint_list, rank 1 called lks_checkpoint_json;"),
    ALL(other_tensor, LKS_ERR_DIVERGED,
        "number 0 is a int32 [5000] on rank 1, and a float32 [5000] on rank 0"),
    FINE(parts_without),
    ALL(aborted, LKS_ERR_PEER, "rank 0 failed: no reason was given"),
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Print a rank's status and sentence if they differ from the row's. */
static bool as_expected(const struct rank *r, bool first)
{
    lks_status want = first ? r->row->first : r->row->others;
    const char *text = first ? r->row->first_says : r->row->others_say;
    if (r->status == want && (want == LKS_OK || strstr(r->said, text) != NULL))
        return true;
    fprintf(stderr, "%s, rank %s: status %d (%s), wanted %d with: %s\n", r->row->name,
            first ? "0" : "of the others", r->status, r->said, want, text);
    return false;
}

static void play(struct rank *r, bool first)
{
    r->status = r->row->run(r, first);
    snprintf(r->said, sizeof r->said, "%s", r->status != LKS_OK ? lks_last_error() : "");
    lks_ddp_close(r->ddp);
    r->ddp = NULL;
}

/* --- ranks as threads ------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct rank *r = arg;
    if (r->comm == NULL)
        r->status = fake_open(&r->place, TIMEOUT_S, &r->comm);
    /* So that no rank meets the misuse while it opens its group, or another one's end instead. */
    pthread_barrier_wait(r->played);
    if (r->comm != NULL)
        play(r, r->place.world.rank == 0);
    pthread_barrier_wait(r->played);
    lks_comm_close(r->comm);
    return NULL;
}

static struct rank ranks[FAKE_MAX_RANKS];

/* "12": hosts with one and two ranks; NULL: two ranks without an engine. An allocation of rank
 * `poor` may fail. Returns the number of ranks. */
static int play_all(const struct row *row, const char *hosts, int poor, int fails_at)
{
    struct fake_rank places[FAKE_MAX_RANKS] = {{{0, 2, 0, 2}, NULL}, {{1, 2, 1, 2}, NULL}};
    lks_comm *comms[2] = {NULL, NULL};
    pthread_barrier_t played;
    int W = hosts != NULL ? fake_ranks(hosts, places) : 2;
    memset(ranks, 0, sizeof ranks);
    pthread_barrier_init(&played, NULL, (unsigned)W);
    if (hosts == NULL)
        assert_ok(lks__comm_open_threads(W, TIMEOUT_S, comms));
    ranks[poor].fails_at = fails_at;
    for (int i = 0; i < W; i++) {
        ranks[i].row = row;
        ranks[i].played = &played;
        ranks[i].place = places[i];
        ranks[i].comm = hosts == NULL ? comms[i] : NULL;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, thread_main, &ranks[i]), 0);
    }
    for (int i = 0; i < W; i++)
        pthread_join(ranks[i].thread, NULL);
    pthread_barrier_destroy(&played);
    return W;
}

static void run_row(const struct row *row, const char *hosts)
{
    double start = lks__sys_now();
    const int W = play_all(row, hosts, 0, 0);
    bool ok = true;
    for (int i = 0; i < W; i++)
        ok = as_expected(&ranks[i], i == 0) && ok;
    double seconds = lks__sys_now() - start;
    if (!ok || seconds > MOST_S * lks_test_patience())
        fail_msg("%s over hosts %s, %.1f s", row->name, hosts != NULL ? hosts : "2", seconds);
}

TEST(test_one_host)
{
    for (int i = 0; i < N_ROWS; i++)
        run_row(&rows[i], NULL);
}

TEST(test_hosts)
{
    static const char *const divisions[] = {"2", "12", "21"};
    for (int i = 0; i < N_ROWS; i++)
        for (size_t d = 0; d < sizeof divisions / sizeof divisions[0]; d++)
            run_row(&rows[i], divisions[d]);
}

static lks_status open_without(struct rank *r, bool first)
{
    return FAILING(r, open_ddp(r));
}

static lks_status step_without(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    return FAILING(r, whole_step(r, r->ddp));
}

static lks_status verify_without(struct rank *r, bool first)
{
    LKS__TRY(open_ddp(r));
    return FAILING(r, lks_ddp_verify(r->ddp));
}

static lks_status optimize_without(struct rank *r, bool first)
{
    lks_optimizer_param p = {"w", r->value[0], r->grad[0], LKS_PARAM_MATRIX, N / 50, 50};
    lks_optimizer *o = NULL;
    lks_status st = FAILING(r, lks_optimizer_open(r->comm, LKS_MUON, &p, 1, &o));
    lks_optimizer_close(o);
    return st;
}

static lks_status start_sum(struct rank *r)
{
    lks_work *work;
    int64_t numbers[2] = {1, 2};
    LKS__TRY(lks_comm_all_reduce_start(r->comm, numbers, 2, LKS_INT64, LKS_SUM, &work));
    return lks_work_wait(work);
}

static lks_status start_without(struct rank *r, bool first)
{
    return FAILING(r, start_sum(r));
}

static lks_status sum_without(struct rank *r, bool first)
{
    return FAILING(r, lks_comm_all_reduce(r->comm, r->value[0], N, LKS_FLOAT32, LKS_SUM));
}

static lks_status combine_without(struct rank *r, bool first)
{
    return FAILING(r, lks_comm_all_reduce(r->comm, r->value[0], N, LKS_FLOAT32, LKS_MAX));
}

static lks_status gather_without(struct rank *r, bool first)
{
    int32_t all[FAKE_MAX_RANKS], mine = 1;
    return FAILING(r, lks_comm_all_gather(r->comm, &mine, all, 1, LKS_INT32));
}

static lks_status split_without(struct rank *r, bool first)
{
    lks_comm *part = NULL;
    lks_status st = FAILING(r, lks_comm_split(r->comm, 0, 0, &part));
    lks_comm_close(part);
    return st;
}

static lks_status save(struct rank *r, const char *dir)
{
    const lks_tensor common = {"a", LKS_FLOAT32, 1, {N}, r->value[0]};
    const lks_tensor own = {"b", LKS_FLOAT32, 1, {N}, r->value[1]};
    const lks_checkpoint_more more = {.per_rank = &own, .n_per_rank = 1, .json = "{}"};
    return lks_checkpoint_save_more(r->comm, dir, 1, &common, 1, &more, 0);
}

static lks_status load(struct rank *r, const char *dir)
{
    const lks_tensor common = {"a", LKS_FLOAT32, 1, {N}, r->value[0]};
    const lks_tensor own = {"b", LKS_FLOAT32, 1, {N}, r->value[1]};
    const lks_checkpoint_more more = {.per_rank = &own, .n_per_rank = 1};
    return lks_checkpoint_load_more(r->comm, dir, &common, 1, &more, NULL, NULL);
}

/* Rank 0's folder for a group of W ranks, in which save_without() leaves a checkpoint for
 * load_without(). */
static const char *kept[FAKE_MAX_RANKS + 1];

static lks_status save_without(struct rank *r, bool first)
{
    return FAILING(r, save(r, kept[lks_comm_world_size(r->comm)]));
}

static lks_status load_without(struct rank *r, bool first)
{
    return FAILING(r, load(r, kept[lks_comm_world_size(r->comm)]));
}

static const struct row calls[] = {
    FINE(open_without),  FINE(step_without), FINE(verify_without),  FINE(optimize_without),
    FINE(start_without), FINE(sum_without),  FINE(combine_without), FINE(gather_without),
    FINE(split_without), FINE(save_without), FINE(load_without),
};

/* The call ends well, or all have the failure of the rank `poor`. */
static void check_told(const struct row *call, const char *hosts, int W, int poor)
{
    char rank[16];
    snprintf(rank, sizeof rank, "rank %d", poor);
    for (int i = 0; i < W; i++) {
        const struct rank *r = &ranks[i];
        const bool failed = r->status == LKS_ERR_NOMEM || r->status == LKS_ERR_PEER;
        if (ranks[poor].status == LKS_OK ? r->status == LKS_OK
                                         : failed && strstr(r->said, "memory") != NULL &&
                                               (i == poor || strstr(r->said, rank) != NULL))
            continue;
        fail_msg("%s over hosts %s, allocation %d of rank %d fails: rank %d has %d (%s)",
                 call->name, hosts != NULL ? hosts : "2", ranks[poor].fails_at, poor, i, r->status,
                 r->said);
    }
}

static void fail_each(const struct row *call, const char *hosts, int poor)
{
    int n = 0;
    do
        check_told(call, hosts, play_all(call, hosts, poor, ++n), poor);
    while (ranks[poor].n_allocs >= n);
}

TEST(test_no_memory)
{
    kept[2] = lks_test_folder_in_memory();
    kept[3] = lks_test_folder_in_memory();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_each(&calls[i], NULL, 1);
        if (calls[i].run != split_without) /* the engine of threads has no parts */
            fail_each(&calls[i], "12", 0);
    }
}

/* --- ranks as processes, over an engine ------------------------------------------------------- */

static const char *engine;

/* `--rank NAME`: the exit code is 0 if this rank got the status and sentence in the table. */
static int be_rank(const char *name)
{
    static struct rank r;
    lks_comm_options o = {engine, TIMEOUT_S};
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            r.row = &rows[i];
    if (r.row == NULL || lks_world_from_env(&r.place.world) != LKS_OK ||
        lks_comm_open(&r.place.world, &o, &r.comm) != LKS_OK) {
        fprintf(stderr, "%s: can't open the group: %s\n", name, lks_last_error());
        return 1;
    }
    bool first = r.place.world.rank == 0;
    (void)lks_comm_barrier(r.comm); /* so that no misuse hits a rank that is still opening */
    play(&r, first);
    if (r.status != LKS_OK) /* other ranks may be about to get the same */
        soon();
    lks_comm_close(r.comm);
    return as_expected(&r, first) ? 0 : 1;
}

TEST(test_engine)
{
    for (int i = 0; i < N_ROWS; i++) {
        const char *const args[] = {"/proc/self/exe", engine, "--rank", rows[i].name, NULL};
        double start = lks__sys_now();
        int code = hosts_run(engine, "21", args);
        double seconds = lks__sys_now() - start;
        const bool limited = rows[i].run != parts_without; /* many splits: each names its failure */
        if (code != 0 || (limited && seconds > MOST_S * lks_test_patience()))
            fail_msg("%s over %s: exit code %d, %.1f s", rows[i].name, engine, code, seconds);
    }
}

int main(int argc, char **argv)
{
    engine = argc > 1 ? argv[1] : NULL;
    if (argc == 4 && strcmp(argv[2], "--rank") == 0)
        return be_rank(argv[3]);
    if (engine != NULL)
        hosts_need(engine);
    lks_test_part(engine != NULL, "test_engine");
    return lks_test_run_all(NULL, NULL);
}
