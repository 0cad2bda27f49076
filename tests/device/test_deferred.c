/* The deferred device itself: its promises, what it doesn't promise, and errors that end the
 * process. */
#include "support.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compute/cpu/layers.h"
#include "compute/mirror.h"
#include "deferred.h"

enum { N = 1000, SEEDS = 24 };

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};
static lks__device *dev;

static void open_seed(unsigned seed)
{
    assert_ok(deferred_open(&ex, seed, &dev));
}

static float *device_floats(size_t n)
{
    void *p;
    assert_ok(dev->ops->alloc(dev, n * sizeof(float), &p));
    assert_int_equal((uintptr_t)p % 64, 0);
    return p;
}

static float *staging_floats(size_t n)
{
    void *p;
    assert_ok(dev->ops->alloc_staging(dev, n * sizeof(float), &p));
    assert_int_equal((uintptr_t)p % 64, 0);
    return p;
}

static void free_floats(float *device, float *staging)
{
    dev->ops->release(dev, device, N * sizeof(float));
    dev->ops->release_staging(dev, staging, N * sizeof(float));
}

static void copy(lks__queue queue, float *dst, const float *src)
{
    dev->ops->copy(dev, queue, dst, src, N * sizeof(float));
}

static void fill(float *x, float value)
{
    for (int i = 0; i < N; i++)
        x[i] = value;
}

static void assert_all(const float *x, float value)
{
    for (int i = 0; i < N; i++)
        if (x[i] != value)
            fail_msg("element %d is %g, not %g", i, (double)x[i], (double)value);
}

/* x = 1; x = 3x + 1 over and over: any other order gives another number. */
TEST(test_queue_keeps_order)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        float *x = device_floats(N), *y = device_floats(N), *host = staging_floats(N);
        float want = 1.0f;
        fill(host, 1.0f);
        copy(LKS__QUEUE_COMPUTE, x, host);
        copy(LKS__QUEUE_COMPUTE, y, host);
        for (int i = 0; i < 8; i++) {
            float *t = device_floats(N);
            dev->layers->accumulate(dev->ex, t, x, N);
            dev->layers->accumulate(dev->ex, x, t, N);
            dev->layers->accumulate(dev->ex, x, t, N);
            dev->layers->accumulate(dev->ex, x, y, N);
            want = 3.0f * want + 1.0f;
            assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
            dev->ops->release(dev, t, N * sizeof(float));
        }
        copy(LKS__QUEUE_COMPUTE, host, x);
        assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
        assert_all(host, want);
        dev->ops->release(dev, y, N * sizeof(float));
        free_floats(x, host);
        lks__device_close(dev);
    }
}

/* What a copy reads on one queue while the other queue clears it: 1, or 0. */
static float raced(unsigned seed, bool ordered)
{
    open_seed(seed);
    float *x = device_floats(N), *ones = staging_floats(N), *host = staging_floats(N);
    fill(ones, 1.0f);
    copy(LKS__QUEUE_COMPUTE, x, ones);
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
    dev->layers->clear(dev->ex, x, N);
    if (ordered)
        lks__device_order(dev, LKS__QUEUE_COMPUTE, LKS__QUEUE_COPY);
    copy(LKS__QUEUE_COPY, host, x);
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COPY));
    float got = host[0];
    assert_all(host, got);
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
    dev->ops->release_staging(dev, ones, N * sizeof(float));
    free_floats(x, host);
    lks__device_close(dev);
    return got;
}

TEST(test_follow)
{
    for (unsigned seed = 0; seed < SEEDS; seed++)
        assert_true(raced(seed, true) == 0.0f);
}

TEST(test_no_follow)
{
    int n[2] = {0, 0};
    for (unsigned seed = 0; seed < SEEDS; seed++)
        n[(int)raced(seed, false)]++;
    assert_true(n[0] > SEEDS / 6 && n[1] > SEEDS / 6);
    for (unsigned seed = 0; seed < DEFERRED_ORDERS; seed++) /* a seed gives one order */
        assert_true(raced(seed, false) == raced(seed, false));
}

