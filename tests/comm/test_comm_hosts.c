/* Groups over several hosts: the layer above engines, with an engine of threads. */
#include "support.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/fake_engine.h"
#include "comm/hier/hier.h"
#include "comm/shm/segment/segment_layout.h"
#include "comm/suite.h"
#include "comm/tree/tree.h"

struct thread {
    pthread_t id;
    struct fake_rank rank;
    double timeout_s;
    bool (*body)(lks_comm *comm);
    bool ok;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    lks_comm *comm = NULL;
    if (fake_open(&t->rank, t->timeout_s, &comm) == LKS_OK)
        t->ok = lks_comm_rank(comm) == t->rank.world.rank && t->body(comm);
    else
        fprintf(stderr, "rank %d can't open: %s\n", t->rank.world.rank, lks_last_error());
    lks_comm_close(comm);
    return NULL;
}

static void run_threads(int n, const struct fake_rank *ranks, double timeout_s,
                        void *(*run)(void *), bool (*body)(lks_comm *comm))
{
    struct thread threads[FAKE_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        threads[r] = (struct thread){.rank = ranks[r], .timeout_s = timeout_s, .body = body};
        assert_int_equal(pthread_create(&threads[r].id, NULL, run, &threads[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r].id, NULL);
    for (int r = 0; r < n; r++)
        if (!threads[r].ok)
            fail_msg("rank %d of %d, %d of them on its host", r, n,
                     ranks[r].world.local_world_size);
}

static void run_hosts(const char *hosts, double timeout_s, bool (*body)(lks_comm *comm))
{
    struct fake_rank ranks[FAKE_MAX_RANKS];
    run_threads(fake_ranks(hosts, ranks), ranks, timeout_s, thread_main, body);
}

static const char *const divisions[] = {"1",   "2",   "11",   "12", "21",   "22",   "111",
                                        "311", "122", "1111", "44", "2222", "3212", "11111111"};

static bool collectives(lks_comm *comm)
{
    return suite_collectives(comm, lks_comm_world_size(comm) <= 4);
}

TEST(test_collectives)
{
    for (size_t i = 0; i < sizeof divisions / sizeof divisions[0]; i++)
        run_hosts(divisions[i], 60, collectives);
}

/* Types differ in what is done with elements: for that a few divisions are enough. */
TEST(test_types)
{
    static const char *const few[] = {"1", "2", "11", "26", "122", "2222"};
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
        run_hosts(few[i], 60, suite_types);
    static const char *const scattered[] = {"2", "11", "21", "26", "111", "22", "3212"};
    for (size_t i = 0; i < sizeof scattered / sizeof scattered[0]; i++)
        run_hosts(scattered[i], 60, suite_scatter);
}

/* A host receives the parts of its own ranks from each node of the other hosts, or the other hosts'
 * parts, and nothing else. An all-reduce by all-gather would receive W times as much. */
static bool few_bytes(lks_comm *comm)
{
    enum { N = 1001 };
    const int W = lks_comm_world_size(comm);
    const struct lks__hier *h = comm->state;
    const size_t ranks = (size_t)(h->first[h->host + 1] - h->first[h->host]);
    float *all = calloc((size_t)W * N, sizeof *all), mine[N] = {0};
    size_t counts[FAKE_MAX_RANKS], others = 0;
    struct fake_deeds deeds;
    lks_node nodes[LKS__TREE_MAX_COVER];
    int n_nodes = 0;
    CHECK(all != NULL);
    for (int i = 0; i < h->n_hosts; i++)
        if (i != h->host)
            n_nodes += lks__tree_cover(W, h->first[i], h->first[i + 1], nodes, LKS__TREE_MAX_COVER);
    for (int r = 0; r < W; r++) {
        counts[r] = (size_t)(N - r);
        others += r < h->first[h->host] || r >= h->first[h->host + 1] ? counts[r] : 0;
    }
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (h->leads)
        fake_engine_deeds(h->host, &deeds);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(lks_comm_reduce_scatter(comm, all, mine, N, LKS_FLOAT32, LKS_SUM) == LKS_OK);
    if (h->leads)
        fake_engine_deeds(h->host, &deeds);
    CHECK(!h->leads || deeds.got == (size_t)n_nodes * ranks * N * sizeof(float));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(lks_comm_all_gather_v(comm, mine, all, counts, LKS_FLOAT32) == LKS_OK);
    if (h->leads)
        fake_engine_deeds(h->host, &deeds);
    CHECK(!h->leads || deeds.got == others * sizeof(float));
    free(all);
    return true;
}

/* Shares that are too large for one operation are gathered on the first host in pieces, and nowhere
 * else. */
static bool large_shares(lks_comm *comm)
{
    enum { BLOCKS = 3, BYTES = 90001 };
    static const size_t start[BLOCKS + 1] = {0, 10, 50000, BYTES};
    const struct lks__hier *h = comm->state;
    struct fake_deeds deeds;
    size_t first, end;
    void *lazy;
    CHECK(lks_comm_alloc(comm, LKS_MEM_LAZY, BYTES, &lazy) == LKS_OK);
    unsigned char *mem = lazy;
    lks_comm_host_share(comm, BLOCKS, &first, &end);
    for (size_t i = start[first]; i < start[end] && h->leads; i++)
        mem[i] = (unsigned char)(i % 251 + 1);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (h->leads)
        fake_engine_deeds(h->host, &deeds);
    CHECK(lks_comm_gather_shares(comm, mem, start, BLOCKS, 1) == LKS_OK);
    if (h->leads)
        fake_engine_deeds(h->host, &deeds);
    CHECK(!h->leads || deeds.most <= fake_engine.most_bytes);
    for (size_t i = 0; i < BYTES; i++)
        CHECK(mem[i] == (h->host == 0 || (i >= start[first] && i < start[end]) ? i % 251 + 1 : 0));
    return true;
}

TEST(test_large_shares)
{
    run_hosts("211", 60, large_shares);
}

TEST(test_few_bytes)
{
    static const char *const some[] = {"11", "22", "212", "1111"};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        run_hosts(some[i], 60, few_bytes);
}

TEST(test_reductions)
{
    for (size_t i = 0; i < sizeof divisions / sizeof divisions[0]; i++)
        run_hosts(divisions[i], 60, suite_reductions);
}

/* --- calls that don't match --------------------------------------------------------------- */

static bool other_kind(lks_comm *comm)
{
    char byte = 0;
    lks_status st = lks_comm_world(comm)->rank >= 2
                        ? lks_comm_broadcast(comm, &byte, 1, LKS_UINT8, 0)
                        : lks_comm_barrier(comm);
    /* No engine writes into a caller's memory any more. */
    const struct lks__hier *h = comm->state;
    struct fake_deeds deeds;
    fake_engine_deeds(h->host, &deeds);
    CHECK(!h->leads || deeds.left == 0);
    return suite_mismatch(
        comm, st, "rank 0 called lks_comm_barrier, rank 2 called lks_comm_broadcast of 1 bytes",
        "from rank 0");
}

TEST(test_mismatches)
{
    run_hosts("22", 20, other_kind);
    for (int i = 0; suite_halves[i] != NULL; i++)
        run_hosts("22", 20, suite_halves[i]);
    for (int i = 0; suite_others[i] != NULL; i++)
        run_hosts("11", 20, suite_others[i]);
}

/* --- waits end ---------------------------------------------------------------------------- */

static lks__segment *segment_of(const lks_comm *comm)
{
    const struct lks__hier *h = comm->state;
    return lks__shm_segment(h->local);
}

/* Is `rank` named as the cause to the launcher of its own host, and no rank to that of another? */
static bool is_culprit(const lks_comm *comm, int rank)
{
    const struct lks__hier *h = comm->state;
    lks_status st;
    int named;
    lks__segment_failure(segment_of(comm), &st, &named, NULL, 0);
    bool ours = rank >= h->first[h->host] && rank < h->first[h->host + 1];
    return named == (ours ? rank - h->first[h->host] : -1);
}

/* Every host learns of one rank's failure, with its number, also if there was no room for the note
 * at first. */
static bool one_gives_up(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 3) {
        lks_comm_note(comm, 3, "data");
        fake_engine_refuse(1, 3);
        lks_comm_abort(comm, "the shard is torn");
    }
    double start = lks__sys_now();
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(strstr(lks_last_error(), "rank 3 failed at step 3, phase data: the shard is torn"));
    CHECK(lks__sys_now() - start < 1 * lks_test_patience());
    CHECK(is_culprit(comm, 3));
    return true;
}

/* … also if it leads its host and ends next: lks_comm_abort() returns once it has told them. */
static bool leader_gives_up(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2) {
        const double start = lks__sys_now();
        fake_engine_refuse(1, 3);
        lks_comm_abort(comm, "the shard is torn");
        CHECK(!lks__hier_serves(comm) || lks__sys_now() - start >= 0.5); /* a busy machine */
    }
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(strstr(lks_last_error(), "rank 2 failed: the shard is torn") != NULL);
    return true;
}

