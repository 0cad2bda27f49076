/* lks_comm_split(): groups of some of a group's ranks, which are processes: of one host, or with
 * the argument `gloo` or `mpi` of several. */
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/hosts.h"
#include "comm/shm/host.h"
#include "lockstep/lockstep.h"

enum { MOST = 8, COUNT = 70001 };

static const double TIMEOUT_S = 20;
static const char *engine;
static lks_world world;
static lks_comm *comm;
static int hosts_of[MOST]; /* the host of each rank of `comm` */

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return lks__fail(LKS_ERR_DIVERGED, "line %d: %s", __LINE__, #condition);               \
    } while (0)

/* Element i of rank r of `comm`: sums of these depend on their order. */
static float value(int r, int i)
{
    return (float)(r * 7 + i % 13 + 1) * 0.1f;
}

/* The sum over ranks[0..n) in the order of the tree. */
static float sum_of(const int *ranks, int n, int i)
{
    float level[MOST];
    for (int r = 0; r < n; r++)
        level[r] = value(ranks[r], i);
    for (; n > 1; n = (n + 1) / 2)
        for (int k = 0; k < (n + 1) / 2; k++)
            level[k] = 2 * k + 1 < n ? level[2 * k] + level[2 * k + 1] : level[2 * k];
    return level[0];
}

/* Ranks of one host that follow each other are a host of the part. */
static bool has_hosts(const lks_world *w, const int *ranks, int n)
{
    int first = w->rank, end = w->rank + 1;
    while (first > 0 && hosts_of[ranks[first - 1]] == hosts_of[ranks[w->rank]])
        first--;
    while (end < n && hosts_of[ranks[end]] == hosts_of[ranks[w->rank]])
        end++;
    return w->local_rank == w->rank - first && w->local_world_size == end - first;
}

/* Each collective of `part`, whose ranks are ranks[0..n) of `comm`. */
static lks_status check_part(lks_comm *part, const int *ranks, int n)
{
    static float x[COUNT], all[MOST];
    const int me = lks_comm_rank(part);
    int got[MOST];
    size_t counts[MOST];
    lks_work *work;
    void *mem;
    EXPECT(lks_comm_world_size(part) == n && me >= 0 && me < n && ranks[me] == world.rank);
    EXPECT(has_hosts(lks_comm_world(part), ranks, n));
    LKS__TRY(lks_comm_barrier(part));
    LKS__TRY(lks_comm_all_gather(part, &world.rank, got, 1, LKS_INT32));
    EXPECT(memcmp(got, ranks, (size_t)n * sizeof *got) == 0);
    for (int i = 0; i < COUNT; i++)
        x[i] = value(world.rank, i);
    LKS__TRY(lks_comm_all_reduce(part, x, COUNT, LKS_FLOAT32, LKS_SUM));
    for (int i = 0; i < COUNT; i += 997)
        EXPECT(x[i] == sum_of(ranks, n, i));
    for (int r = 0; r < n; r++) {
        all[r] = value(world.rank, r);
        counts[r] = (size_t)(r % 2);
    }
    LKS__TRY(lks_comm_reduce_scatter(part, all, x, 1, LKS_FLOAT32, LKS_SUM));
    EXPECT(x[0] == sum_of(ranks, n, me));
    LKS__TRY(lks_comm_all_gather_v(part, &world.rank, got, counts, LKS_INT32));
    for (int r = 0; r < n / 2; r++)
        EXPECT(got[r] == ranks[2 * r + 1]);
    got[0] = world.rank;
    LKS__TRY(lks_comm_broadcast(part, got, 1, LKS_INT32, n - 1));
    EXPECT(got[0] == ranks[n - 1]);
    x[0] = value(world.rank, 0);
    LKS__TRY(lks_comm_all_reduce_start(part, x, 1, LKS_FLOAT32, LKS_SUM, &work));
    LKS__TRY(lks_work_wait(work));
    EXPECT(x[0] == sum_of(ranks, n, 0));
    return lks_comm_alloc(part, LKS_MEM_COMMON, 100, &mem);
}

/* The ranks of `from`, n of them, that give `color` to a split by color_of and key_of; sorted. */
typedef int chosen(int rank);

