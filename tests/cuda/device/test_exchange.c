/* Moves between the devices of ranks, each a process of this program, over the stand-ins of CUDA
 * and NCCL; failures of NCCL's calls, and of the group while ranks wait for each other. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compute/cuda/device.h"
#include "runs.h"

enum { N = 64, ROUNDS = 20, RANKS = 3, SEEDS = 4 };

/* The table's operations that this program has. */
static const lks__layers layers = {.clear = lks__cuda_clear, .accumulate = lks__cuda_accumulate};

extern const lks__nccl_module lks__module_table; /* of nccl.c */

static const lks__nccl_module *load(char *why, size_t why_bytes)
{
    if (getenv("NO_NCCL") == NULL)
        return &lks__module_table;
    snprintf(why, why_bytes, "there is no NCCL");
    return NULL;
}

/* --- a rank ---------------------------------------------------------------------------------- */

static lks__device *device;
static const struct lks__exchange_ops *ops;

static lks_status open_rank(int rank, int n_ranks, const lks__exchange_id *id)
{
    char why[100];
    LKS__TRY(lks__cuda_open(rank, &layers, lks__fail, lks__device_wait, load, &device));
    ops = device->ops->exchange;
    assert_true(ops->can(device, why, sizeof why));
    LKS__TRY(ops->join(device, rank, n_ranks, id));
    device->joined = n_ranks;
    return LKS_OK;
}

static float *floats(size_t n)
{
    void *p;
    assert_ok(device->ops->alloc(device, n * sizeof(float), &p));
    return p;
}

static void give(float *p, size_t n)
{
    device->ops->release(device, p, n * sizeof(float));
}

/* In each round every rank sends a number of its own to each other, by itself and to all at once,
 * and adds up what comes. All of it is queued without a wait, so a step of a round must not begin
 * before the one that it needs. */
static lks_status exchange_rounds(int rank, int n_ranks, float *sum, float *first)
{
    float *mine = floats(N), *add = floats(N), *all = floats(N * RANKS), *in = floats(N * RANKS);
    float ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = (float)(rank + 1);
    device->ops->copy(device, LKS__QUEUE_COMPUTE, add, ones, sizeof ones);
    for (int round = 0; round < ROUNDS; round++) {
        lks__move list[3 * RANKS];
        size_t n = 0;
        device->layers->accumulate(device->ex, mine, add, N); /* (round + 1) (rank + 1) */
        device->layers->clear(device->ex, all + rank * N, N);
        device->layers->accumulate(device->ex, all + rank * N, mine, N);
        lks__device_order(device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
        for (int r = 0; r < n_ranks; r++) {
            list[n++] = (lks__move){LKS__MOVE_SPREAD, r, all + r * N, N * sizeof(float)};
            if (r == rank && n_ranks > 1)
                continue;
            list[n++] = (lks__move){LKS__MOVE_SEND, r, mine, N * sizeof(float)};
            list[n++] = (lks__move){LKS__MOVE_RECEIVE, r, in + r * N, N * sizeof(float)};
        }
        ops->move(device, LKS__QUEUE_COPY, list, n);
        lks__device_order(device, LKS__QUEUE_COPY, LKS__QUEUE_COMPUTE);
        for (int r = 0; r < n_ranks; r++) {
            device->layers->accumulate(device->ex, first, all + r * N, N);
            if (r != rank || n_ranks == 1)
                device->layers->accumulate(device->ex, sum, in + r * N, N);
        }
    }
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    lks__device_drain(device);
    give(mine, N);
    give(add, N);
    give(all, N * RANKS);
    give(in, N * RANKS);
    return st;
}

static lks_status run_rank(int rank, int n_ranks, const lks__exchange_id *id)
{
    float sum[N], all[N];
    lks_status st = open_rank(rank, n_ranks, id);
    if (st != LKS_OK) {
        lks__device_close(device);
        return st;
    }
    float *dev = floats(N), *dev_all = floats(N);
    st = exchange_rounds(rank, n_ranks, dev, dev_all);
    if (st == LKS_OK) {
        device->ops->copy(device, LKS__QUEUE_COMPUTE, sum, dev, sizeof sum);
        device->ops->copy(device, LKS__QUEUE_COMPUTE, all, dev_all, sizeof all);
        st = lks__device_finish(device, LKS__QUEUE_COMPUTE);
    }
    const int rounds = ROUNDS * (ROUNDS + 1) / 2, of_all = n_ranks * (n_ranks + 1) / 2;
    for (int i = 0; i < N && st == LKS_OK; i++) {
        assert_true(all[i] == (float)(rounds * of_all));
        assert_true(sum[i] == (float)(rounds * (n_ranks == 1 ? 1 : of_all - rank - 1)));
    }
    lks__device_drain(device);
    give(dev, N);
    give(dev_all, N);
    lks__device_close(device);
    return st;
}

/* --- ranks as processes ---------------------------------------------------------------------- */

static lks__exchange_id new_id(void)
{
    lks__exchange_id id;
    char why[200];
    assert_true(lks__module_table.id(&id, why, sizeof why));
    return id;
}

typedef lks_status rank_fn(int rank, int n_ranks, const lks__exchange_id *id);

/* All ranks' statuses; a process that was killed has 1. */
static void run_ranks(rank_fn *fn, int n_ranks, int *statuses)
{
    const lks__exchange_id id = new_id();
    pid_t pids[RANKS];
    fflush(NULL);
    for (int r = 0; r < n_ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            setenv("RANK", lks_test_text("%d", r), 1);
            _exit(-(int)fn(r, n_ranks, &id)); /* statuses are negative */
        }
    }
    for (int r = 0; r < n_ranks; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        statuses[r] = WIFEXITED(status) ? -WEXITSTATUS(status) : 1;
    }
}

