/* The suite with ranks as threads of one process, so that sanitizers see all of them. */
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/memory.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/ranks.h"
#include "comm/shm/shm.h"
#include "comm/suite.h"

struct rank {
    int number, of;
    bool (*body)(lks_comm *comm);
    bool ok;
};

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->ok = lks_comm_rank(comm) == r->number && lks_comm_world_size(comm) == r->of && r->body(comm);
}

static void run_ranks(int n, double timeout_s, bool (*body)(lks_comm *comm))
{
    struct rank ranks[RANKS_MAX_THREADS];
    for (int r = 0; r < n; r++)
        ranks[r] = (struct rank){.number = r, .of = n, .body = body};
    ranks_as_threads(n, timeout_s, rank_main, ranks, sizeof *ranks);
    for (int r = 0; r < n; r++)
        assert_true(ranks[r].ok);
}

#ifdef TEST_SHORT /* up to 4 ranks, and more, sum in different ways */
static const int worlds[] = {2, 5};
static const int thorough = 0;
#else
static const int worlds[] = {1, 2, 3, 4, 5, 8};
static const int thorough = 4;
#endif

static bool collectives(lks_comm *comm)
{
    return suite_collectives(comm, lks_comm_world_size(comm) <= thorough);
}

TEST(test_collectives)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        run_ranks(worlds[i], 60, collectives);
}

TEST(test_types)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        run_ranks(worlds[i], 60, suite_types);
        run_ranks(worlds[i], 60, suite_scatter);
    }
}

TEST(test_reductions)
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        run_ranks(worlds[i], 60, suite_reductions);
}

/* The same sums with the table's kernels and threads give the same bits. */
static bool with_pool(lks_comm *comm)
{
    lks__kernels k = {.sum_scaled = lks__sum_scaled_plain};
    lks__exec exec = {.k = &k};
    CHECK(lks__pool_open(3, 0, NULL, &exec.pool) == LKS_OK);
    lks__comm_use(comm, &exec);
    bool ok = suite_reductions(comm);
    lks__pool_close(exec.pool);
    return ok;
}

TEST(test_with_pool)
{
    run_ranks(2, 60, with_pool);
}

/* --- calls that don't match --------------------------------------------------------------- */

static bool other_kind(lks_comm *comm)
{
    char byte = 0;
    lks_status st = lks_comm_rank(comm) == 1 ? lks_comm_broadcast(comm, &byte, 1, LKS_UINT8, 0)
                                             : lks_comm_barrier(comm);
    return suite_mismatch(comm, st, "barrier",
                          "rank 1 called lks_comm_broadcast of 1 bytes from rank 0");
}

static bool other_memory(lks_comm *comm)
{
    void *mem = NULL;
    const lks_mem kind = lks_comm_rank(comm) == 0 ? LKS_MEM_OWN : LKS_MEM_COMMON;
    lks_status st = lks_comm_alloc(comm, kind, 1000, &mem);
    CHECK(mem == NULL);
    return suite_mismatch(comm, st, "1000 bytes of own", "1000 bytes of common");
}

/* The step at which a rank was is named. */
static bool at_step(lks_comm *comm)
{
    char byte = 0;
    lks_comm_note(comm, 41 + (uint64_t)lks_comm_rank(comm), "forward");
    lks_status st = lks_comm_rank(comm) == 1 ? lks_comm_broadcast(comm, &byte, 1, LKS_UINT8, 0)
                                             : lks_comm_barrier(comm);
    return suite_mismatch(comm, st, "rank 0 called lks_comm_barrier at step 41",
                          "from rank 0 at step 42");
}

TEST(test_mismatches)
{
    run_ranks(2, 20, other_kind);
    run_ranks(2, 20, other_memory);
    run_ranks(2, 20, at_step);
    for (int i = 0; suite_others[i] != NULL; i++)
        run_ranks(2, 20, suite_others[i]);
    for (int i = 0; suite_halves[i] != NULL; i++)
        run_ranks(2, 20, suite_halves[i]);
}

