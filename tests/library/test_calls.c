/* Each call of the library that communicates, on three ranks: with 0, 1, an odd number of elements
 * and 16 MB, which is more than an engine has in progress; and with a rank that is killed before
 * the call, inside it, or while calls follow each other. Then the others name that rank within
 * seconds, and no file is left. The argument `gloo` or `mpi` takes several hosts. A function of the
 * public headers that is in no list here is an error. */
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/hosts.h"
#include "lockstep/lockstep.h"

enum { W = 3, LARGE = 4 << 20, SOME = 1 << 18, PARAM = 100003, AT_ONCE = 6, WRONG = 3 };

static const double TIMEOUT_S = 30, KNOWN_S = 8;
static const char *engine, *folder;

/* What all calls use. */
struct use {
    lks_comm *comm;
    lks_ddp *ddp;
    lks_optimizer *optimizer;
    lks_param param;
    int rank;
    float *x, *all;            /* [n], [W * n] */
    void *common;              /* [n] floats that all ranks of a host see */
    void *part, *sums;         /* for a reduction: [n] floats of this rank, and a double of all */
    char dir[256], saved[256]; /* a checkpoint to load, a folder to save to */
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

static lks_status started(struct use *u, size_t n)
{
    lks_work *work;
    bool done;
    fill(u->x, n, (float)(u->rank + 1));
    LKS__TRY(lks_comm_all_reduce_start(u->comm, u->x, n, LKS_FLOAT32, LKS_MEAN, &work));
    (void)lks_work_test(work, &done); /* its status is that of the wait */
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

static lks_status reduce(struct use *u, size_t n)
{
    const lks_part part = {{0, u->rank}, u->part};
    const size_t blocks[] = {0, n};
    const lks_reduction r = {.n_leaves = W,
                             .parts = &part,
                             .n_parts = 1,
                             .scale = 1,
                             .count = n,
                             .block_start = blocks,
                             .n_blocks = 1,
                             .block_sumsq = u->sums,
                             .dst = u->common};
    lks_work *work;
    fill(u->part, n, (float)(u->rank + 1));
    LKS__TRY(lks_comm_reduce_start(u->comm, &r, &work));
    const lks_status st = lks_comm_progress(u->comm);
    LKS__TRY(lks_work_wait(work));
    LKS__TRY(st);
    EXPECT(is_all(u->common, n, 6));
    return lks_comm_barrier(u->comm); /* before a rank writes to `common` again */
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

/* The library's gradients, which are sent as soon as they are marked. */
static lks_status ddp_own(struct use *u, size_t n)
{
    const lks_param p = {"p", u->param.value, NULL, PARAM};
    const lks_ddp_options o = {.own_gradients = true};
    lks_ddp *ddp;
    LKS__TRY(lks_ddp_open(u->comm, &p, 1, &o, &ddp));
    float *gradient = lks_ddp_gradient(ddp, 0);
    lks_status st = lks_ddp_begin(ddp, lks_ddp_first(ddp));
    fill(gradient, PARAM, (float)u->rank);
    LKS__THEN(st, lks_ddp_mark_ready(ddp, 0));
    LKS__THEN(st, lks_ddp_accumulate(ddp, 1));
    LKS__THEN(st, lks_ddp_step(ddp, NULL));
    const bool right = st != LKS_OK || is_all(gradient, PARAM, 1);
    lks_ddp_close(ddp);
    LKS__TRY(st);
    EXPECT(right);
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

static lks_optimizer_param updated(const struct use *u)
{
    return (lks_optimizer_param){"p", u->param.value, u->param.grad, LKS_PARAM_VECTOR, PARAM, 1};
}

static lks_status optimizer_open(struct use *u, size_t n)
{
    const lks_optimizer_param p = updated(u);
    lks_optimizer *optimizer;
    LKS__TRY(lks_optimizer_open(u->comm, LKS_ADAMW, &p, 1, &optimizer));
    lks_optimizer_close(optimizer);
    return LKS_OK;
}

static lks_status optimizer_step(struct use *u, size_t n)
{
    const lks_rates rates = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8}; /* changes no value */
    return lks_optimizer_step(u->optimizer, &rates);
}

static lks_status optimizer_state(struct use *u, size_t n)
{
    const lks_tensor *state;
    size_t count;
    LKS__TRY(lks_optimizer_state(u->optimizer, &state, &count));
    EXPECT(count == 3);
    return LKS_OK;
}

static lks_tensor common_tensor(const struct use *u)
{
    return (lks_tensor){"t", LKS_FLOAT32, 1, {PARAM}, u->param.value};
}

/* Each rank has its own number of elements. */
static lks_tensor own_tensor(const struct use *u)
{
    return (lks_tensor){"own", LKS_FLOAT32, 1, {(uint64_t)u->rank + 1}, u->x};
}

static lks_status save(struct use *u, const char *dir)
{
    const lks_tensor t = common_tensor(u), own = own_tensor(u);
    const lks_checkpoint_more more = {&own, 1, "[1]"};
    u->x[u->rank] = (float)u->rank;
    return lks_checkpoint_save_more(u->comm, dir, 2, &t, 1, &more, 0);
}

static lks_status checkpoint_save(struct use *u, size_t n)
{
    const lks_tensor t = common_tensor(u);
    return lks_checkpoint_save(u->comm, u->saved, 1, &t, 1, 0);
}

static lks_status checkpoint_save_more(struct use *u, size_t n)
{
    return save(u, u->saved);
}

static lks_status checkpoint_load(struct use *u, size_t n)
{
    const lks_tensor t = common_tensor(u);
    bool found;
    LKS__TRY(lks_checkpoint_load(u->comm, u->dir, &t, 1, NULL, &found));
    EXPECT(found);
    return LKS_OK;
}

static lks_status checkpoint_load_more(struct use *u, size_t n)
{
    const lks_tensor t = common_tensor(u), own = own_tensor(u);
    const lks_checkpoint_more more = {&own, 1, NULL};
    u->x[u->rank] = -1;
    LKS__TRY(lks_checkpoint_load_more(u->comm, u->dir, &t, 1, &more, NULL, NULL));
    EXPECT(u->x[u->rank] == (float)u->rank);
    return LKS_OK;
}

static lks_status checkpoint_list(struct use *u, size_t n)
{
    lks_tensor *list;
    size_t count;
    LKS__TRY(lks_checkpoint_list(u->comm, u->dir, &list, &count, NULL));
    const bool right = count == 1 + W && strcmp(list[W].name, "own@2") == 0;
    free(list);
    EXPECT(right);
    return LKS_OK;
}

static lks_status checkpoint_json(struct use *u, size_t n)
{
    char *json;
    LKS__TRY(lks_checkpoint_json(u->comm, u->dir, &json, NULL));
    const bool right = json != NULL && strcmp(json, "[1]") == 0;
    free(json);
    EXPECT(right);
    return LKS_OK;
}

static const struct call {
    const char *name;
    lks_status (*run)(struct use *u, size_t n);
    const char *functions; /* that it calls */
} calls[] = {
    {"barrier", barrier, "lks_comm_barrier"},
    {"broadcast", broadcast, "lks_comm_broadcast"},
    {"all_gather", all_gather, "lks_comm_all_gather"},
    {"all_gather_v", all_gather_v, "lks_comm_all_gather_v"},
    {"sum", sum, "lks_comm_all_reduce"},
    {"started", started, "lks_comm_all_reduce_start lks_work_test lks_work_wait"},
    {"reduce_scatter", reduce_scatter, "lks_comm_reduce_scatter"},
    {"split", split, "lks_comm_split"},
    {"alloc", alloc, "lks_comm_alloc"},
    {"replicate", replicate, "lks_comm_replicate"},
    {"gather_shares", gather_shares, "lks_comm_gather_shares"},
    {"reduce", reduce, "lks_comm_reduce_start lks_comm_progress lks_work_wait"},
    {"ddp_open", ddp_open, "lks_ddp_open"},
    {"ddp_step", ddp_step, "lks_ddp_begin lks_ddp_accumulate lks_ddp_step"},
    {"ddp_own", ddp_own, "lks_ddp_mark_ready lks_ddp_accumulate lks_ddp_step"},
    {"ddp_broadcast", ddp_broadcast, "lks_ddp_broadcast"},
    {"ddp_verify", ddp_verify, "lks_ddp_verify"},
    {"optimizer_open", optimizer_open, "lks_optimizer_open"},
    {"optimizer_step", optimizer_step, "lks_optimizer_step"},
    {"optimizer_state", optimizer_state, "lks_optimizer_state"},
    {"checkpoint_save", checkpoint_save, "lks_checkpoint_save"},
    {"checkpoint_save_more", checkpoint_save_more, "lks_checkpoint_save_more"},
    {"checkpoint_load", checkpoint_load, "lks_checkpoint_load"},
    {"checkpoint_load_more", checkpoint_load_more, "lks_checkpoint_load_more"},
    {"checkpoint_list", checkpoint_list, "lks_checkpoint_list"},
    {"checkpoint_json", checkpoint_json, "lks_checkpoint_json"},
};

/* Functions that wait for no other rank. Opening a group waits, but a rank that ends before it has
 * joined is its launcher's to report (tests/launch). */
static const char silent[] =
    "lks_comm_open lks_comm_init lks_world_from_env "
    "lks_comm_close lks_comm_abort lks_comm_note lks_comm_beat lks_comm_rank lks_comm_world_size "
    "lks_comm_world lks_comm_backend lks_comm_leader lks_comm_peer lks_comm_drop "
    "lks_comm_host_share lks_comm_take_wait_s "
    "lks_ddp_close lks_ddp_first lks_ddp_end lks_ddp_add_loss lks_ddp_clip lks_ddp_gradient "
    "lks_ddp_used "
    "lks_optimizer_close "
    "lks_sampler_open lks_sampler_close lks_sampler_set_epoch lks_sampler_count lks_sampler_index "
    "lks_lr_cosine lks_lr_warmdown "
    "lks_dtype_bytes lks_dtype_name lks_status_text lks_version lks_last_error ";

enum { N_CALLS = sizeof calls / sizeof calls[0] };

/* --- ranks ------------------------------------------------------------------------------------ */

static lks_status open_use(struct use *u, size_t n)
{
    lks_world world;
    const lks_comm_options o = {hosts_backend(engine), TIMEOUT_S * lks_test_patience()};
    LKS__TRY(lks_world_from_env(&world));
    LKS__TRY(lks_comm_open(&world, &o, &u->comm));
    u->rank = lks_comm_rank(u->comm);
    u->x = malloc(n * sizeof *u->x);
    u->all = malloc(W * n * sizeof *u->all);
    u->param = (lks_param){"p", calloc(PARAM, sizeof(float)), calloc(PARAM, sizeof(float)), PARAM};
    EXPECT(u->x != NULL && u->all != NULL && u->param.value != NULL && u->param.grad != NULL);
    LKS__TRY(lks_comm_alloc(u->comm, LKS_MEM_COMMON, n * sizeof(float), &u->common));
    LKS__TRY(lks_comm_alloc(u->comm, LKS_MEM_OWN, n * sizeof(float), &u->part));
    LKS__TRY(lks_comm_alloc(u->comm, LKS_MEM_COMMON, sizeof(double), &u->sums));
    LKS__TRY(lks_ddp_open(u->comm, &u->param, 1, NULL, &u->ddp));
    const lks_optimizer_param updates = updated(u);
    LKS__TRY(lks_optimizer_open(u->comm, LKS_ADAMW, &updates, 1, &u->optimizer));
    LKS__TRY(save(u, u->dir));
    return lks_comm_barrier(u->comm);
}

static void close_use(struct use *u)
{
    lks_optimizer_close(u->optimizer);
    lks_ddp_close(u->ddp);
    lks_comm_close(u->comm);
    lks_test_free(u->x, u->all, u->param.value, u->param.grad);
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

/* Children that live until run_row() deletes `dir`: a forked one, and a program. They keep whatever
 * a child inherits. */
static void leave_children(const char *dir)
{
    if (fork() == 0) {
        while (access(dir, F_OK) == 0)
            usleep(100 * 1000);
        _exit(0);
    }
    if (fork() == 0) {
        execlp("sh", "sh", "-c", "while [ -e \"$1\" ]; do sleep 0.1; done", "sh", dir,
               (char *)NULL);
        _exit(127);
    }
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
 * others, which call once it has ended; `between`: all call again and again. */
static lks_status with_victim(struct use *u, const struct call *call, const char *when, int victim,
                              const char *children)
{
    static const double seconds = 0.2;
    const bool mine = u->rank == victim, again = strcmp(when, "between") == 0;
    const int lock = open(u->dir, O_RDONLY | O_CLOEXEC);
    pthread_t thread;
    if (mine)
        EXPECT(flock(lock, LOCK_EX) == 0);
    LKS__TRY(lks_comm_barrier(u->comm));
    if (mine && strcmp(when, "before") == 0 && strcmp(hosts_backend(engine), "mpi") != 0)
        leave_children(children);
    if (mine)
        EXPECT(pthread_create(&thread, NULL, killer, (void *)(uintptr_t)&seconds) == 0);
    while (mine && strcmp(when, "before") == 0)
        pause();
    if (strcmp(when, "inside") == 0 && !mine)
        EXPECT(flock(lock, LOCK_SH) == 0);
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
    snprintf(u.saved, sizeof u.saved, "%s/saved", argv[3]);
    if (argc == 5) {
        st = all_sizes(&u);
    } else {
        const struct call *call = calls;
        while (strcmp(call->name, argv[4]) != 0)
            call++;
        st = open_use(&u, SOME);
        LKS__THEN(st, with_victim(&u, call, argv[5], atoi(argv[6]),
                                  lks_test_text("%s/children", argv[3])));
    }
    if (st != LKS_OK)
        fprintf(stderr, "%s %s, rank %d: %s\n", argv[4], argc > 5 ? argv[5] : "", u.rank,
                lks_last_error());
    close_use(&u);
    snprintf(ok, sizeof ok, "%s/ok%d", argv[3], u.rank);
    if (st == LKS_OK)
        close(open(ok, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    return st == LKS_OK ? 0 : WRONG;
}

/* --- tests ------------------------------------------------------------------------------------ */

static const char *divided(void)
{
    return strcmp(engine, "shm") == 0 ? "3" : "21";
}

TEST(test_sizes)
{
    char dir[300];
    snprintf(dir, sizeof dir, "%s/sizes", folder);
    assert_int_equal(lks__sys_mkdir(dir, 0700), 0);
    const char *const args[] = {"/proc/self/exe", engine, "--rank", dir, "sizes", NULL};
    assert_int_equal(hosts_run(engine, divided(), args), 0);
}

/* Its launcher ends all ranks as soon as it notices an end: the victim's, or first (code 1) that of
 * a rank which has seen the loss, and then doesn't call MPI_Finalize(). */
static bool by_mpirun(void)
{
    return strcmp(hosts_backend(engine), "mpi") == 0;
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
    const char *children = lks_test_text("%s/children", dir);
    if (lks__sys_mkdir(children, 0700) != 0)
        return 2;
    const double start = lks__sys_now();
    const int code = hosts_run(engine, divided(), args);
    (void)lks__sys_rmdir(children);
    const double seconds = lks__sys_now() - start;
    for (int r = 0; r < W; r++) {
        snprintf(ok, sizeof ok, "%s/ok%d", dir, r);
        n += r != victim && access(ok, F_OK) == 0;
    }
    if (by_mpirun()) {
        const bool right = code == 128 + SIGKILL || (code == 1 && n > 0);
        if (right && seconds < TIMEOUT_S * lks_test_patience())
            return 0;
        fprintf(stderr, "%s, rank %d killed %s: mpirun ended with %d after %.0f s\n", call->name,
                victim, when, code, seconds);
        return 1;
    }
    if (n != W - 1)
        fprintf(stderr, "%s, rank %d killed %s: %d ranks saw what they should\n", call->name,
                victim, when, n);
    return n != W - 1;
}

/* Wait for one of the rows, and return its index. As the first process of a container, this one
 * also inherits children of mpirun. */
static int reap(pid_t rows[AT_ONCE], int *failed)
{
    int status;
    for (;;) {
        const pid_t pid = wait(&status);
        assert_true(pid > 0);
        for (int i = 0; i < AT_ONCE; i++)
            if (rows[i] == pid) {
                rows[i] = 0;
                *failed += status != 0;
                return i;
            }
    }
}

TEST(test_killed)
{
    static const char *const whens[] = {"before", "inside", "between"};
    pid_t rows[AT_ONCE] = {0};
    int running = 0, failed = 0;
    fflush(NULL);
    for (int i = 0; i < N_CALLS * 3; i++) {
        if (by_mpirun() && i % 3 != i / 3 % 3)
            continue;
        const int row = running < AT_ONCE ? running++ : reap(rows, &failed);
        rows[row] = fork();
        assert_true(rows[row] >= 0);
        if (rows[row] == 0)
            _exit(run_row(&calls[i / 3], whens[i % 3], (i + i / 3) % W));
    }
    for (; running > 0; running--)
        reap(rows, &failed);
    assert_int_equal(failed, 0);
}

static bool has_word(const char *words, const char *word, size_t n)
{
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

/* Each function that a public header names is either called here or listed as silent. */
TEST(test_all_functions)
{
    glob_t headers;
    int found = 0;
    assert_int_equal(glob(LKS_TEST_SOURCE_DIR "/include/lockstep/*.h", 0, NULL, &headers), 0);
    for (size_t i = 0; i < headers.gl_pathc; i++) {
        size_t bytes;
        for (const char *at = lks_test_read(headers.gl_pathv[i], &bytes);
             (at = strstr(at, "lks_")) != NULL;) {
            const size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)n, at);
            at += n;
            if (*at != '(')
                continue;
            bool called = false;
            for (int c = 0; c < N_CALLS; c++)
                called |= has_word(calls[c].functions, name, n);
            if (called == has_word(silent, name, n))
                fail_msg("%s is %s", name,
                         called
                             ? "called, and listed as silent"
                             : "neither called with a rank that is killed, nor listed as silent");
            found++;
        }
    }
    globfree(&headers);
    assert_true(found > 60);
}

static const char *shm_before = ""; /* names_in_shm() before the tests */

/* New names of lockstep in /dev/shm: not those of tests that run at the same time, of Open MPI on a
 * host called lockstep, or of other users. */
static const char *names_in_shm(void)
{
    struct stat info;
    const char *names = " ";
    DIR *d = opendir("/dev/shm");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "lockstep-test-", 14) != 0 &&
            strncmp(e->d_name, "vader_segment.", 14) != 0 &&
            (strstr(e->d_name, "lockstep") != NULL || strstr(e->d_name, "lks") != NULL) &&
            strstr(shm_before, lks_test_text(" %s ", e->d_name)) == NULL &&
            fstatat(dirfd(d), e->d_name, &info, 0) == 0 && info.st_uid == geteuid())
            names = lks_test_text("%s%s ", names, e->d_name);
    if (d != NULL)
        closedir(d);
    return names;
}

TEST(test_nothing_left)
{
    assert_string_equal(names_in_shm(), " ");
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    engine = argc > 1 ? argv[1] : "shm";
    if (argc > 3 && strcmp(argv[2], "--rank") == 0)
        return be_rank(argc, argv);
    if (argc > 1)
        hosts_need(engine);
    folder = lks_test_folder();
    shm_before = names_in_shm();
    return lks_test_run_all(NULL, NULL);
}