/* What all ranks exchange is what was sent, on any number of ranks. */
TEST(test_ranks)
{
    int statuses[RANKS];
    for (int n_ranks = 1; n_ranks <= RANKS; n_ranks++) {
        run_ranks(run_rank, n_ranks, statuses);
        for (int r = 0; r < n_ranks; r++)
            assert_int_equal(statuses[r], LKS_OK);
    }
}

/* --- the group's failure --------------------------------------------------------------------- */

static int calls;   /* of the waiter, until the group fails */
static bool blames; /* a call was for other ranks' devices */

static lks_status fails_later(void *ctx, bool others)
{
    blames = blames || others;
    return calls-- > 0 ? LKS_OK : lks__fail(LKS_ERR_PEER, "rank 1 has died");
}

/* Rank 1 ends when both have joined, before its first list. */
static void lose_the_other(int rank, int n_ranks, const lks__exchange_id *id)
{
    const lks_status st = open_rank(rank, n_ranks, id);
    if (st != LKS_OK || rank == 1)
        _exit(-(int)st);
}

/* Rank 1 ends when both have joined and exchanged something. */
static void leave_alone(int rank, int n_ranks, const lks__exchange_id *id)
{
    lks_status st = open_rank(rank, n_ranks, id);
    if (st == LKS_OK) {
        float *x = floats(N);
        ops->move(device, LKS__QUEUE_COPY, &(lks__move){LKS__MOVE_SPREAD, 0, x, N}, 1);
        st = lks__device_finish(device, LKS__QUEUE_COPY);
        give(x, N);
    }
    if (st != LKS_OK || rank == 1)
        _exit(-(int)st);
}

/* Rank 1 has died. Rank 0's wait ends, what is queued ends, and so does a close. Until then rank 0
 * waits for another rank, and not any more when it is alone. */
static lks_status wait_for_the_dead(int rank, int n_ranks, const lks__exchange_id *id)
{
    leave_alone(rank, n_ranks, id);
    float *x = floats(N);
    lks__move list[] = {{LKS__MOVE_RECEIVE, 1, x, N * sizeof(float)}};
    calls = 400;
    device->waiter.failure = fails_later;
    assert_false(ops->waits(device));
    ops->move(device, LKS__QUEUE_COPY, list, 1);
    ops->move(device, LKS__QUEUE_COPY, list, 1);
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COPY);
    assert_true(blames);
    assert_false(ops->waits(device));
    ops->move(device, LKS__QUEUE_COPY, list, 1); /* it does nothing any more */
    lks__device_drain(device);
    give(x, N);
    lks__device_close(device);
    return st;
}