/* Rank 1 publishes a descriptor that no rank of this program can have: it must be checked before
 * any of it is used as an address. */
static struct lie {
    uint64_t shift; /* of the part's offset in the segment, in bytes */
    int32_t level, index;
    uint32_t n_parts;
    const char *found;
} lie;
static atomic_bool lied;

static bool lying_descriptor(lks_comm *comm)
{
    int rank = lks_comm_rank(comm);
    struct suite_sum s;
    lks_work *work;
    CHECK(suite_sum(comm, 100, &s));
    while (rank == 0 && !atomic_load(&lied))
        usleep(100);
    CHECK(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    if (rank == 1) {
        const struct lks__shm *g = comm->state;
        struct lks__shm_descriptor *desc =
            lks__segment_descriptor(g->segment, 1, (uint32_t)(g->seq - 1));
        struct lks__shm_part *told = (struct lks__shm_part *)desc->payload;
        told->offset += lie.shift;
        told->level = lie.level;
        told->index = lie.index;
        desc->n_parts = lie.n_parts;
        atomic_store(&lied, true);
    }
    return suite_mismatch(comm, lks_work_wait(work), "rank 1 gave parts that", lie.found);
}

TEST(test_lying_descriptor)
{
    static const char no[] = "are no nodes or not in its memory";
    static const struct lie lies[] = {
        {2, 0, 1, 1, no},                        /* not aligned for floats */
        {1, 0, 1, 1, no},                        /* also not aligned */
        {LKS__SHM_UNIT - 396, 0, 1, 1, no},      /* ends beyond the slice */
        {-(uint64_t)LKS__SHM_UNIT, 0, 1, 1, no}, /* rank 0's slice */
        {LKS__SHM_UNIT, 0, 1, 1, no},            /* common memory */
        {UINT64_MAX / 2 + 1, 0, 1, 1, no},       /* beyond everything */
        {0, 1, 1, 1, no},                        /* level and index of no node */
        {0, -1, 1, 1, no},
        {0, 0, 2, 1, no},
        {0, 0, INT32_MIN, 1, no},
        {0, 0, 1, 35, "are more than any rank can have"},
        {0, 0, 1, UINT32_MAX, "are more than any rank can have"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        lie = lies[i];
        atomic_store(&lied, false);
        run_ranks(2, 20, lying_descriptor);
    }
}

/* Wrong arguments are found before anything is sent, so the group stays usable. */
static bool wrong_arguments(lks_comm *comm)
{
    float x = 0;
    double sq = 0;
    void *mem;
    lks_work *work = NULL;
    size_t start[] = {0, 3, 2, 4};
    lks_part part = {{0, lks_comm_rank(comm)}, &x};
    lks_reduction r = {.n_leaves = 2,
                       .parts = &part,
                       .n_parts = 1,
                       .scale = 1,
                       .count = 4,
                       .block_start = start,
                       .n_blocks = 3,
                       .block_sumsq = &sq,
                       .dst = &x};
    CHECK(lks_comm_broadcast(comm, &x, 4, LKS_UINT8, 2) == LKS_ERR_ARG);
    CHECK(lks_comm_broadcast(comm, &x, 4, LKS_UINT8, -1) == LKS_ERR_ARG);
    CHECK(lks_comm_broadcast(comm, NULL, 4, LKS_UINT8, 0) == LKS_ERR_ARG);
    CHECK(lks_comm_all_gather(comm, &x, NULL, 4, LKS_UINT8) == LKS_ERR_ARG);
    CHECK(lks_comm_all_reduce(comm, NULL, 4, LKS_FLOAT32, LKS_SUM) == LKS_ERR_ARG);
    CHECK(lks_comm_alloc(comm, 7, 4, &mem) == LKS_ERR_ARG);
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, SIZE_MAX, &mem) == LKS_ERR_NOMEM);
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_ERR_ARG); /* borders decrease */
    start[1] = 1;
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_ERR_ARG); /* not shared memory */
    CHECK(strstr(lks_last_error(), "dst") != NULL);
    r.n_leaves = 0;
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_ERR_ARG);
    r.n_leaves = 2;
    part.node.index = 2;
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_ERR_ARG);
    CHECK(work == NULL);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    return true;
}