/* A follow delays what comes after it, and nothing before it; work after the mark isn't needed. */
TEST(test_follow_holds_the_rest)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        float *x = device_floats(N), *host = staging_floats(N), *ones = staging_floats(N);
        fill(ones, 1.0f);
        copy(LKS__QUEUE_COMPUTE, x, ones);
        lks__mark before = dev->ops->mark(dev, LKS__QUEUE_COMPUTE);
        copy(LKS__QUEUE_COPY, host, x); /* zeros or ones */
        lks__mark early = dev->ops->mark(dev, LKS__QUEUE_COPY);
        dev->ops->follow(dev, LKS__QUEUE_COPY, before);
        copy(LKS__QUEUE_COPY, host, x);
        lks__mark late = dev->ops->mark(dev, LKS__QUEUE_COPY);
        assert_true(late.number > early.number && early.number > 0);
        assert_ok(lks__device_wait(dev, early));
        assert_ok(lks__device_wait(dev, late));
        assert_all(host, 1.0f);
        assert_ok(lks__device_wait(dev, before)); /* passed long ago */
        assert_ok(lks__device_wait(dev, (lks__mark){LKS__QUEUE_COPY, 0}));
        dev->ops->release_staging(dev, ones, N * sizeof(float));
        free_floats(x, host);
        lks__device_close(dev);
    }
}

/* A poll answers "not yet" at times, although it returns at once, and never takes back a
 * "passed". */
TEST(test_polls)
{
    int refused = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        bool passed = false;
        open_seed(seed);
        float *x = device_floats(N);
        dev->layers->clear(dev->ex, x, N);
        lks__mark mark = dev->ops->mark(dev, LKS__QUEUE_COMPUTE);
        for (int i = 0; !passed; i++) {
            assert_true(i < 10);
            assert_ok(dev->ops->passed(dev, mark, &passed));
            refused += !passed;
        }
        for (int i = 0; i < 10; i++) {
            assert_ok(dev->ops->passed(dev, mark, &passed));
            assert_true(passed);
        }
        assert_int_equal(deferred_count(), 1);
        dev->ops->release(dev, x, N * sizeof(float));
        lks__device_close(dev);
    }
    assert_in_range(refused, SEEDS / 4, 4 * SEEDS);
}

static int n_progress;
static void count_progress(void *ctx)
{
    n_progress++;
}
static lks_status group_failed(void *ctx, bool others)
{
    return lks__fail(LKS_ERR_PEER, "rank 7 failed");
}

static int n_polls;
static lks_status never_passed(lks__device *device, lks__mark mark, bool *passed_p)
{
    n_polls++;
    *passed_p = false;
    return LKS_OK;
}

/* A device that finishes nothing is given up once. Later waits fail at once. */
TEST(test_wait_gives_up)
{
    open_seed(1);
    const struct lks__device_ops *ops = dev->ops;
    struct lks__device_ops hanging = *ops;
    hanging.passed = never_passed;
    dev->ops = &hanging;
    dev->waiter = (lks__waiter){.timeout_s = 0.01};
    assert_fails(LKS_ERR_TIMEOUT, lks__device_finish(dev, LKS__QUEUE_COPY), "finished nothing for");
    assert_true(n_polls > 1);
    n_polls = 0;
    assert_fails(LKS_ERR_TIMEOUT, lks__device_finish(dev, LKS__QUEUE_COPY), "hangs");
    assert_int_equal(n_polls, 0);
    dev->ops = ops;
    dev->hung = false;
    lks__device_close(dev);
}