/* … also if no rank of its host calls anything until they know. */
static bool one_gives_up_in_silence(lks_comm *comm)
{
    static atomic_bool known;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 3) {
        fake_engine_refuse(1, 3);
        lks_comm_abort(comm, "the shard is torn");
    }
    for (int i = 0; i < lks_test_tries(20000) && !known; i++, usleep(1000))
        if (lks_comm_rank(comm) < 2 && lks__segment_aborted(segment_of(comm)))
            known = true;
    CHECK(known);
    return true;
}

static void stand_still(const lks_comm *comm)
{
    for (int i = 0; i < lks_test_tries(20000) && !lks__segment_aborted(segment_of(comm)); i++)
        usleep(1000);
}

/* True if the last error contains the text, with this machine's name for %s. */
static bool says(const char *format)
{
    char name[64] = "", text[256];
    gethostname(name, sizeof name - 1);
    snprintf(text, sizeof text, format, name);
    return strstr(lks_last_error(), text) != NULL;
}

/* Rank 2 is the leader of the second host: its thread runs although it stands still. */
static bool one_is_late(lks_comm *comm)
{
    lks_comm_note(comm, 12, "backward");
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2) {
        stand_still(comm);
        CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT && is_culprit(comm, 2));
        return true;
    }
    CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    CHECK(strstr(lks_last_error(), "rank 2 ") != NULL);
    CHECK(strstr(lks_last_error(), "step 12, phase backward") != NULL);
    CHECK(is_culprit(comm, 2));
    static _Thread_local char report[LKS__SHM_REPORT];
    lks__segment_report(segment_of(comm), report); /* its last column: for whom rank 0 waits */
    CHECK(lks_comm_rank(comm) > 1 || strstr(report, "  2\n") != NULL);
    return true;
}