static int collect(const int *from, int n, chosen *color_of, chosen *key_of, int color, int *to)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (color_of(from[i]) != color)
            continue;
        int at = m++;
        for (; at > 0 && key_of(to[at - 1]) > key_of(from[i]); at--)
            to[at] = to[at - 1];
        to[at] = from[i];
    }
    return m;
}

static int zero(int rank)
{
    return 0;
}

static int parity(int rank)
{
    return rank % 2;
}

static int half(int rank)
{
    return rank < world.world_size / 2;
}

static int itself(int rank)
{
    return rank;
}

static int downward(int rank)
{
    return -rank;
}

static int mixed(int rank)
{
    return rank * 5 % 7 - 3;
}

static int all_but_first(int rank)
{
    return rank == 0 ? -1 : 1000000;
}

static chosen *const colors[] = {zero, parity, half, itself, all_but_first};
static chosen *const keys[] = {mixed, zero, downward, parity};

enum { N_COLORS = sizeof colors / sizeof colors[0], N_KEYS = sizeof keys / sizeof keys[0] };

/* Split `whole`, whose ranks are from[0..n), and check the part. *n_p is 0 if there is none. */
static lks_status split(lks_comm *whole, const int *from, int n, int c, int k, lks_comm **part_p,
                        int *ranks, int *n_p)
{
    const int color = colors[c](world.rank);
    LKS__TRY(lks_comm_split(whole, color, keys[k](world.rank), part_p));
    *n_p = color >= 0 ? collect(from, n, colors[c], keys[k], color, ranks) : 0;
    EXPECT((*part_p == NULL) == (color < 0));
    return color >= 0 ? check_part(*part_p, ranks, *n_p) : LKS_OK;
}

/* --- rows ------------------------------------------------------------------------------------- */

static const int everyone[MOST] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Over an engine, the keys other than the first only with one color: a part takes long to open. */
static lks_status each_split(void)
{
    const int n_keys = strcmp(engine, "shm") == 0 ? N_KEYS : 1;
    for (int c = 0; c < N_COLORS; c++)
        for (int k = 0; k < (c == 0 ? N_KEYS : n_keys); k++) {
            lks_comm *part;
            int ranks[MOST], n;
            LKS__TRY(split(comm, everyone, world.world_size, c, k, &part, ranks, &n));
            lks_comm_close(part);
        }
    return check_part(comm, everyone, world.world_size);
}

/* A split of a split of a split; all are used together, and closed in an order that `seed`
 * determines. */
static lks_status nested(unsigned seed)
{
    lks_comm *parts[4] = {comm};
    int ranks[4][MOST], n[4] = {world.world_size};
    memcpy(ranks[0], everyone, sizeof everyone);
    int depth = 0;
    for (; depth < 3 && n[depth] > 0; depth++)
        LKS__TRY(split(parts[depth], ranks[depth], n[depth], (int)(seed + (unsigned)depth) % 3,
                       (int)seed % N_KEYS, &parts[depth + 1], ranks[depth + 1], &n[depth + 1]));
    for (int left = depth + 1; left > 0; left--) {
        for (int i = 0; i <= depth; i++)
            if (parts[i] != NULL)
                LKS__TRY(check_part(parts[i], ranks[i], n[i]));
        const int i = (int)(seed * 3 + (unsigned)left * 5) % 4;
        for (int k = 0; k < 4; k++)
            if (parts[(i + k) % 4] != NULL) {
                lks_comm_close(parts[(i + k) % 4]);
                parts[(i + k) % 4] = NULL;
                break;
            }
    }
    comm = NULL;
    return LKS_OK;
}

static lks_status nested_0(void)
{
    return nested(0);
}

static lks_status nested_1(void)
{
    return nested(1);
}

static lks_status nested_2(void)
{
    return nested(2);
}

/* Calls of each of two threads. Over an engine each sends messages between all hosts. */
static int n_calls(void)
{
    return strcmp(engine, "shm") == 0 ? 200 : 50;
}

/* Another thread uses the part while this one uses the group. */
static void *use_part(void *part)
{
    float x = 1;
    lks_status st = LKS_OK;
    for (int i = 0; i < n_calls() && st == LKS_OK; i++)
        st = lks_comm_all_reduce(part, &x, 1, LKS_FLOAT32, LKS_MIN);
    return st == LKS_OK && x == 1 ? NULL : part;
}