TEST(test_wrong_arguments)
{
    run_ranks(2, 20, wrong_arguments);
}

/* --- waits end ---------------------------------------------------------------------------- */

static bool one_is_late(lks_comm *comm)
{
    lks_comm_note(comm, 12, "back\x1bward");
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1) {
        usleep((unsigned)(0.9e6 * lks_test_patience()));
        CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT); /* too late: the group has failed */
        return true;
    }
    double start = lks__sys_now();
    CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    CHECK(lks__sys_now() - start < 0.8 * lks_test_patience());
    const char *text = lks_last_error();
    CHECK(strstr(text, "barrier") != NULL && strstr(text, "rank 1 (pid ") != NULL);
    CHECK(strstr(text, "step 12") != NULL && strstr(text, "back?ward") != NULL);
    CHECK(strstr(text, "rank 0") == NULL);
    return true;
}

/* A rank with heartbeats is never late, however long it takes. */
static bool one_is_busy(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    for (int i = 0; i < lks_test_tries(8) && lks_comm_rank(comm) == 1; i++) {
        usleep(100 * 1000);
        lks_comm_beat(comm);
    }
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    return true;
}

static bool one_gives_up(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1) {
        lks_comm_note(comm, 3, "data");
        lks_comm_abort(comm, "the shard is torn");
    }
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(strstr(lks_last_error(), "rank 1 failed at step 3, phase data: the shard is torn"));
    return true;
}