/* Rank 2, a leader, stands still when its own share of a reduction is due. Its thread waits for
 * that share, but must not seem to be the rank's heartbeat. */
static bool one_is_late_with_its_share(lks_comm *comm)
{
    const int rank = lks_comm_rank(comm);
    static atomic_int returned;
    struct suite_sum s;
    lks_work *work;
    CHECK(suite_sum(comm, 64, &s));
    if (rank == 3)
        usleep(200 * 1000);
    CHECK(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    if (rank == 2)
        stand_still(comm);
    for (int i = 0; rank == 2 && returned < 3 && i < lks_test_tries(20000); i++)
        usleep(1000); /* its thread may see its share before the failure, and end the others' sum */
    const lks_status st = lks_work_wait(work);
    ++returned;
    CHECK(st == LKS_ERR_TIMEOUT && is_culprit(comm, 2));
    CHECK(strstr(lks_last_error(), "rank 2 ") != NULL);
    return true;
}

/* Rank 3 is late with its share, and has heartbeats. Rank 2 has none after its own share, but isn't
 * missing. */
static bool one_has_added_its_share(lks_comm *comm)
{
    const int rank = lks_comm_rank(comm);
    struct suite_sum s;
    lks_work *work;
    CHECK(suite_sum(comm, 64, &s));
    const double end = lks__sys_now() + 2.5 * comm->timeout_s;
    for (; rank == 3 && lks__sys_now() < end; usleep(10000))
        lks_comm_beat(comm);
    CHECK(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    for (; lks__shm_owes_shares(comm->host); usleep(1000))
        CHECK(lks_comm_progress(comm) == LKS_OK);
    while (rank == 2 && lks__sys_now() < end)
        usleep(10000);
    CHECK(lks_work_wait(work) == LKS_OK);
    return true;
}

/* Rank 1 stands still beside another rank of its host that is busy. */
static bool one_beside_is_late(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1)
        stand_still(comm);
    for (int i = 0; i < lks_test_tries(2000) && lks_comm_rank(comm) == 2 &&
                    !lks__segment_aborted(segment_of(comm));
         i++, usleep(10000))
        lks_comm_beat(comm);
    CHECK(lks_comm_rank(comm) != 2 || lks__segment_aborted(segment_of(comm)));
    CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    CHECK(says("from rank 1 on host %s (ranks 1 to 2)"));
    return true;
}

/* Heartbeats reach other hosts: no rank is late. */
static bool one_is_busy(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    /* Longer than a wait's 1.8 s. */
    for (int i = 0; i < lks_test_tries(20) && lks_comm_rank(comm) == 2; i++) {
        usleep(100 * 1000);
        lks_comm_beat(comm);
    }
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    return true;
}

static bool one_is_cut_off(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(200 * 1000); /* all hosts have passed */
    if (lks_comm_rank(comm) == 0)
        fake_engine_cut(1);
    usleep(100 * 1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    bool first = lks_comm_rank(comm) < 2; /* it names both sides: who is silent for whom */
    CHECK(says(first ? "host %s (ranks 0 to 1) has had " : "host %s (rank 2) has had "));
    CHECK(says(first ? "no heartbeat from host %s (rank 2) for "
                     : "no heartbeat from host %s (ranks 0 to 1) for "));
    char text[64];
    snprintf(text, sizeof text, " for more than %g s, in the barrier: the processes",
             1.5 * lks_test_patience());
    CHECK(strstr(lks_last_error(), text) != NULL);
    return true;
}

/* A host that leaves the group has no part in what the others call afterwards. */
static bool one_host_leaves(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) >= 2)
        return true;
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(says("rank 2 (the first of host %s) left the group before the barrier"));
    return true;
}

