/* Each collective call of the library, on three ranks: with 0, 1, an odd number of elements and 64
 * MB; and with a rank that is killed before the call, inside it, or while calls follow each other.
 * Then the others learn which rank it was, within seconds, and nothing is left behind. The argument
 * `gloo` or `mpi` takes several hosts. */
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/hosts.h"
#include "lockstep/lockstep.h"

enum { W = 3, LARGE = 16 << 20, SOME = 1 << 18, PARAM = 100003, AT_ONCE = 6 };

static const double TIMEOUT_S = 30, KNOWN_S = 8;
static const char *engine, *folder;

/* What all calls use. */
struct use {
    lks_comm *comm;
    lks_ddp *ddp;
    lks_param param;
    int rank;
    float *x, *all; /* [n], [W * n] */
    void *common;   /* [n] floats that all ranks of a host see */
    char dir[256];
};

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return lks__fail(LKS_ERR_DIVERGED, "line %d: %s", __LINE__, #condition);               \
    } while (0)

static void fill(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value;
}

static bool is_all(const float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != value)
            return false;
    return true;
}

/* --- calls; n elements ------------------------------------------------------------------------ */

static lks_status barrier(struct use *u, size_t n)
{
    return lks_comm_barrier(u->comm);
}

static lks_status broadcast(struct use *u, size_t n)
{
    fill(u->x, n, (float)u->rank);
    LKS__TRY(lks_comm_broadcast(u->comm, u->x, n, LKS_FLOAT32, W - 1));
    EXPECT(is_all(u->x, n, W - 1));
    return LKS_OK;
}

static lks_status all_gather(struct use *u, size_t n)
{
    fill(u->x, n, (float)u->rank);
    LKS__TRY(lks_comm_all_gather(u->comm, u->x, u->all, n, LKS_FLOAT32));
    for (size_t r = 0; r < W; r++)
        EXPECT(is_all(u->all + r * n, n, (float)r));
    return LKS_OK;
}

static lks_status all_gather_v(struct use *u, size_t n)
{
    const size_t counts[W] = {n, n / 2, n - n / 2};
    fill(u->x, n, (float)u->rank);
    LKS__TRY(lks_comm_all_gather_v(u->comm, u->x, u->all, counts, LKS_FLOAT32));
    EXPECT(is_all(u->all, n, 0) && is_all(u->all + n, n / 2, 1) &&
           is_all(u->all + n + n / 2, n - n / 2, 2));
    return LKS_OK;
}

static lks_status sum(struct use *u, size_t n)
{
    fill(u->x, n, (float)(u->rank + 1));
    LKS__TRY(lks_comm_all_reduce(u->comm, u->x, n, LKS_FLOAT32, LKS_SUM));
    EXPECT(is_all(u->x, n, 6));
    return LKS_OK;
}

static lks_status product(struct use *u, size_t n)
{
    fill(u->x, n, (float)(u->rank + 2));
    LKS__TRY(lks_comm_all_reduce(u->comm, u->x, n, LKS_FLOAT32, LKS_PROD));
    EXPECT(is_all(u->x, n, 24));
    return LKS_OK;
}

static lks_status started(struct use *u, size_t n)
{
    lks_work *work;
    fill(u->x, n, (float)(u->rank + 1));
    LKS__TRY(lks_comm_all_reduce_start(u->comm, u->x, n, LKS_FLOAT32, LKS_MEAN, &work));
    LKS__TRY(lks_work_wait(work));
    EXPECT(is_all(u->x, n, 2));
    return LKS_OK;
}

static lks_status reduce_scatter(struct use *u, size_t n)
{
    fill(u->all, W * n, (float)(u->rank + 1));
    LKS__TRY(lks_comm_reduce_scatter(u->comm, u->all, u->x, n, LKS_FLOAT32, LKS_SUM));
    EXPECT(is_all(u->x, n, 6));
    return LKS_OK;
}

static lks_status split(struct use *u, size_t n)
{
    lks_comm *part;
    LKS__TRY(lks_comm_split(u->comm, 0, -u->rank, &part));
    const int rank = lks_comm_rank(part);
    lks_comm_close(part);
    EXPECT(rank == W - 1 - u->rank);
    return LKS_OK;
}

static lks_status alloc(struct use *u, size_t n)
{
    void *mem;
    return lks_comm_alloc(u->comm, LKS_MEM_COMMON, 1000, &mem);
}

static lks_status replicate(struct use *u, size_t n)
{
    return lks_comm_replicate(u->comm, u->common, n * sizeof(float));
}

static lks_status gather_shares(struct use *u, size_t n)
{
    const size_t start[] = {0, n / 2 * sizeof(float), n * sizeof(float)};
    return lks_comm_gather_shares(u->comm, u->common, start, 2, 0);
}

static lks_status ddp_open(struct use *u, size_t n)
{
    lks_ddp *ddp;
    LKS__TRY(lks_ddp_open(u->comm, &u->param, 1, NULL, &ddp));
    lks_ddp_close(ddp);
    return LKS_OK;
}