/* A wait counts as one heartbeat, and ends with the group's failure if the mark isn't passed. */
TEST(test_wait_tells)
{
    int failed = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        dev->waiter = (lks__waiter){.progress = count_progress};
        n_progress = 0;
        assert_ok(lks__device_finish(dev, LKS__QUEUE_COPY));
        assert_int_equal(n_progress, 1);
        dev->waiter.failure = group_failed;
        lks_status st = lks__device_finish(dev, LKS__QUEUE_COPY);
        assert_true(st == LKS_OK || st == LKS_ERR_PEER);
        assert_int_equal(n_progress, st == LKS_OK ? 2 : 1);
        failed += st == LKS_ERR_PEER;
        lks__device_close(dev);
    }
    assert_in_range(failed, 1, SEEDS - 1);
}

/* The group's failure doesn't end a drain, so memory can be released after it. */
TEST(test_drain)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        dev->waiter.failure = group_failed;
        float *x = device_floats(N), *host = staging_floats(N);
        dev->layers->clear(dev->ex, x, N);
        copy(LKS__QUEUE_COPY, host, x);
        lks__device_drain(dev);
        assert_true(dev->waiter.failure == group_failed);
        assert_all(host, 0.0f);
        free_floats(x, host);
        lks__device_close(dev);
    }
}

/* Until a wait, the destination of a copy is NaN in late orders; in early ones it may be
 * complete. */
TEST(test_staging_holds_poison)
{
    int poisoned = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        float *x = device_floats(N), *host = staging_floats(N);
        fill(host, 5.0f);
        copy(LKS__QUEUE_COPY, host, x);
        assert_true(isnan(host[0]) || host[0] == 0.0f);
        assert_true(seed % DEFERRED_ORDERS != DEFERRED_LATE || isnan(host[N - 1]));
        assert_true(seed % DEFERRED_ORDERS != DEFERRED_COPY_FIRST || host[0] == 0.0f);
        poisoned += isnan(host[0]) != 0;
        assert_ok(lks__device_finish(dev, LKS__QUEUE_COPY));
        assert_all(host, 0.0f);
        free_floats(x, host);
        lks__device_close(dev);
    }
    assert_in_range(poisoned, SEEDS / 4, SEEDS * 3 / 4);
}

/* Operations write the same as the CPU's; structs may be gone when they run. */
static void enqueue_linear(const lks__layers *layers, const lks__exec *e, float *y, float *out,
                           const float *x)
{
    lks__dropout drop = {0};
    lks__epilogue epilogue = {
        .kind = LKS__EPILOGUE_GELU, .bias = x, .out = lks__acts(out), .drop = NULL};
    layers->linear_fwd(e, lks__acts(y), 20, lks__acts(x), x + 100, 10, 20, 10, &epilogue);
    epilogue = (lks__epilogue){.kind = LKS__EPILOGUE_RESIDUAL, .in = lks__acts(x), .drop = &drop};
    drop.threshold = 1u << 31;
    drop.scale = 2.0f;
    layers->linear_fwd(e, lks__acts(out + 200), 20, lks__acts(x), x + 100, 10, 20, 10, &epilogue);
    memset(&drop, 0xff, sizeof drop);
    memset(&epilogue, 0xff, sizeof epilogue);
}

/* The same of lists: of `y`, which is four arenas of 150, a full list of pieces of one element, and
 * a matrix. */