/* … but that is no failure for those that only work on, even when its connection has ended. */
static bool one_host_ends(lks_comm *comm)
{
    struct lks__hier_heartbeat beat = {.left = 0};
    struct fake_deeds deeds;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) != 0)
        return true;
    for (int i = 0; i < lks_test_tries(20000) && !beat.left; i++, usleep(1000)) {
        fake_engine_deeds(1, &deeds);
        memcpy(&beat, deeds.note, sizeof beat);
    }
    CHECK(beat.left);
    fake_engine_break(1);
    fake_engine_deeds(0, &deeds);
    const unsigned enough = deeds.told + 2;
    for (int i = 0; i < lks_test_tries(20000) && deeds.told < enough; i++, usleep(1000))
        fake_engine_deeds(0, &deeds);
    CHECK(deeds.told >= enough && !lks__segment_aborted(segment_of(comm)));
    return true;
}

static struct lks__rank_line *line_of(const lks_comm *comm, int rank)
{
    return lks__segment_line(segment_of(comm), rank);
}

/* The root of a broadcast, rank 1, may end as soon as it has returned. So it doesn't return before
 * the leader of its host has sent the data to the other host, which comes last. */
static bool root_returns_last(lks_comm *comm)
{
    static lks_comm *_Atomic first;
    static atomic_int n_begun;
    static atomic_bool comes, returned;
    const int rank = lks_comm_rank(comm);
    int value = rank;
    if (rank == 0)
        first = comm;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    n_begun += rank < 2;
    /* Rank 1 has returned, or arrived at one operation more than the leader. */
    for (int i = 0; rank == 2 && i < lks_test_tries(20000) && !returned; i++, usleep(1000))
        if (n_begun == 2 && line_of(first, 0)->waiting == LKS__WAIT_BETWEEN &&
            line_of(first, 1)->posted > line_of(first, 0)->posted)
            break;
    if (rank == 2)
        comes = true;
    const lks_status st = lks_comm_broadcast(comm, &value, 1, LKS_INT32, 1);
    const bool last = comes;
    if (rank == 1)
        returned = true;
    while (!comes) /* it looks at the group of rank 0 */
        usleep(1000);
    CHECK(last && st == LKS_OK && value == 1);
    return true;
}

/* A host may leave while its last data are still on their way to another one. */
static bool last_data_are_slow(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1)
        fake_engine_slow(1, 2.5);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    return true;
}

/* … but they must arrive within the deadline. */
static bool last_data_are_lost(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1)
        fake_engine_slow(1, 1000);
    const lks_status st = lks_comm_barrier(comm);
    CHECK(st == (lks_comm_rank(comm) == 1 ? LKS_ERR_TIMEOUT : LKS_OK));
    CHECK(st == LKS_OK || says("host %s (rank 1) has had no heartbeat from host "));
    return true;
}

/* Host 1 fails when host 0 has begun to leave. */
static bool one_fails_late(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 1) {
        usleep(100 * 1000);
        lks_comm_abort(comm, "too late");
    }
    return true;
}

static void expect_left(int n_hosts, int orderly)
{
    for (int h = 0; h < n_hosts; h++) {
        struct fake_deeds deeds;
        fake_engine_deeds(h, &deeds);
        assert_int_equal(deeds.left, orderly);
    }
}

/* The end is orderly on all hosts or on none: an engine such as MPI waits for all in an orderly
 * one. */
TEST(test_leaving)
{
    run_hosts("22", 20, one_host_leaves);
    expect_left(2, 0);
    run_hosts("11", 20, one_host_ends);
    expect_left(2, 1);
    run_hosts("11", 20, one_fails_late);
    expect_left(2, 0);
    run_hosts("21", 20, root_returns_last);
    run_hosts("11", 20, last_data_are_slow);
    expect_left(2, 1);
    run_hosts("11", 1 * lks_test_patience(), last_data_are_lost);
}

/* Host 1 sends what another program might. */
static bool other_build(lks_comm *comm)
{
    static const struct lks__hier_heartbeat beat = {.magic = 1};
    static unsigned char note[LKS__ENGINE_MESSAGE];
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 0) {
        memcpy(note, &beat, sizeof beat);
        fake_engine_forge(1, note);
    }
    stand_still(comm);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(says("host %s (rank 1) runs another build of lockstep"));
    return true;
}