static lks_status two_threads(void)
{
    lks_comm *part;
    pthread_t thread;
    void *failed;
    float x = 1;
    LKS__TRY(lks_comm_split(comm, world.rank % 2, 0, &part));
    EXPECT(pthread_create(&thread, NULL, use_part, part) == 0);
    lks_status st = LKS_OK;
    for (int i = 0; i < n_calls() && st == LKS_OK; i++)
        st = lks_comm_all_reduce(comm, &x, 1, LKS_FLOAT32, LKS_MIN);
    pthread_join(thread, &failed);
    lks_comm_close(part);
    EXPECT(failed == NULL);
    return st;
}

/* Split a group often. Returns NULL, or the group after a failure. */
static void *split_often(void *group)
{
    lks_comm *part;
    float x = 1;
    lks_status st = LKS_OK;
    for (int i = 0; i < 3 && st == LKS_OK; i++) {
        st = lks_comm_split(group, 0, 0, &part);
        LKS__THEN(st, lks_comm_all_reduce(part, &x, 1, LKS_FLOAT32, LKS_MIN));
        lks_comm_close(part);
    }
    if (st != LKS_OK)
        fprintf(stderr, "split_often: %s\n", lks_last_error());
    return st == LKS_OK ? NULL : group;
}

/* Two threads split two groups of the same ranks at the same time. */
static lks_status two_splits(void)
{
    lks_comm *other;
    pthread_t thread;
    void *failed;
    LKS__TRY(lks_comm_split(comm, 0, 0, &other));
    EXPECT(pthread_create(&thread, NULL, split_often, other) == 0);
    void *also = split_often(comm);
    pthread_join(thread, &failed);
    lks_comm_close(other);
    EXPECT(failed == NULL && also == NULL);
    return LKS_OK;
}

/* A part works for longer than the deadline while the others wait for it. */
static lks_status patient(void)
{
    lks_comm *group, *part, *inner;
    const double limit = 1.5 * lks_test_patience();
    const lks_comm_options o = {hosts_backend(engine), limit};
    LKS__TRY(lks_comm_open(&world, &o, &group));
    LKS__TRY(lks_comm_split(group, world.rank == 0 ? -1 : 0, 0, &part));
    if (part != NULL) {
        LKS__TRY(lks_comm_split(part, 0, 0, &inner));
        /* The first rank computes, the others wait for it. */
        for (int i = 0; i < 10 && lks_comm_rank(inner) == 0; i++) {
            lks_comm_beat(inner);
            usleep((useconds_t)(limit * 0.2e6));
        }
        LKS__TRY(lks_comm_barrier(inner));
        lks_comm_close(inner);
    }
    lks_status st = lks_comm_barrier(group);
    lks_comm_close(part);
    lks_comm_close(group);
    return st;
}

/* `own`: the library allocates the gradient. */
static lks_status train(bool own)
{
    lks_comm *part;
    lks_ddp *ddp;
    float w[100] = {0}, sums[100];
    const lks_param p = {"w", w, own ? NULL : sums, 100};
    const lks_ddp_options o = {.own_gradients = own};
    LKS__TRY(lks_comm_split(comm, world.rank % 2, 0, &part));
    LKS__TRY(lks_ddp_open(part, &p, 1, &o, &ddp));
    float *g = lks_ddp_gradient(ddp, 0);
    LKS__TRY(lks_ddp_begin(ddp, lks_ddp_first(ddp)));
    for (int i = 0; i < 100; i++)
        g[i] = (float)(world.rank % 2 + 1);
    LKS__TRY(lks_ddp_accumulate(ddp, 1));
    LKS__TRY(lks_ddp_step(ddp, NULL));
    EXPECT(g[99] == (float)(world.rank % 2 + 1));
    LKS__TRY(lks_ddp_verify(ddp));
    lks_comm_close(part); /* before the lks_ddp, on purpose */
    EXPECT(lks_ddp_step(ddp, NULL) == LKS_ERR_ARG);
    lks_ddp_close(ddp);
    return LKS_OK;
}

static lks_status train_with_own_gradients(void)
{
    return train(true);
}

static lks_status train_in_part(void)
{
    return train(false);
}

