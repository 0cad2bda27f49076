/* Rounds of a pool: every task runs once, and none after its round, even if a thread is late. */
#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/pool.h"
#include "support.h"

enum { MOST = 40 };

struct round {
    int number;
    atomic_int *current;
    atomic_int strays; /* tasks that ran in another round than their own */
    int runs[MOST];
    int plain; /* written by one task, read after the round */
    int n_threads;
};

static void one_task(void *ctx, size_t task, int thread)
{
    struct round *r = ctx;
    if (atomic_load(r->current) != r->number || task >= MOST || thread < 0 ||
        thread >= r->n_threads) {
        atomic_fetch_add(&r->strays, 1);
        return;
    }
    r->runs[task]++;
    if (task == 0)
        r->plain = r->number;
    if (r->number % 512 == 0)
        usleep(200); /* long enough for the others to sleep */
}

static void run_rounds(int n_threads, int n_rounds)
{
    lks__pool *pool;
    atomic_int current = 0;
    assert_int_equal(lks__pool_open(n_threads, 0, NULL, &pool), LKS_OK);
    for (int i = 1; i <= n_rounds; i++) {
        struct round r = {.number = i, .current = &current, .n_threads = n_threads};
        size_t n = (size_t)(i * 7 % (MOST + 1));
        atomic_store(&current, i);
        lks__pool_run(pool, n, one_task, &r);
        assert_int_equal(atomic_load(&r.strays), 0);
        for (size_t t = 0; t < MOST; t++)
            assert_int_equal(r.runs[t], t < n);
        assert_int_equal(r.plain, n > 0 ? i : 0);
        memset(&r, 0, sizeof r); /* a task that ran now would be seen */
    }
    lks__pool_close(pool);
}

TEST(test_rounds)
{
    static const int threads[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++)
        run_rounds(threads[i], 4000);
}

/* Pools that are closed before their threads have begun to wait. */
TEST(test_short_lives)
{
    for (int i = 0; i < 50; i++)
        run_rounds(4, i % 3);
}

static void thread_zero(void *ctx, size_t task, int thread)
{
    size_t *sum = ctx;
    assert_int_equal(thread, 0);
    *sum += task + 1;
}

static void count(void *ctx, size_t task, int thread)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

/* Rounds so short that a worker often comes when its round is over, and the next begins at once. */
TEST(test_short_rounds)
{
    lks__pool *pool;
    assert_int_equal(lks__pool_open(2, 0, NULL, &pool), LKS_OK);
    for (int i = 0; i < 500000; i++) {
        atomic_int n = 0;
        size_t sum = 0;
        lks__pool_run(pool, 2, count, &n);
        assert_int_equal(atomic_load(&n), 2);
        lks__pool_run(pool, 1, thread_zero, &sum);
        assert_int_equal(sum, 1);
    }
    lks__pool_close(pool);
}

struct late {
    atomic_int begun, done;
};

/* The caller's thread ends its task once the worker has begun its own, which takes longer. */
static void late_task(void *ctx, size_t task, int thread)
{
    struct late *l = ctx;
    if (thread == 0) {
        for (int i = 0; i < 10000 && atomic_load(&l->begun) == 0; i++)
            usleep(1000);
        return;
    }
    atomic_fetch_add(&l->begun, 1);
    usleep(30000);
    atomic_fetch_add(&l->done, 1);
}

/* A round ends with its last task, whichever thread has it. */
TEST(test_waits)
{
    lks__pool *pool;
    assert_int_equal(lks__pool_open(2, 0, NULL, &pool), LKS_OK);
    for (int i = 0; i < 5; i++) {
        struct late l = {0};
        lks__pool_run(pool, 2, late_task, &l);
        assert_int_equal(atomic_load(&l.begun), 1);
        assert_int_equal(atomic_load(&l.done), 1);
    }
    lks__pool_close(pool);
}

static pthread_t caller;
static atomic_bool released, gave_up;

/* The worker isn't ready for its first round until it is released. */
static void be_late(void)
{
    if (pthread_equal(pthread_self(), caller))
        return;
    for (int i = 0; i < lks_test_tries(2000) && !atomic_load(&released); i++)
        usleep(1000);
    if (!atomic_load(&released))
        atomic_store(&gave_up, true);
}

/* A round doesn't wait for a worker that has no part in it. */
TEST(test_late_worker)
{
    lks__pool *pool;
    caller = pthread_self();
    assert_int_equal(lks__pool_open(2, 0, be_late, &pool), LKS_OK);
    for (int i = 0; i < 5; i++) {
        size_t sum = 0;
        lks__pool_run(pool, 10, thread_zero, &sum);
        assert_int_equal(sum, 55);
    }
    atomic_store(&released, true);
    lks__pool_close(pool);
    assert_false(gave_up);
}

static atomic_int n_inits;

static void count_init(void)
{
    atomic_fetch_add(&n_inits, 1);
}

struct subnormals {
    atomic_int met;       /* threads that have begun a task */
    float half[2], up[2]; /* by thread: a subnormal result, and the product of a subnormal */
};

/* Each thread takes one task: it waits for the other. */
static void subnormal_task(void *ctx, size_t task, int thread)
{
    struct subnormals *f = ctx;
    volatile float least = FLT_MIN, small;
    const uint32_t bits = 1 << 20;
    atomic_fetch_add(&f->met, 1);
    for (int i = 0; i < lks_test_tries(2000) && atomic_load(&f->met) < 2; i++)
        usleep(1000);
    memcpy((void *)&small, &bits, sizeof bits);
    f->half[thread] = least * 0.5f;
    f->up[thread] = small * 0x1p100f;
}

/* Every thread begins with thread_init, and has the same arithmetic: subnormals are kept, even if
 * the thread that opens the pool flushes them. */
TEST(test_thread_state)
{
    lks__pool *pool;
    struct subnormals f = {.half = {1, 1}, .up = {1, 1}};
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flushes results and operands */
#endif
    assert_int_equal(lks__pool_open(2, 0, count_init, &pool), LKS_OK);
    lks__pool_run(pool, 2, subnormal_task, &f);
    lks__pool_close(pool);
    assert_int_equal(atomic_load(&n_inits), 2);
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
    for (int i = 0; i < 2; i++) {
        assert_true(f.half[i] == FLT_MIN / 2);
        assert_true(f.up[i] == 0x1p-29f);
    }
}

/* Scratch memory: each thread has its own, complete and aligned; lks__pool_alone() gives the
 * same. */
TEST(test_scratch)
{
    enum { THREADS = 5 };
    lks__pool *pool;
    assert_int_equal(lks__pool_open(THREADS, 5000, NULL, &pool), LKS_OK);
    const size_t bytes = lks__pool_scratch_bytes(pool);
    assert_true(bytes >= 5000);
    assert_int_equal(lks__pool_threads(pool), THREADS);
    for (int i = 0; i < THREADS; i++)
        memset(lks__pool_scratch(pool, i), 'a' + i, bytes);
    for (int i = 0; i < THREADS; i++) {
        lks__pool *alone = lks__pool_alone(pool, i);
        const char *scratch = lks__pool_scratch(alone, 0);
        assert_int_equal((uintptr_t)scratch % 64, 0);
        assert_int_equal(lks__pool_scratch_bytes(alone), bytes);
        assert_int_equal(lks__pool_threads(alone), 1);
        for (size_t at = 0; at < bytes; at++)
            assert_int_equal(scratch[at], 'a' + i);
        size_t sum = 0;
        lks__pool_run(alone, 10, thread_zero, &sum);
        assert_int_equal(sum, 55);
    }
    lks__pool_close(pool);
}