/* The numbers of ranks that the launchers give don't add up: every rank is told, at once. */
static void *open_wrong(void *arg)
{
    struct thread *t = arg;
    lks_comm *comm = NULL;
    lks_status st = fake_open(&t->rank, t->timeout_s, &comm);
    bool leads = t->rank.world.local_rank == 0;
    t->ok = st == (leads ? LKS_ERR_CONFIG : LKS_ERR_PEER) && comm == NULL &&
            strstr(lks_last_error(), "the 2 hosts have 3 ranks together, and WORLD_SIZE is 4: a "
                                     "host's LOCAL_WORLD_SIZE, or");
    if (!t->ok)
        fprintf(stderr, "rank %d: %d, %s\n", t->rank.world.rank, (int)st, lks_last_error());
    lks_comm_close(comm);
    return NULL;
}

TEST(test_wrong_numbers)
{
    struct fake_rank ranks[FAKE_MAX_RANKS];
    double start = lks__sys_now();
    assert_int_equal(fake_ranks("12", ranks), 3);
    for (int r = 0; r < 3; r++)
        ranks[r].world.world_size = 4;
    run_threads(3, ranks, 20 * lks_test_patience(), open_wrong, NULL);
    assert_true(lks__sys_now() - start < 10 * lks_test_patience());
}

/* A join that doesn't return ends with the deadline, and nothing waits for it any more. */
TEST(test_hanging_join)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct fake_rank ranks[FAKE_MAX_RANKS];
        lks_comm *comm = NULL;
        alarm((unsigned)(20 * lks_test_patience()));
        fake_ranks("11", ranks);
        fake_engine_hang();
        bool ok = fake_open(&ranks[0], 0.1, &comm) == LKS_ERR_TIMEOUT && comm == NULL &&
                  strstr(lks_last_error(),
                         "the other hosts have not reached fake within 0.1 s: are all ranks "
                         "started, with the same backend, and does a firewall");
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void *open_cut(void *arg)
{
    struct thread *t = arg;
    lks_comm *comm = NULL;
    t->ok = fake_open(&t->rank, t->timeout_s, &comm) == LKS_ERR_TIMEOUT && comm == NULL &&
            strstr(lks_last_error(), " s, in the opening of the group: the processes of host ");
    if (!t->ok)
        fprintf(stderr, "rank %d: %s\n", t->rank.world.rank, lks_last_error());
    return NULL;
}

/* The hosts have connections, but no message arrives. */
TEST(test_cut_join)
{
    struct fake_rank ranks[FAKE_MAX_RANKS];
    assert_int_equal(fake_ranks("11", ranks), 2);
    fake_engine_cut(1);
    run_threads(2, ranks, 0.5 * lks_test_patience(), open_cut, NULL);
}

static bool one_host_dies(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000); /* a first note has arrived */
    if (lks_comm_rank(comm) == 2)
        fake_engine_break(1);
    double start = lks__sys_now();
    if (lks_comm_rank(comm) == 3) /* the others must learn it even while they compute */
        usleep(300 * 1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(lks__sys_now() - start < 2 * lks_test_patience());
    return true;
}

/* The engine fails in an operation (`early`: one already in progress) 1 s before host 1's notes
 * end. */
static bool dies_unannounced(lks_comm *comm, bool early)
{
    int rank = lks_comm_rank(comm);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000);
    if (rank == 2) {
        usleep(early ? 200 * 1000 : 0);
        fake_engine_break_late(1, 1.0);
    }
    usleep(early && rank < 2 ? 0 : 100 * 1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(rank >= 2 ||
          says("rank 2 (the first of host %s) ended, or its host or the network to it is lost: "));
    return true;
}

static bool dies_before_a_call(lks_comm *comm)
{
    return dies_unannounced(comm, false);
}

static bool dies_within_a_call(lks_comm *comm)
{
    return dies_unannounced(comm, true);
}

/* The reason of rank 3's failure arrives 1 s after the engine's error. */
static bool reason_comes_late(lks_comm *comm)
{
    int rank = lks_comm_rank(comm);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000);
    if (rank == 3) {
        fake_engine_break_late(1, 1.0);
        lks_comm_abort(comm, "the shard is torn");
    }
    usleep(100 * 1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(strstr(lks_last_error(), "rank 3 failed: the shard is torn") != NULL);
    return true;
}

/* No note ever arrives: the other one of two hosts is named, within seconds. */
static bool dies_without_a_note(lks_comm *comm)
{
    int rank = lks_comm_rank(comm);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000);
    if (rank == 2)
        fake_engine_break_late(1, 1000);
    double start = lks__sys_now();
    usleep(100 * 1000);
    CHECK(lks_comm_barrier(comm) == LKS_ERR_PEER);
    CHECK(rank >= 2 || says("failed with host %s (ranks 2 to 3) at"));
    CHECK(lks__sys_now() - start < 5 * lks_test_patience());
    return true;
}