static lks_status another_call(void)
{
    lks_comm *part;
    if (world.world_size == 1)
        return LKS_OK;
    lks_status st = lks_comm_barrier(comm); /* run_row()'s calls have ended on all ranks */
    if (st == LKS_OK) /* a slow host may notice it in the call before, others in the one after */
        st = world.rank == 0 ? lks_comm_barrier(comm) : lks_comm_split(comm, 0, 0, &part);
    LKS__THEN(st, lks_comm_barrier(comm));
    EXPECT(st == LKS_ERR_ARG);
    EXPECT(strstr(lks_last_error(), "lks_comm_split") != NULL);
    EXPECT(strstr(lks_last_error(), "lks_comm_barrier") != NULL);
    return LKS_OK;
}

/* The last rank's memory for its part is refused: all get its status, and can go on. */
static lks_status refused(void)
{
    lks_comm *part;
    char who[32];
    if (world.rank == world.world_size - 1)
        setenv("LOCKSTEP_FAULT_RANK", getenv("RANK"), 1);
    lks_status st = lks_comm_split(comm, world.rank, 0, &part);
    setenv("LOCKSTEP_FAULT_RANK", "none", 1);
    EXPECT(st == LKS_ERR_NOMEM && part == NULL);
    snprintf(who, sizeof who, "rank %d: can't make", world.world_size - 1);
    EXPECT(strstr(lks_last_error(), who) != NULL);
    LKS__TRY(lks_comm_split(comm, 0, 0, &part));
    LKS__TRY(lks_comm_barrier(part));
    lks_comm_close(part);
    return LKS_OK;
}

/* A rank of the part is killed: the others of the part learn it, and those of the whole group. */
static lks_status killed(void)
{
    lks_comm *part;
    char said[64];
    const int last = world.world_size - 1;
    if (world.world_size < 3)
        return LKS_OK;
    LKS__TRY(lks_comm_split(comm, world.rank == 0 ? -1 : 0, 0, &part));
    const lks_status all = lks_comm_barrier(comm); /* the split has ended on all ranks */
    if (world.rank == last)
        kill(getpid(), SIGKILL);
    EXPECT(all == LKS_OK || all == LKS_ERR_PEER); /* a slow host may learn of the end here */
    if (part != NULL) {
        EXPECT(lks_comm_barrier(part) == LKS_ERR_PEER);
        if (strcmp(engine, "shm") == 0)
            snprintf(said, sizeof said, "rank %d (rank %d of its part, pid ", last, last - 1);
        else /* another host may know only its number in the part */
            snprintf(said, sizeof said, "rank %d", last - 1);
        if (all == LKS_OK && (strstr(lks_last_error(), said) == NULL ||
                              strstr(lks_last_error(), "; this is a part of a group: ") == NULL))
            return lks__fail(LKS_ERR_DIVERGED, "the part said: %s", lks_last_error());
    }
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    snprintf(said, sizeof said, "rank %d", last);
    if (strstr(lks_last_error(), said) == NULL)
        return lks__fail(LKS_ERR_DIVERGED, "the group said: %s", lks_last_error());
    lks_comm_close(part);
    return LKS_OK;
}

/* A rank of the part makes no progress, also in the whole group: that fails, too, so that the
 * launcher can name the rank. Both numbers are in the text. */
static lks_status hung(void)
{
    lks_comm *group, *part;
    char said[64];
    const int last = world.world_size - 1;
    const lks_comm_options o = {hosts_backend(engine), 1.5 * lks_test_patience()};
    if (strcmp(engine, "shm") != 0 || last < 2)
        return LKS_OK;
    snprintf(said, sizeof said, " from rank %d (rank %d of its part, pid ", last, last - 1);
    LKS__TRY(lks_comm_open(&world, &o, &group));
    LKS__TRY(lks_comm_split(group, world.rank == 0 ? -1 : 0, 0, &part));
    if (part != NULL && world.rank != last) {
        EXPECT(lks_comm_barrier(part) == LKS_ERR_TIMEOUT);
        EXPECT(strstr(lks_last_error(), said) != NULL);
    }
    for (int i = 0; i < lks_test_tries(30000); i++) /* nobody waits in the whole group */
        if (lks__segment_aborted(lks__shm_segment(group->host)))
            break;
        else
            usleep(1000);
    EXPECT(lks__segment_aborted(lks__shm_segment(group->host)));
    EXPECT(lks_comm_barrier(group) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), said) != NULL);
    lks_comm_close(part);
    lks_comm_close(group);
    return LKS_OK;
}