/* Eight of those that are missing are named. */
static bool most_are_late(lks_comm *comm)
{
    const struct lks__shm *g = comm->state;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    while (lks_comm_rank(comm) > 0 && !lks__segment_aborted(g->segment))
        usleep(1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    CHECK(strstr(lks_last_error(), "from rank 1 (") != NULL);
    CHECK(strstr(lks_last_error(), ", rank 8 (") != NULL);
    CHECK(strstr(lks_last_error(), ") and others") != NULL);
    CHECK(strstr(lks_last_error(), "rank 9 (") == NULL);
    return true;
}

TEST(test_waits_end)
{
    run_ranks(11, 0.3 * lks_test_patience(), most_are_late);
    run_ranks(3, 0.4 * lks_test_patience(), one_is_late);
    run_ranks(2, 0.4 * lks_test_patience(), one_is_busy);
    run_ranks(4, 20, one_gives_up);
}

/* More than the machine has, of which a host uses only a share: pages are taken when they are
 * written. */
static size_t lazy_bytes;

static bool lazy_memory(lks_comm *comm)
{
    const size_t bytes = lazy_bytes;
    char *mem;
    CHECK(lks_comm_alloc(comm, LKS_MEM_LAZY, bytes, (void **)&mem) == LKS_OK);
    if (lks_comm_rank(comm) == 0)
        mem[bytes - 1] = 'x';
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(mem[0] == 0 && mem[bytes - 1] == 'x');
    return true;
}

TEST(test_lazy_memory)
{
    lazy_bytes = (size_t)lks__memory_available() / 2 * 3;
    run_ranks(2, 20, lazy_memory);
}

static void *close_rank(void *arg)
{
    usleep(100 * 1000);
    lks_comm_close(arg);
    return NULL;
}

TEST(test_one_leaves)
{
    lks_comm *comms[2];
    pthread_t leaver;
    assert_int_equal(lks__comm_open_threads(2, 20, comms), LKS_OK);
    assert_int_equal(pthread_create(&leaver, NULL, close_rank, comms[1]), 0);
    assert_fails(LKS_ERR_PEER, lks_comm_barrier(comms[0]), "rank 1", "left the group");
    pthread_join(leaver, NULL);
    lks_comm_close(comms[0]);
}

/* Time inside lks_work_wait() is counted; reading it resets it. */
static bool wait_time(lks_comm *comm)
{
    int rank = lks_comm_rank(comm);
    struct suite_sum sum;
    lks_work *work;
    CHECK(suite_sum(comm, 100, &sum));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(lks_comm_take_wait_s(comm) == 0);
    if (rank == 1)
        usleep(100 * 1000);
    CHECK(lks_comm_reduce_start(comm, &sum.r, &work) == LKS_OK);
    CHECK(lks_work_wait(work) == LKS_OK);
    double s = lks_comm_take_wait_s(comm);
    CHECK(s >= 0 && (rank == 1 || s > 0.05)); /* rank 0 waited while rank 1 slept */
    CHECK(lks_comm_take_wait_s(comm) == 0);
    return true;
}

TEST(test_wait_time)
{
    run_ranks(2, 20, wait_time);
}

/* More reductions than may be in flight: the oldest end first, and none is lost. */
static bool many_in_flight(lks_comm *comm)
{
    enum { MANY = LKS__SHM_IN_FLIGHT + 6, EACH = 16 };
    static const size_t start[] = {0, EACH};
    lks_work *works[MANY];
    void *own, *common, *squares;
    const int rank = lks_comm_rank(comm);
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, MANY * EACH * sizeof(float), &own) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, MANY * EACH * sizeof(float), &common) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, MANY * sizeof(double), &squares) == LKS_OK);
    for (int i = 0; i < MANY; i++) {
        float *buf = (float *)own + (size_t)i * EACH;
        for (int e = 0; e < EACH; e++)
            buf[e] = (float)(i + rank);
        lks_part part = {{0, rank}, buf};
        lks_reduction r = {.n_leaves = 2,
                           .parts = &part,
                           .n_parts = 1,
                           .scale = 1,
                           .count = EACH,
                           .block_start = start,
                           .n_blocks = 1,
                           .block_sumsq = (double *)squares + i,
                           .dst = (float *)common + (size_t)i * EACH};
        CHECK(lks_comm_reduce_start(comm, &r, &works[i]) == LKS_OK);
    }
    for (int i = 0; i < MANY; i++) {
        CHECK(lks_work_wait(works[i]) == LKS_OK);
        for (int e = 0; e < EACH; e++)
            CHECK(((const float *)common)[i * EACH + e] == (float)(2 * i + 1));
        CHECK(((const double *)squares)[i] == EACH * (2.0 * i + 1) * (2.0 * i + 1));
    }
    return true;
}

TEST(test_many_in_flight)
{
    run_ranks(2, 20, many_in_flight);
}

/* --- the segment -------------------------------------------------------------------------- */

/* The first signal counts, but none after a failure; and saves are told apart. */
TEST(test_segment_flags)
{
    lks__segment *s;
    assert_ok(lks__segment_create(2, &s));
    lks__segment_ask_stop(s, SIGTERM);
    lks__segment_ask_stop(s, SIGINT);
    assert_int_equal(lks__segment_asked_stop(s), SIGTERM);
    assert_false(lks__segment_saving(s, true));
    lks__segment_saves_elsewhere(s, true);
    assert_true(lks__segment_saving(s, true));
    assert_false(lks__segment_saving(s, false));
    lks__segment_close(s);
    for (int given_up = 0; given_up < 2; given_up++) {
        assert_ok(lks__segment_create(2, &s));
        lks__segment_abort(s, given_up ? LKS_ERR_STOPPED : LKS_ERR_PEER, 1, "an end");
        lks__segment_ask_stop(s, SIGTERM);
        assert_int_equal(lks__segment_asked_stop(s), given_up ? SIGTERM : 0);
        lks__segment_close(s);
    }
}

/* What reaches a terminal of a failure: no control characters, also none of two bytes; lines only
 * in the report. A rank that isn't of this segment isn't named. */