static void enqueue_updates(const lks__layers *layers, const lks__exec *e, float *y, float *work)
{
    enum { ARENA = 150 };
    lks__blend blend = {.a = 0.5f, .b = 0.25f, .n_pieces = LKS__UPDATE_PIECES};
    lks__adamw_list adamw = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-3, .t = 1, .clip = 1};
    lks__muon_list muon = {.lr = 0.1, .momentum = 0.9, .clip = 1.0, .ns_steps = 2, .n_pieces = 1};
    for (int i = 0; i < LKS__UPDATE_PIECES; i++) {
        blend.piece[i].y = y + i;
        blend.piece[i].x = y + 3 * ARENA + i;
        blend.piece[i].n = 1;
        adamw.piece[i].params = y + i;
        adamw.piece[i].exp_avg = y + ARENA + i;
        adamw.piece[i].exp_avg_sq = y + 2 * ARENA + i;
        adamw.piece[i].grads = y + 3 * ARENA + i;
        adamw.piece[i].n = 1;
    }
    adamw.n_pieces = LKS__UPDATE_PIECES;
    muon.work = work;
    muon.work_bytes = layers->update_muon_bytes(e, 8, 6);
    muon.piece[0].rows = 8;
    muon.piece[0].cols = 6;
    muon.piece[0].params = y + 96;
    muon.piece[0].momentum = y + ARENA + 96;
    muon.piece[0].grads = y + 3 * ARENA + 96;
    layers->update_blend(e, &blend);
    layers->update_adamw(e, &adamw);
    layers->update_muon(e, &muon);
    memset(&blend, 0xff, sizeof blend);
    memset(&adamw, 0xff, sizeof adamw);
    memset(&muon, 0xff, sizeof muon);
}

TEST(test_updates)
{
    float *start = calloc(N, sizeof *start), *want = calloc(N, sizeof *want);
    const size_t work_bytes = lks__layers_cpu.update_muon_bytes(&ex, 8, 6);
    void *work = aligned_alloc(64, (work_bytes + 63) / 64 * 64);
    assert_true(N >= 4 * 150);
    for (int i = 0; i < N; i++)
        want[i] = start[i] = 1.0f + sinf((float)i);
    enqueue_updates(&lks__layers_cpu, &ex, want, work);
    assert_true(want[0] != start[0] && want[100] != start[100]);
    free(work);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        lks__mirror m;
        assert_ok(dev->ops->alloc(dev, work_bytes, &work));
        assert_ok(lks__mirror_open(dev, N * sizeof *start, &m));
        memcpy(m.host, start, N * sizeof *start);
        lks__mirror_to_device(&m, LKS__QUEUE_COMPUTE, 0, N * sizeof *start);
        enqueue_updates(dev->layers, dev->ex, m.dev, work);
        lks__mirror_to_host(&m, LKS__QUEUE_COMPUTE, 0, N * sizeof *start);
        assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
        assert_memory_equal(m.host, want, N * sizeof *start);
        lks__mirror_close(&m);
        dev->ops->release(dev, work, work_bytes);
        lks__device_close(dev);
    }
    lks_test_free(start, want);
}

TEST(test_operations)
{
    float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y), *out = calloc(N, sizeof *out);
    for (int i = 0; i < N; i++)
        x[i] = sinf((float)i);
    enqueue_linear(&lks__layers_cpu, &ex, y, out, x);
    assert_true(out[399] != 0.0f);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_seed(seed);
        lks__mirror m[3];
        const float *want[] = {x, y, out};
        for (int i = 0; i < 3; i++)
            assert_ok(lks__mirror_open(dev, N * sizeof *x, &m[i]));
        assert_ptr_not_equal(m[0].host, m[0].dev);
        memcpy(m[0].host, x, N * sizeof *x);
        lks__mirror_to_device(&m[0], LKS__QUEUE_COMPUTE, 0, N * sizeof *x);
        enqueue_linear(dev->layers, dev->ex, m[1].dev, m[2].dev, m[0].dev);
        for (int i = 0; i < 3; i++)
            lks__mirror_to_host(&m[i], LKS__QUEUE_COMPUTE, 0, N * sizeof *x);
        assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(m[i].host, want[i], N * sizeof *x);
            lks__mirror_close(&m[i]);
        }
        assert_int_equal(deferred_count(), 6);
        lks__device_close(dev);
    }
    lks_test_free(x, y, out);
}

/* --- errors that end the process -------------------------------------------------------------- */

/* Each runs in a child, with an open device of order LATE. */
static void host_reads(void)
{
    volatile float *x = device_floats(N);
    (void)x[3];
}

static void host_writes(void)
{
    float *x = device_floats(N);
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
    memset(x, 0, 4);
}