/* An error of the engine doesn't hide the cause: the rank that failed is named. */
TEST(test_names)
{
    run_hosts("22", 20, dies_before_a_call);
    run_hosts("22", 20, dies_within_a_call);
    run_hosts("22", 20, reason_comes_late);
    run_hosts("22", 20, dies_without_a_note);
}

/* --- exchanges between devices, which the group only watches ---------------------------------- */

/* For so many seconds at most, until there is a failure: wait for other ranks' devices, or stand
 * still. */
static lks_status stay(lks_comm *comm, bool waits, double seconds)
{
    lks_status st = LKS_OK;
    for (double end = lks__sys_now() + seconds; st == LKS_OK && lks__sys_now() < end;
         usleep(1000)) {
        st = lks__comm_among_devices(comm, waits);
        LKS__THEN(st, lks_comm_progress(comm));
    }
    return st;
}

/* Rank 2 stands still, with a GPU; all others wait for it, and name it, also from another host. */
static bool one_has_no_answer(lks_comm *comm)
{
    const bool late = lks_comm_rank(comm) == 2;
    lks__comm_uses(comm, late ? "GPU 7 (some name)" : "GPU 0 (some name)");
    lks_comm_note(comm, 12, "update");
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    CHECK(stay(comm, !late, 20 * lks_test_patience()) == LKS_ERR_TIMEOUT);
    CHECK(strstr(lks_last_error(), " s in an exchange between GPUs from rank 2 ") != NULL);
    CHECK(strstr(lks_last_error(), "step 12, phase update") != NULL);
    CHECK(lks_comm_world_size(comm) < 4 || strstr(lks_last_error(), ", GPU 7 (some name), at"));
    return true;
}

/* Nobody is named while a rank has heartbeats, nor if all wait: then the launcher tells of them. */
static bool nobody_is_late(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    for (int i = 0; i < lks_test_tries(20) && lks_comm_rank(comm) == 2; i++) {
        usleep(100 * 1000);
        lks_comm_beat(comm);
    }
    CHECK(stay(comm, true, (lks_comm_rank(comm) == 2 ? 2 : 4) * lks_test_patience()) == LKS_OK);
    CHECK(lks__comm_among_devices(comm, false) == LKS_OK);
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    return true;
}

static bool host_has_no_answer(lks_comm *comm)
{
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    usleep(200 * 1000); /* all hosts have passed */
    if (lks_comm_rank(comm) == 0)
        fake_engine_cut(1);
    usleep(100 * 1000);
    CHECK(stay(comm, true, 20 * lks_test_patience()) == LKS_ERR_TIMEOUT);
    CHECK(strstr(lks_last_error(), "no heartbeat from host") != NULL);
    CHECK(strstr(lks_last_error(), " s, in an exchange between GPUs: the processes of host ") !=
          NULL);
    return true;
}

TEST(test_devices)
{
    run_hosts("4", 0.5 * lks_test_patience(), one_has_no_answer);
    run_hosts("21", 0.5 * lks_test_patience(), one_has_no_answer);
    run_hosts("22", 0.5 * lks_test_patience(), nobody_is_late);
    run_hosts("21", 0.5 * lks_test_patience(), host_has_no_answer);
}

/* Does this host's launcher see that ranks anywhere save, or that none does? */
static bool sees(lks_comm *comm, bool saving)
{
    for (int i = 0; i < lks_test_tries(2000); i++, usleep(5000))
        if (lks__segment_saving(segment_of(comm), true) == saving)
            return true;
    return false;
}

/* While a rank saves, all hosts know it, and afterwards that it is done. */
static bool one_saves(lks_comm *comm)
{
    CHECK(sees(comm, false));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 3)
        lks__comm_saving(comm, true);
    CHECK(sees(comm, true));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 3)
        lks__comm_saving(comm, false);
    CHECK(sees(comm, false));
    return lks_comm_barrier(comm) == LKS_OK;
}

TEST(test_saving)
{
    run_hosts("22", 20, one_saves);
    run_hosts("131", 20, one_saves);
    expect_left(3, 1);
}

/* A signal to one rank reaches all. Afterwards, and while a rank saves, there are no more
 * heartbeats than otherwise. */
static bool one_asks_to_stop(lks_comm *comm)
{
    struct fake_deeds deeds;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 3) {
        lks__comm_saving(comm, true);
        lks__comm_ask_stop(comm, SIGUSR1);
    }
    for (int i = 0; i < lks_test_tries(2000) && lks__comm_asked_stop(comm) == 0; i++)
        usleep(5000);
    CHECK(lks__comm_asked_stop(comm) == SIGUSR1);
    CHECK(sees(comm, true));
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    for (int h = 0; h < 2 && lks_comm_rank(comm) == 0; h++) {
        double gap_s = INFINITY;
        fake_engine_deeds(h, &deeds);
        const unsigned enough = deeds.told + 3;
        for (int i = 0; i < lks_test_tries(20000) && deeds.told < enough; i++, usleep(1000)) {
            fake_engine_deeds(h, &deeds);
            gap_s = fmin(gap_s, deeds.gap_s);
        }
        CHECK(gap_s > 0.9 * LKS__HIER_HEARTBEAT_S && gap_s < INFINITY);
    }
    return lks_comm_barrier(comm) == LKS_OK;
}