TEST(test_failure_text)
{
    static char text[LKS__SHM_REPORT];
    lks__segment *s;
    lks_status st;
    int rank;
    assert_ok(lks__segment_create(2, &s));
    lks__segment_report(s, text);
    assert_string_equal(text, "");
    assert_true(lks__segment_abort_report(s, LKS_ERR_TIMEOUT, 2,
                                          "a\x1b[2J\n\x7f\xc2\x9b"
                                          "5n\xff\xc3\xa9\xc2\xa0\xe2\x82",
                                          "one\ntwo\t\xc2\x85\x7f\n"));
    assert_false(lks__segment_abort(s, LKS_ERR_ARG, 1, "a later one"));
    lks__segment_failure(s, &st, &rank, text, sizeof text);
    assert_string_equal(text, "a?[2J????5n?\xc3\xa9\xc2\xa0??");
    assert_int_equal(st, LKS_ERR_TIMEOUT);
    assert_int_equal(rank, -1);
    lks__segment_report(s, text);
    assert_string_equal(text, "one\ntwo????\n");
    lks__segment_close(s);
}

/* What a rank is given must be the segment of its job, of this build, and sealed. */
TEST(test_wrong_segment)
{
    lks__segment *s, *other;
    char text[LKS__SEGMENT_ENV_BYTES];
    assert_ok(lks__segment_create(2, &s));
    struct lks__segment_header *h = lks__segment_header(s);
    lks__segment_env(s, text);
    setenv(LKS__SEGMENT_ENV, lks_test_text("%sx", text), 1);
    assert_fails(LKS_ERR_FORMAT, lks__segment_inherit(2, &other), "is not of the form FD:TOKEN");
    setenv(LKS__SEGMENT_ENV, text, 1);
    h->version++;
    assert_fails(LKS_ERR_FORMAT, lks__segment_inherit(2, &other), "the shared segment has version");
    h->version--;
    int copy = lks__sys_memfd("copy");
    assert_true(copy >= 0 && ftruncate(copy, (off_t)h->base_bytes) == 0);
    assert_int_equal(pwrite(copy, h, sizeof *h, 0), sizeof *h);
    setenv(LKS__SEGMENT_ENV, lks_test_text("%d%s", copy, strchr(text, ':')), 1);
    assert_fails(LKS_ERR_FORMAT, lks__segment_inherit(2, &other),
                 "is not the job's shared segment");
    unsetenv(LKS__SEGMENT_ENV);
    close(copy);
    lks__segment_close(s);
}

/* Messages name the first count that differs, if counts fit into a descriptor. */
TEST(test_counts_in_text)
{
    static const struct {
        size_t n, differs;
        const char *says;
    } cases[] = {{2, 1, "of 2 bytes with counts[1] = 1"},
                 {60, 59, "of 60 bytes with counts[59] = 1"},
                 {61, 60, "of 61 bytes with other counts"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lks__shm_descriptor a = {.args[2] = LKS_UINT8}, b = {.args[2] = LKS_UINT8};
        size_t counts[64];
        char text[256];
        for (size_t r = 0; r < cases[i].n; r++)
            counts[r] = 1;
        lks__shm_describe_counts(&a, counts, cases[i].n);
        lks__shm_describe(&a, &a, text, sizeof text);
        assert_string_equal(strstr(text, "bytes"), "bytes");
        counts[cases[i].differs] = 2;
        lks__shm_describe_counts(&b, counts, cases[i].n);
        lks__shm_describe(&a, &b, text, sizeof text);
        assert_contains(text, cases[i].says);
        a.n_parts = b.n_parts = UINT32_MAX; /* from another process: it may lie */
        b.args[3] = 0;
        memcpy(b.payload, a.payload, sizeof b.payload);
        lks__shm_describe(&a, &b, text, sizeof text);
        assert_contains(text, " with other counts");
    }
}

/* --- late heartbeats ---------------------------------------------------------------------- */

/* A thread beats a group that is closed meanwhile, while its handle becomes that of the next one:
 * test_order finds accesses without the lock. */
TEST(test_late_beats)
{
    ranks_close_in_beats(100, false);
}