/* Rank 1 is dead, and rank 0's own GPU fails: what waits for rank 1 ends, too. */
static lks_status fail_alone(int rank, int n_ranks, const lks__exchange_id *id)
{
    leave_alone(rank, n_ranks, id);
    float *x = floats(N);
    ops->move(device, LKS__QUEUE_COPY, &(lks__move){LKS__MOVE_RECEIVE, 1, x, N}, 1);
    lks__cuda_check((lks__cuda *)device, cudaErrorLaunchFailure, "cudaOther");
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COPY);
    give(x, N);
    lks__device_close(device);
    return st;
}

/* Rank 1 dies before its first list, which NCCL needs to connect the two: the call that puts rank
 * 0's ends with the group, and blames rank 1. */
static lks_status wait_in_a_call(int rank, int n_ranks, const lks__exchange_id *id)
{
    lose_the_other(rank, n_ranks, id);
    float *x = floats(N);
    calls = 400;
    device->waiter.failure = fails_later;
    ops->move(device, LKS__QUEUE_COPY, &(lks__move){LKS__MOVE_RECEIVE, 1, x, N}, 1);
    assert_true(calls < 0);
    give(x, N);
    lks__device_close(device);
    return LKS_OK;
}

/* Rank 0's own kernel hangs before its list: it blames nobody, in the wait for the list nor in the
 * call that puts the first one. */
static lks_status hang(void)
{
    float *x = floats(N);
    calls = 400;
    device->waiter.failure = fails_later;
    device->layers->clear(device->ex, x, N);
    lks__device_order(device, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    ops->move(device, LKS__QUEUE_COPY, &(lks__move){LKS__MOVE_RECEIVE, 1, x, N}, 1);
    const bool waits = ops->waits(device);
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COPY);
    _exit(waits || blames ? 1 : -(int)st); /* the kernel needs all of it */
}

static lks_status hang_alone(int rank, int n_ranks, const lks__exchange_id *id)
{
    setenv("CUDA_STANDIN_HANG", "kernel:1", 1);
    leave_alone(rank, n_ranks, id);
    return hang();
}

static lks_status hang_in_a_call(int rank, int n_ranks, const lks__exchange_id *id)
{
    setenv("CUDA_STANDIN_HANG", "kernel:1", 1);
    lose_the_other(rank, n_ranks, id);
    return hang();
}

/* Rank 1 is dead, the group doesn't notice, and NCCL does. */
static lks_status learn(void)
{
    float *x = floats(N);
    ops->move(device, LKS__QUEUE_COPY, &(lks__move){LKS__MOVE_RECEIVE, 1, x, N}, 1);
    const lks_status st = lks__device_finish(device, LKS__QUEUE_COPY);
    assert_contains(lks_last_error(), "NCCL failed: remote process exited");
    give(x, N);
    lks__device_close(device);
    return st;
}

/* In the call for the first list, … */
static lks_status learn_in_a_call(int rank, int n_ranks, const lks__exchange_id *id)
{
    setenv("CUDA_STANDIN_FAIL", "asynchronous:60", 1);
    lose_the_other(rank, n_ranks, id);
    return learn();
}

/* … and when all has long been queued. */
static lks_status learn_in_a_wait(int rank, int n_ranks, const lks__exchange_id *id)
{
    setenv("CUDA_STANDIN_FAIL", "asynchronous:2000", 1);
    leave_alone(rank, n_ranks, id);
    return learn();
}

/* Nobody else joins. */
static lks_status join_alone(int rank, int n_ranks, const lks__exchange_id *id)
{
    char why[100];
    assert_ok(lks__cuda_open(rank, &layers, lks__fail, lks__device_wait, load, &device));
    assert_true(device->ops->exchange->can(device, why, sizeof why));
    calls = 100;
    device->waiter.failure = fails_later;
    const lks_status st = device->ops->exchange->join(device, rank, n_ranks + 1, id);
    assert_true(blames);
    lks__device_close(device);
    return st;
}