static double urgent_s[2];

/* How soon after another heartbeat are there one for a save, and one for a signal? */
static bool has_news(lks_comm *comm)
{
    struct fake_deeds deeds;
    CHECK(lks_comm_barrier(comm) == LKS_OK);
    for (int n = 0; n < 2 && lks_comm_rank(comm) == 1; n++) {
        fake_engine_deeds(1, &deeds);
        for (unsigned told = deeds.told; deeds.told == told; usleep(100))
            fake_engine_deeds(1, &deeds);
        if (n == 0)
            lks__comm_saving(comm, true);
        else
            lks__comm_ask_stop(comm, SIGUSR1);
        for (unsigned told = deeds.told; deeds.told == told; usleep(100))
            fake_engine_deeds(1, &deeds);
        urgent_s[n] = fmin(urgent_s[n], deeds.gap_s);
    }
    return lks_comm_barrier(comm) == LKS_OK;
}

/* Saves and signals don't wait for the next heartbeat: that is so in one of several tries at least,
 * as the machine may be busy. */
TEST(test_urgent)
{
    const double soon = 0.9 * LKS__HIER_HEARTBEAT_S;
    urgent_s[0] = urgent_s[1] = INFINITY;
    for (int i = 0; i < 10 && (urgent_s[0] > soon || urgent_s[1] > soon); i++)
        run_hosts("11", 20, has_news);
    assert_true(urgent_s[0] < soon);
    assert_true(urgent_s[1] < soon);
}

TEST(test_waits_end)
{
    run_hosts("22", 20, one_gives_up);
    expect_left(2, 0);
    run_hosts("13", 20, one_gives_up);
    run_hosts("22", 20, leader_gives_up);
    run_hosts("22", 20, one_gives_up_in_silence);
    run_hosts("22", 0.8 * lks_test_patience(), one_is_late);
    run_hosts("21", 0.8 * lks_test_patience(), one_is_late);
    run_hosts("12", 0.8 * lks_test_patience(), one_beside_is_late);
    run_hosts("22", 0.8 * lks_test_patience(), one_is_late_with_its_share);
    run_hosts("121", 0.8 * lks_test_patience(), one_has_added_its_share);
    run_hosts("11", 20, other_build);
    run_hosts("22", 20, one_asks_to_stop);
    run_hosts("211", 0.8 * lks_test_patience(), one_is_busy);
    run_hosts("21", 1.5 * lks_test_patience(), one_is_cut_off);
    run_hosts("22", 20, one_host_dies);
}

/* --- bfloat16 on the wire ----------------------------------------------------------------- */

static float to_bf16(float x)
{
    uint16_t narrow;
    lks__wire_narrow(&narrow, &x, 1);
    lks__wire_widen(&x, &narrow, 1);
    return x;
}

/* The sum of what each host sends, with one's own part unrounded; then rounded once more. Equal on
 * all hosts. */
static bool half_the_bytes(lks_comm *comm)
{
    enum { N = 10000, BLOCK = 1000 };
    void *own, *common;
    int rank = lks_comm_rank(comm);
    size_t start[N / BLOCK + 1];
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, N * sizeof(float), &own) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, N * sizeof(float) + 80, &common) == LKS_OK);
    for (int b = 0; b <= N / BLOCK; b++)
        start[b] = (size_t)b * BLOCK;
    for (int i = 0; i < N; i++)
        ((float *)own)[i] = (float)(i + 1) * (rank == 0 ? 1.001f : 0.37f);
    lks_part part = {{0, rank}, own};
    lks_reduction r = {.n_leaves = 2,
                       .parts = &part,
                       .n_parts = 1,
                       .scale = 0.5f,
                       .count = N,
                       .block_start = start,
                       .n_blocks = N / BLOCK,
                       .block_sumsq = (double *)((char *)common + N * sizeof(float)),
                       .dst = common,
                       .wire = LKS_WIRE_BFLOAT16};
    lks_work *work;
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_OK);
    CHECK(lks_work_wait(work) == LKS_OK);
    for (int i = 0; i < N; i++) {
        bool first = i < N / 2; /* host 0's shard */
        float a = (float)(i + 1) * 1.001f, b = (float)(i + 1) * 0.37f;
        float want = to_bf16(((first ? a : to_bf16(a)) + (first ? to_bf16(b) : b)) * 0.5f);
        CHECK(memcmp(&r.dst[i], &want, sizeof want) == 0);
    }
    for (size_t b = 0; b < r.n_blocks; b++)
        CHECK(r.block_sumsq[b] == lks__sumsq_plain(r.dst + start[b], BLOCK));
    return true;
}