/* The whole group fails, and a rank therefore leaves the part: the others learn the reason. */
static lks_status left(void)
{
    lks_comm *group, *part;
    const int last = world.world_size - 1;
    const lks_comm_options o = {hosts_backend(engine), TIMEOUT_S * lks_test_patience()};
    if (strcmp(engine, "shm") != 0 || last < 2)
        return LKS_OK;
    LKS__TRY(lks_comm_open(&world, &o, &group));
    LKS__TRY(lks_comm_split(group, world.rank == 0 ? -1 : 0, 0, &part));
    if (world.rank == 0)
        lks_comm_abort(group, "the reason");
    EXPECT(lks_comm_barrier(group) == LKS_ERR_PEER || world.rank == 0);
    if (part != NULL && world.rank != last) {
        EXPECT(lks_comm_barrier(part) == LKS_ERR_PEER);
        EXPECT(strstr(lks_last_error(), "the reason") != NULL);
    }
    lks_comm_close(part);
    lks_comm_close(group);
    return LKS_OK;
}

/* Killed when this rank wants to connect to its part's other hosts; 0: none. */
static pid_t victim;

int connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    if (victim != 0 && to->sa_family == AF_INET)
        kill(victim, SIGKILL);
    return (int)syscall(SYS_connect, fd, to, bytes);
}

/* The last rank is killed. It may be the rank at which the part meets (`key`). The other part's
 * ranks call nothing for `idle_s`, so that none of them waits for the last rank on its host. */
static lks_status killed_connecting(int key, double idle_s, double known_s)
{
    lks_comm *part;
    char said[64];
    const int last = world.world_size - 1;
    const double start = lks__sys_now();
    victim = world.rank == last ? getpid() : 0;
    lks_status st = lks_comm_split(comm, world.rank % 2, key, &part);
    const double seconds = lks__sys_now() - start;
    if (world.rank % 2 == last % 2) {
        EXPECT(seconds < known_s * lks_test_patience());
    } else if (st == LKS_OK) {
        usleep((useconds_t)(idle_s * lks_test_patience() * 1e6));
        st = lks_comm_barrier(comm);
    }
    EXPECT(st == LKS_ERR_PEER);
    snprintf(said, sizeof said, "rank %d", last);
    if (strstr(lks_last_error(), said) == NULL)
        return lks__fail(LKS_ERR_DIVERGED, "the split said: %s", lks_last_error());
    lks_comm_close(part);
    return LKS_OK;
}

static lks_status killed_as_last(void)
{
    return killed_connecting(0, 3, 3);
}

static lks_status killed_as_first(void)
{
    return killed_connecting(-world.rank, 0, 8);
}

/* Rank 0, the first of its host, is killed while the host's last rank, the first of it in the part,
 * connects to the other hosts. */
static lks_status killed_meanwhile(void)
{
    lks_comm *part;
    const pid_t own = getpid();
    pid_t pids[MOST];
    LKS__TRY(lks_comm_all_gather(comm, &own, pids, 1, LKS_INT32));
    victim = world.rank == world.local_world_size - 1 ? pids[0] : 0;
    const double start = lks__sys_now();
    lks_status st = lks_comm_split(comm, 0, -world.rank, &part);
    victim = 0;
    if (st == LKS_OK) /* another host may have its part before it learns of the end */
        st = lks_comm_barrier(comm);
    const double seconds = lks__sys_now() - start;
    if (st != LKS_ERR_PEER || seconds >= 8 * lks_test_patience())
        return lks__fail(LKS_ERR_DIVERGED, "status %d after %.1f s: %s", st, seconds,
                         lks_last_error());
    if (strstr(lks_last_error(), "rank 0") == NULL)
        return lks__fail(LKS_ERR_DIVERGED, "the split said: %s", lks_last_error());
    return LKS_OK;
}