static lks_status ddp_step(struct use *u, size_t n)
{
    LKS__TRY(lks_ddp_begin(u->ddp, lks_ddp_first(u->ddp)));
    fill(u->param.grad, PARAM, (float)u->rank);
    LKS__TRY(lks_ddp_accumulate(u->ddp, 1));
    LKS__TRY(lks_ddp_step(u->ddp, NULL));
    EXPECT(is_all(u->param.grad, PARAM, 1));
    return LKS_OK;
}

static lks_status ddp_broadcast(struct use *u, size_t n)
{
    return lks_ddp_broadcast(u->ddp);
}

static lks_status ddp_verify(struct use *u, size_t n)
{
    return lks_ddp_verify(u->ddp);
}

static lks_status checkpoint_save(struct use *u, size_t n)
{
    const lks_tensor t = {"t", LKS_FLOAT32, 1, {PARAM}, u->param.value};
    return lks_checkpoint_save(u->comm, u->dir, 2, &t, 1, 0);
}

static lks_status checkpoint_load(struct use *u, size_t n)
{
    const lks_tensor t = {"t", LKS_FLOAT32, 1, {PARAM}, u->param.value};
    bool found;
    LKS__TRY(lks_checkpoint_load(u->comm, u->dir, &t, 1, NULL, &found));
    EXPECT(found);
    return LKS_OK;
}

static const struct call {
    const char *name;
    lks_status (*run)(struct use *u, size_t n);
} calls[] = {
    {"barrier", barrier},
    {"broadcast", broadcast},
    {"all_gather", all_gather},
    {"all_gather_v", all_gather_v},
    {"sum", sum},
    {"product", product},
    {"started", started},
    {"reduce_scatter", reduce_scatter},
    {"split", split},
    {"alloc", alloc},
    {"replicate", replicate},
    {"gather_shares", gather_shares},
    {"ddp_open", ddp_open},
    {"ddp_step", ddp_step},
    {"ddp_broadcast", ddp_broadcast},
    {"ddp_verify", ddp_verify},
    {"checkpoint_save", checkpoint_save},
    {"checkpoint_load", checkpoint_load},
};

enum { N_CALLS = sizeof calls / sizeof calls[0] };

/* --- ranks ------------------------------------------------------------------------------------ */

static lks_status open_use(struct use *u, size_t n)
{
    lks_world world;
    const lks_comm_options o = {hosts_backend(engine), TIMEOUT_S * lks_test_patience()};
    lks_tensor saved = {"t", LKS_FLOAT32, 1, {PARAM}, NULL};
    LKS__TRY(lks_world_from_env(&world));
    LKS__TRY(lks_comm_open(&world, &o, &u->comm));
    u->rank = lks_comm_rank(u->comm);
    u->x = malloc(n * sizeof *u->x);
    u->all = malloc(W * n * sizeof *u->all);
    u->param = (lks_param){"p", calloc(PARAM, sizeof(float)), calloc(PARAM, sizeof(float)), PARAM};
    EXPECT(u->x != NULL && u->all != NULL && u->param.value != NULL && u->param.grad != NULL);
    LKS__TRY(lks_comm_alloc(u->comm, LKS_MEM_COMMON, n * sizeof(float), &u->common));
    LKS__TRY(lks_ddp_open(u->comm, &u->param, 1, NULL, &u->ddp));
    saved.data = u->param.value;
    LKS__TRY(lks_checkpoint_save(u->comm, u->dir, 1, &saved, 1, 0));
    return lks_comm_barrier(u->comm);
}

static void close_use(struct use *u)
{
    lks_ddp_close(u->ddp);
    lks_comm_close(u->comm);
    free(u->x);
    free(u->all);
    free(u->param.value);
    free(u->param.grad);
}

/* `--rank sizes` */
static lks_status all_sizes(struct use *u)
{
    static const size_t sizes[] = {0, 1, 70001, LARGE};
    LKS__TRY(open_use(u, LARGE));
    for (int i = 0; i < N_CALLS; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            const lks_status st = calls[i].run(u, sizes[k]);
            if (st == LKS_OK)
                continue;
            lks__fail_in(st, "%s of %zu elements", calls[i].name, sizes[k]);
            return st;
        }
    return LKS_OK;
}

static void *killer(void *seconds)
{
    usleep((useconds_t)(*(const double *)seconds * 1e6));
    kill(getpid(), SIGKILL);
    return NULL;
}

/* True if a message names this rank, or a host's ranks with it. */
static bool is_named(const char *text, int rank)
{
    int first, last;
    for (const char *at = text; (at = strstr(at, "rank")) != NULL; at++)
        if ((sscanf(at, "rank %d", &first) == 1 && first == rank) ||
            (sscanf(at, "ranks %d to %d", &first, &last) == 2 && first <= rank && rank <= last))
            return true;
    return false;
}

/* `--rank CALL WHEN VICTIM`: `before`: the victim doesn't call; `inside`: it waits inside for the
 * others; `between`: all call again and again. */