/* A reduction that travels in more pieces than are in transfer at a time, each with more nodes than
 * one, on two hosts, with blocks of many sizes. */
enum { PIECES_V = 16, PIECES_NODES = 5, PIECES_COUNT = 2600000 };

/* Element i of node k, with more digits than bfloat16 has. */
static float pieces_value(int k, size_t i)
{
    return (float)((i * 2654435761u + (size_t)k * 40503) % 1000003) * 1e-3f - 300;
}

/* What the tree makes of nodes 0-3, 4, 5, 6-7 and 8-15, the first two of which are host 0's; `host`
 * adds them up, and what comes from the other one may be rounded. */
static float pieces_sum(size_t i, int host, bool narrow)
{
    float x[PIECES_NODES];
    for (int k = 0; k < PIECES_NODES; k++) {
        x[k] = pieces_value(k, i);
        if (narrow && (k >= 2) != host)
            x[k] = to_bf16(x[k]);
    }
    float sum = ((x[0] + ((x[1] + x[2]) + x[3])) + x[4]) * 0.25f;
    return narrow ? to_bf16(sum) : sum;
}

static bool in_pieces(lks_comm *comm, int wire)
{
    const int rank = lks_comm_rank(comm), first = rank == 0 ? 0 : 5, end = rank == 0 ? 5 : 16;
    lks_node nodes[PIECES_NODES];
    lks_part parts[PIECES_NODES];
    const int n = lks__tree_cover(PIECES_V, first, end, nodes, PIECES_NODES);
    const size_t most = PIECES_COUNT / 1000;
    size_t *start = calloc(most, sizeof *start), blocks = 0;
    void *own, *common, *squares;
    lks_work *work;
    CHECK(n == 2 + rank && start != NULL);
    CHECK(lks_comm_alloc(comm, LKS_MEM_OWN, 3 * PIECES_COUNT * sizeof(float), &own) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, PIECES_COUNT * sizeof(float), &common) == LKS_OK);
    CHECK(lks_comm_alloc(comm, LKS_MEM_COMMON, most * sizeof(double), &squares) == LKS_OK);
    for (; start[blocks] < PIECES_COUNT; blocks++) {
        start[blocks + 1] = start[blocks] + 1000 + blocks * blocks % 3001;
        if (start[blocks + 1] > PIECES_COUNT)
            start[blocks + 1] = PIECES_COUNT;
    }
    for (int k = 0; k < n; k++) {
        parts[k] = (lks_part){nodes[k], (float *)own + (size_t)k * PIECES_COUNT};
        for (size_t i = 0; i < PIECES_COUNT; i++)
            parts[k].buf[i] = pieces_value(2 * rank + k, i);
    }
    lks_reduction r = {.n_leaves = PIECES_V,
                       .parts = parts,
                       .n_parts = n,
                       .scale = 0.25f,
                       .count = PIECES_COUNT,
                       .block_start = start,
                       .n_blocks = blocks,
                       .block_sumsq = squares,
                       .dst = common,
                       .wire = wire};
    CHECK(lks_comm_reduce_start(comm, &r, &work) == LKS_OK);
    CHECK(lks_work_wait(work) == LKS_OK);
    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = start[b]; i < start[b + 1]; i++)
            CHECK(r.dst[i] == pieces_sum(i, b >= blocks / 2, wire == LKS_WIRE_BFLOAT16));
        CHECK(r.block_sumsq[b] == lks__sumsq_plain(r.dst + start[b], start[b + 1] - start[b]));
    }
    free(start);
    return true;
}

static bool in_float_pieces(lks_comm *comm)
{
    return in_pieces(comm, LKS_WIRE_FLOAT32);
}

static bool in_bfloat16_pieces(lks_comm *comm)
{
    return in_pieces(comm, LKS_WIRE_BFLOAT16);
}

TEST(test_pieces)
{
    run_hosts("11", 60, in_float_pieces);
    run_hosts("11", 60, in_bfloat16_pieces);
}

TEST(test_wire)
{
    run_hosts("11", 20, half_the_bytes);
}

/* --- many --------------------------------------------------------------------------------- */

static bool two_thousand(lks_comm *comm)
{
    char all[4];
    for (int i = 0; i < 2000; i++) {
        char mine = (char)(i + lks_comm_rank(comm));
        CHECK(lks_comm_all_gather(comm, &mine, all, 1, LKS_UINT8) == LKS_OK);
        CHECK(all[3] == (char)(i + 3));
    }
    return true;
}

TEST(test_two_thousand)
{
    run_hosts("22", 60, two_thousand);
}