TEST(test_group_fails)
{
    int statuses[RANKS];
    run_ranks(wait_for_the_dead, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_PEER);
    assert_int_equal(statuses[1], LKS_OK);
    run_ranks(wait_in_a_call, 2, statuses);
    assert_int_equal(statuses[0], LKS_OK);
    run_ranks(hang_alone, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_PEER);
    run_ranks(hang_in_a_call, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_PEER);
    run_ranks(fail_alone, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_DEVICE);
    run_ranks(learn_in_a_call, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_DEVICE);
    run_ranks(learn_in_a_wait, 2, statuses);
    assert_int_equal(statuses[0], LKS_ERR_DEVICE);
    run_ranks(join_alone, 1, statuses);
    assert_int_equal(statuses[0], LKS_ERR_PEER);
}

/* --- failures of NCCL ------------------------------------------------------------------------ */

/* Each call of a run, its first and its third time: an error that names call and GPU. */
TEST(test_each_call_fails)
{
    static const char *const names[] = {"ncclGetUniqueId",
                                        "ncclCommInitRankConfig",
                                        "ncclCommGetAsyncError",
                                        "ncclGroupStart",
                                        "ncclSend",
                                        "ncclRecv",
                                        "ncclBroadcast",
                                        "ncclGroupEnd",
                                        "asynchronous"};
    char says[RUNS_SAYS];
    assert_int_equal(runs_use("CUDA_STANDIN_FAIL=none:1", says), LKS_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int k = 1; k <= 3; k += 2) {
            const bool once = i < 2, at_all = k == 1 || !once;
            const char *named = i == 8 ? "NCCL failed: remote process" : names[i];
            const lks_status st =
                runs_use(lks_test_text("CUDA_STANDIN_FAIL=%s:%d", names[i], k), says);
            if (st != (at_all ? LKS_ERR_DEVICE : LKS_OK))
                fail_msg("%s, time %d: status %d, \"%s\"", names[i], k, (int)st, says);
            if (at_all && (strstr(says, named) == NULL ||
                           (i > 0 && strstr(says, "on GPU 0 (Stand-in); NCCL_DEBUG=INFO") == NULL)))
                fail_msg("%s, time %d: \"%s\"", names[i], k, says);
        }
    /* The work is done, and leaving at once does no harm. */
    assert_int_equal(runs_use("CUDA_STANDIN_FAIL=ncclCommFinalize:1", says), LKS_OK);
}

TEST(test_no_module)
{
    char why[100];
    setenv("NO_NCCL", "1", 1);
    assert_ok(lks__cuda_open(0, &layers, lks__fail, lks__device_wait, load, &device));
    assert_false(device->ops->exchange->can(device, why, sizeof why));
    assert_string_equal(why, "there is no NCCL");
    lks__device_close(device);
    unsetenv("NO_NCCL");
}

static lks_status use(void)
{
    lks__exchange_id id;
    char why[100];
    lks__device *asked;
    LKS__TRY(lks__cuda_open(0, &layers, lks__fail, lks__device_wait, load, &asked));
    assert_true(asked->ops->exchange->can(asked, why, sizeof why));
    asked->ops->exchange->about(asked, why, sizeof why);
    assert_string_equal(why, "NCCL 2.28.9");
    const lks_status st = asked->ops->exchange->id(asked, &id);
    lks__device_close(asked);
    return st == LKS_OK ? run_rank(0, 1, &id) : st;
}

/* All tests, for each order of the stand-ins. */
int main(int argc, char **argv)
{
    setenv("CUDA_STANDIN_NCCL",
           argc > 1 && getenv("CUDA_STANDIN_NCCL") != NULL ? getenv("CUDA_STANDIN_NCCL")
                                                           : lks_test_folder_in_memory(),
           1);
    if (argc > 1 && strcmp(argv[1], "use") == 0) {
        runs_print(use());
        return 0;
    }
    if (argc == 1)
        return runs_of_seeds(argv[0], SEEDS);
    return lks_test_run_all(NULL, NULL);
}