static void reads_released(void)
{
    volatile float *x = device_floats(N);
    dev->ops->release(dev, (float *)x, N * sizeof *x);
    (void)x[0];
}

static void uses_released(void)
{
    float *x = device_floats(N);
    dev->ops->release(dev, x, N * sizeof *x);
    dev->layers->clear(dev->ex, x, N);
}

static void releases_early(void)
{
    float *x = device_floats(N);
    dev->layers->clear(dev->ex, x, N);
    dev->ops->release(dev, x, N * sizeof *x);
}

static void releases_staging_early(void)
{
    float *x = device_floats(N), *host = staging_floats(N);
    copy(LKS__QUEUE_COPY, x, host);
    dev->ops->release_staging(dev, host, N * sizeof *x);
}

static void overruns(void)
{
    float *x = device_floats(16);
    dev->layers->clear(dev->ex, x, 17);
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COMPUTE));
}

static void copies_too_much(void)
{
    float *x = device_floats(N / 2), *host = staging_floats(N);
    copy(LKS__QUEUE_COPY, host, x);
}

static void reuses_staging(void)
{
    float *x = device_floats(N), *host = staging_floats(N);
    copy(LKS__QUEUE_COPY, x, host);
    host[N - 1] = 1.0f;
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COPY));
}

static void writes_target(void)
{
    float *x = device_floats(N), *host = staging_floats(N);
    copy(LKS__QUEUE_COPY, host, x);
    host[N - 1] = 1.0f;
    assert_ok(lks__device_finish(dev, LKS__QUEUE_COPY));
}

static void passes_host_memory(void)
{
    static float x[N];
    dev->layers->clear(dev->ex, x, N);
}

static void passes_host_memory_in_a_struct(void)
{
    static float bias[N];
    float *x = device_floats(N);
    lks__epilogue epilogue = {.kind = LKS__EPILOGUE_NONE, .bias = bias};
    dev->layers->linear_fwd(dev->ex, lks__acts(x), 10, lks__acts(x + 100), x + 200, 10, 10, 10,
                            &epilogue);
}

static void forgets_to_release(void)
{
    device_floats(N);
    lks__device_close(dev);
}

static void makes_up_a_mark(void)
{
    assert_ok(lks__device_wait(dev, (lks__mark){LKS__QUEUE_COPY, 5}));
}

static void assert_dies(void (*fn)(void), const char *text)
{
    const char *path = lks_test_text("%s/err", lks_test_folder());
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen(path, "w", stderr) == NULL)
            _exit(0);
        signal(SIGABRT, SIG_DFL); /* cmocka's */
        signal(SIGSEGV, SIG_DFL);
        open_seed(DEFERRED_LATE);
        fn();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_contains(lks_test_read(path, NULL), text);
}

TEST(test_deaths)
{
    assert_dies(host_reads, "the host touched 0x");
    assert_dies(host_reads, "byte 12 of device memory 1, 4000 bytes");
    assert_dies(host_writes, "the host touched 0x");
    assert_dies(reads_released, "which has been released");
    assert_dies(uses_released, "clear names device memory 1, which has been released");
    assert_dies(releases_early, "which a queued clear needs");
    assert_dies(releases_staging_early, "staging memory that a queued copy needs");
    assert_dies(overruns, "clear touched 0x");
    assert_dies(copies_too_much, "are not inside device memory 1");
    assert_dies(reuses_staging, "changed while a copy from them was queued");
    assert_dies(writes_target, "changed while a copy to them was queued");
    assert_dies(passes_host_memory, "clear got 0x");
    assert_dies(passes_host_memory_in_a_struct, "linear_fwd got 0x");
    assert_dies(forgets_to_release, "1 blocks of device memory that were not released");
    assert_dies(makes_up_a_mark, "a mark that was not made");
}

int main(void)
{
    lks_test_need_level(&kernels);
    if (lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool) != LKS_OK)
        return 1;
    const int code = lks_test_run_all(NULL, NULL);
    lks__pool_close(ex.pool);
    return code;
}