static lks_status with_victim(struct use *u, const struct call *call, const char *when, int victim)
{
    static const double seconds = 0.2;
    const bool mine = u->rank == victim, again = strcmp(when, "between") == 0;
    pthread_t thread;
    if (mine)
        EXPECT(pthread_create(&thread, NULL, killer, (void *)(uintptr_t)&seconds) == 0);
    while (mine && strcmp(when, "before") == 0)
        pause();
    if (strcmp(when, "inside") == 0 && !mine)
        usleep((useconds_t)(2 * seconds * 1e6));
    const double start = lks__sys_now();
    lks_status st = LKS_OK;
    do
        st = call->run(u, SOME);
    while (st == LKS_OK && (again || mine));
    if (st == LKS_OK) /* the victim had to arrive only, as in a barrier */
        st = lks_comm_barrier(u->comm);
    if (st != LKS_ERR_PEER || !is_named(lks_last_error(), victim))
        return lks__fail(LKS_ERR_DIVERGED, "status %d: %s", st, lks_last_error());
    EXPECT(lks__sys_now() - start < KNOWN_S * lks_test_patience());
    EXPECT(lks_comm_barrier(u->comm) == LKS_ERR_PEER); /* the group has failed */
    return LKS_OK;
}

/* `ENGINE --rank DIR sizes`, `ENGINE --rank DIR CALL WHEN VICTIM` */
static int be_rank(int argc, char **argv)
{
    struct use u = {.rank = -1};
    lks_status st;
    char ok[300];
    snprintf(u.dir, sizeof u.dir, "%s/out", argv[3]);
    if (argc == 5) {
        st = all_sizes(&u);
    } else {
        const struct call *call = calls;
        while (strcmp(call->name, argv[4]) != 0)
            call++;
        st = open_use(&u, SOME);
        if (st == LKS_OK)
            st = with_victim(&u, call, argv[5], atoi(argv[6]));
    }
    if (st != LKS_OK)
        fprintf(stderr, "%s %s, rank %d: %s\n", argv[4], argc > 5 ? argv[5] : "", u.rank,
                lks_last_error());
    close_use(&u);
    snprintf(ok, sizeof ok, "%s/ok%d", argv[3], u.rank);
    if (st == LKS_OK)
        close(open(ok, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    return st != LKS_OK;
}

/* --- tests ------------------------------------------------------------------------------------ */

static const char *divided(void)
{
    return strcmp(engine, "shm") == 0 ? "3" : "21";
}

static void test_sizes(void **state)
{
    char dir[300];
    snprintf(dir, sizeof dir, "%s/sizes", folder);
    assert_int_equal(lks__sys_mkdir(dir, 0700), 0);
    const char *const args[] = {"/proc/self/exe", engine, "--rank", dir, "sizes", NULL};
    assert_int_equal(hosts_run(engine, divided(), args), 0);
}

/* In a process of its own. Returns 0 if all ranks but the victim have seen what they should. */
static int run_row(const struct call *call, const char *when, int victim)
{
    char dir[300], number[16], ok[320];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/%s-%s", folder, call->name, when);
    snprintf(number, sizeof number, "%d", victim);
    if (lks__sys_mkdir(dir, 0700) != 0)
        return 2;
    const char *const args[] = {"/proc/self/exe", engine, "--rank", dir,
                                call->name,       when,   number,   NULL};
    hosts_run(engine, divided(), args);
    for (int r = 0; r < W; r++) {
        snprintf(ok, sizeof ok, "%s/ok%d", dir, r);
        n += r != victim && access(ok, F_OK) == 0;
    }
    if (n != W - 1)
        fprintf(stderr, "%s, rank %d killed %s: %d ranks saw what they should\n", call->name,
                victim, when, n);
    return n != W - 1;
}

static int reap(void)
{
    int status;
    wait(&status);
    return status != 0;
}

static void test_killed(void **state)
{
    static const char *const whens[] = {"before", "inside", "between"};
    int running = 0, failed = 0;
    fflush(NULL);
    for (int i = 0; i < N_CALLS * 3; i++) {
        if (running == AT_ONCE) {
            failed += reap();
            running--;
        }
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(run_row(&calls[i / 3], whens[i % 3], (i + i / 3) % W));
        running++;
    }
    for (; running > 0; running--)
        failed += reap();
    assert_int_equal(failed, 0);
}

static void test_nothing_left(void **state)
{
    DIR *d = opendir("/dev/shm");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "lockstep-test-", 14) != 0 && /* of tests that run beside this one */
            (strstr(e->d_name, "lockstep") != NULL || strstr(e->d_name, "lks") != NULL))
            fail_msg("/dev/shm/%s is left", e->d_name);
    if (d != NULL)
        closedir(d);
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    engine = argc > 1 ? argv[1] : "shm";
    if (argc > 3 && strcmp(argv[2], "--rank") == 0)
        return be_rank(argc, argv);
    if (argc > 1)
        hosts_need(engine);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    const struct CMUnitTest more[] = {cmocka_unit_test(test_killed),
                                      cmocka_unit_test(test_nothing_left)};
    folder = lks_test_folder();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (strcmp(hosts_backend(engine), "mpi") != 0) /* whose launcher kills all ranks */
        failed += cmocka_run_group_tests(more, NULL, NULL);
    return lks_test_exit(failed);
}