static const struct row {
    const char *name;
    lks_status (*run)(void);
    int code;      /* expected */
    bool fails;    /* the group fails, so mpirun ends all ranks */
    bool connects; /* only parts over Gloo connect */
} rows[] = {
    {"each split", each_split, 0, false, false},
    {"nested 0", nested_0, 0, false, false},
    {"nested 1", nested_1, 0, false, false},
    {"nested 2", nested_2, 0, false, false},
    {"two threads", two_threads, 0, false, false},
    {"two splits", two_splits, 0, false, false},
    {"patient", patient, 0, false, false},
    {"training in a part", train_in_part, 0, false, false},
    {"gradients of the library", train_with_own_gradients, 0, false, false},
    {"another call", another_call, 0, true, false},
    {"refused", refused, 0, false, false},
    {"hung", hung, 0, true, false},
    {"left", left, 0, true, false},
    {"killed", killed, 128 + SIGKILL, true, false},
    {"killed as last", killed_as_last, 128 + SIGKILL, true, true},
    {"killed as first", killed_as_first, 128 + SIGKILL, true, true},
    {"killed while another opens", killed_meanwhile, 128 + SIGKILL, true, true},
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Rows that leave ranks and group sound share the processes: with MPI a start takes long. */
static const char sound[] = "sound";

static bool is_sound(const struct row *row)
{
    return row->code == 0 && !row->fails;
}

/* In a group of its own. */
static lks_status run_row(const struct row *row)
{
    const lks_comm_options o = {hosts_backend(engine), TIMEOUT_S * lks_test_patience()};
    const int host = atoi(getenv("GROUP_RANK"));
    lks_status st = lks_comm_open(&world, &o, &comm);
    LKS__THEN(st, lks_comm_all_gather(comm, &host, hosts_of, 1, LKS_INT32));
    LKS__THEN(st, row->run());
    if (st != LKS_OK)
        fprintf(stderr, "%s, rank %d: %s\n", row->name, world.rank, lks_last_error());
    lks_comm_close(comm);
    comm = NULL;
    return st;
}

/* `ENGINE --rank NAME`, where NAME may be `sound` */
static int be_rank(const char *name)
{
    setenv("LOCKSTEP_FAULT", "memfd:*:EMFILE", 1);
    setenv("LOCKSTEP_FAULT_RANK", "none", 1); /* until refused() */
    lks_status st = lks_world_from_env(&world);
    for (int i = 0; i < N_ROWS && st == LKS_OK; i++)
        if (strcmp(rows[i].name, name) == 0 || (strcmp(name, sound) == 0 && is_sound(&rows[i])))
            st = run_row(&rows[i]);
    return st != LKS_OK;
}

static void expect(const char *hosts, const char *name, int want)
{
    const char *const args[] = {"/proc/self/exe", engine, "--rank", name, NULL};
    const int code = hosts_run(engine, hosts, args);
    if (code != want)
        fail_msg("%s over %s, hosts %s: exit code %d", name, engine, hosts, code);
}

static void run_rows(const char *hosts)
{
    expect(hosts, sound, 0);
    for (int i = 0; i < N_ROWS; i++)
        if (!is_sound(&rows[i]) && (rows[i].code == 0 || hosts_world(hosts) >= 3) &&
            (!rows[i].connects || strcmp(engine, "gloo") == 0) &&
            (!rows[i].fails || strcmp(hosts_backend(engine), "mpi") != 0))
            expect(hosts, rows[i].name, rows[i].code);
}

TEST(test_rows)
{
    static const char *const one_host[] = {"1", "2", "3", "4", "8", NULL};
    static const char *const several[] = {"212", "2222", NULL};
    for (const char *const *h = strcmp(engine, "shm") == 0 ? one_host : several; *h != NULL; h++)
        run_rows(*h);
}

/* Without lockstep's launcher. */
TEST(test_at_master)
{
    const char *const args[] = {"/proc/self/exe", engine, "--rank", "nested 2", NULL};
    if (strcmp(engine, "gloo") == 0)
        assert_int_equal(hosts_run_at_master("212", args), 0);
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    engine = argc > 1 ? argv[1] : "shm";
    if (argc == 4 && strcmp(argv[2], "--rank") == 0)
        return be_rank(argv[3]);
    if (argc > 1)
        hosts_need(engine);
    return lks_test_run_all(NULL, NULL);
}
