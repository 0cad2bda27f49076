/* Groups in the life of a process: one after the other, several at the same time, in a forked
 * child, and under limits. Ranks are processes: of one host, or with the argument `gloo` or `mpi`
 * of several. */
#include "support.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/hosts.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment.h"
#include "lockstep/lockstep.h"

enum { N = 1 << 20 };

static const double TIMEOUT_S = 20;
static const char *engine;
static lks_world world;

static lks_status open_group(lks_comm **comm_p)
{
    lks_comm_options o = {hosts_backend(engine), TIMEOUT_S * lks_test_patience()};
    return lks_comm_open(&world, &o, comm_p);
}

static lks_status check_sum(lks_comm *comm)
{
    float x = 1;
    LKS__TRY(lks_comm_all_reduce(comm, &x, 1, LKS_FLOAT32, LKS_SUM));
    return x == (float)world.world_size ? LKS_OK : lks__fail(LKS_ERR_DIVERGED, "the sum is %g", x);
}

static lks_status step(lks_ddp *ddp)
{
    for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
        LKS__TRY(lks_ddp_begin(ddp, v));
        LKS__TRY(lks_ddp_accumulate(ddp, 1));
    }
    return lks_ddp_step(ddp, NULL);
}

/* --- rows ------------------------------------------------------------------------------------- */

static lks_status one_after_another(void)
{
    for (int i = 0; i < 4; i++) {
        lks_comm *comm;
        LKS__TRY(open_group(&comm));
        lks_status st = check_sum(comm);
        lks_comm_close(comm);
        LKS__TRY(st);
    }
    return LKS_OK;
}

static lks_status at_the_same_time(void)
{
    lks_comm *a, *b, *c;
    LKS__TRY(open_group(&a));
    LKS__TRY(open_group(&b));
    for (int i = 0; i < 3; i++) {
        LKS__TRY(check_sum(a));
        LKS__TRY(check_sum(b));
    }
    lks_comm_close(a);
    LKS__TRY(open_group(&c));
    LKS__TRY(check_sum(b));
    LKS__TRY(check_sum(c));
    lks_comm_close(b);
    LKS__TRY(check_sum(c));
    lks_comm_close(c);
    return LKS_OK;
}

/* Each call in a child is refused; returns the number of calls that aren't. */
static int use_in_child(lks_comm *comm, lks_ddp *ddp, float *value, lks_work *work)
{
    void *mem;
    float all[64];
    lks_comm *part;
    lks_ddp *other;
    lks_param p = {"p", value, value + N, N};
    lks_tensor t = {"t", LKS_FLOAT32, 0, {0}, value}, *list;
    lks_optimizer_param updated = {"p", value, value + N, LKS_PARAM_VECTOR, N, 1};
    lks_optimizer *optimizer;
    char *text;
    size_t n_listed;
    size_t start[2] = {0, 0};
    lks_reduction r = {.n_leaves = 1, .block_start = start};
    const lks_status calls[] = {
        lks_comm_barrier(comm),
        lks_comm_broadcast(comm, value, 1, LKS_FLOAT32, 0),
        lks_comm_all_gather(comm, value, all, 1, LKS_FLOAT32),
        lks_comm_all_reduce(comm, value, 1, LKS_FLOAT32, LKS_SUM),
        lks_comm_reduce_scatter(comm, value, value, 0, LKS_FLOAT32, LKS_SUM),
        lks_comm_all_gather_v(comm, value, all, (const size_t[64]){0}, LKS_FLOAT32),
        lks_comm_all_reduce_start(comm, value, 1, LKS_FLOAT32, LKS_SUM, &work),
        lks_comm_split(comm, 0, 0, &part),
        lks_comm_alloc(comm, LKS_MEM_OWN, 100, &mem),
        lks_comm_replicate(comm, value, 0),
        lks_comm_gather_shares(comm, value, start, 0, 0),
        lks_comm_reduce_start(comm, &r, &work),
        lks_comm_progress(comm),
        lks_ddp_open(comm, &p, 1, NULL, &other),
        lks_ddp_begin(ddp, lks_ddp_first(ddp)),
        lks_ddp_mark_ready(ddp, 0),
        lks_ddp_add_loss(ddp, 1),
        lks_ddp_accumulate(ddp, 1),
        lks_ddp_step(ddp, NULL),
        lks_ddp_clip(ddp, 1, NULL),
        lks_ddp_broadcast(ddp),
        lks_ddp_verify(ddp),
        lks_checkpoint_save(comm, "none", 1, &t, 1, 0),
        lks_checkpoint_load(comm, "none", &t, 1, NULL, NULL),
        lks_checkpoint_save_more(comm, "none", 1, &t, 1, NULL, 0),
        lks_checkpoint_load_more(comm, "none", &t, 1, NULL, NULL, NULL),
        lks_checkpoint_list(comm, "none", &list, &n_listed, NULL),
        lks_checkpoint_json(comm, "none", &text, NULL),
        lks_optimizer_open(comm, LKS_SGD, &updated, 1, &optimizer),
    };
    int n = 0;
    lks_comm_abort(comm, "a child has no say");
    lks_comm_note(comm, 999, "child");
    lks_comm_beat(comm);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i] != LKS_ERR_ARG && ++n)
            fprintf(stderr, "call %zu in a child: status %d\n", i, calls[i]);
    lks_comm_barrier(comm);
    n += strstr(lks_last_error(), "fork()") == NULL;
    return n;
}

/* A TCP connection of this program's own, which its children keep. */
static int connection(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *any = (struct sockaddr *)(void *)&at;
    socklen_t bytes = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0), own = socket(AF_INET, SOCK_STREAM, 0);
    return bind(listener, any, bytes) == 0 && listen(listener, 1) == 0 &&
                   getsockname(listener, any, &bytes) == 0 && connect(own, any, bytes) == 0
               ? own
               : -1;
}

/* `group_first`: the child closes the group before its lks_ddp. */
static lks_status fork_child(lks_comm *comm, lks_ddp *ddp, float *value, bool group_first, int own)
{
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        int n = use_in_child(comm, ddp, value, NULL) + (send(own, "x", 1, MSG_NOSIGNAL) != 1);
        const pid_t next = fork(); /* a child may have children */
        if (next == 0)
            _exit(0);
        n += waitpid(next, NULL, 0) != next;
        if (!group_first)
            lks_ddp_close(ddp);
        lks_comm_close(comm);
        if (group_first)
            lks_ddp_close(ddp);
        _exit(n);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return lks__fail(LKS_ERR_DIVERGED, "the child failed");
    return LKS_OK;
}

static lks_status forked_child(void)
{
    lks_comm *comm;
    lks_ddp *ddp;
    float *value = calloc(2 * (size_t)N, sizeof *value);
    lks_param p = {"p", value, value + N, N};
    const int own = connection();
    LKS__TRY(open_group(&comm));
    LKS__TRY(lks_ddp_open(comm, &p, 1, NULL, &ddp));
    LKS__TRY(fork_child(comm, ddp, value, world.rank % 2 == 0, own)); /* between steps */
    LKS__TRY(step(ddp));
    LKS__TRY(lks_ddp_begin(ddp, lks_ddp_first(ddp)));
    LKS__TRY(lks_ddp_accumulate(ddp, 1));
    LKS__TRY(fork_child(comm, ddp, value, world.rank % 2 != 0, own)); /* reductions are in flight */
    LKS__TRY(lks_ddp_step(ddp, NULL));
    LKS__TRY(check_sum(comm));
    lks_ddp_close(ddp);
    lks_comm_close(comm);
    free(value);
    return LKS_OK;
}

/* Without the launcher's segment, local rank 0 of each host makes one. */
static lks_status without_launcher(void)
{
    unsetenv(LKS__SEGMENT_ENV);
    return one_after_another();
}

static void *wait_at_barrier(void *comm)
{
    return lks_comm_barrier(comm) == LKS_OK ? comm : NULL;
}

/* On rank 0 two threads use the group at the same time; the other ranks come afterwards. */
static lks_status another_thread(void)
{
    lks_comm *comm, *other;
    pthread_t thread;
    void *passed = NULL;
    float x = 1;
    lks_status st = LKS_ERR_ARG;
    LKS__TRY(open_group(&comm));
    LKS__TRY(open_group(&other));
    if (world.rank == 0) {
        if (pthread_create(&thread, NULL, wait_at_barrier, comm) != 0)
            return lks__fail(LKS_ERR_NOMEM, "there is no thread");
        for (int i = 0; i < lks_test_tries(10000) && comm->inside == NULL; i++)
            usleep(1000);
        st = lks_comm_all_reduce(comm, &x, 1, LKS_FLOAT32, LKS_SUM);
        if (strstr(lks_last_error(), "this group is in lks_comm_barrier") == NULL)
            st = LKS_OK;
    }
    LKS__TRY(lks_comm_barrier(other));
    if (world.rank != 0)
        LKS__TRY(lks_comm_barrier(comm));
    else
        pthread_join(thread, &passed);
    if (st != LKS_ERR_ARG || (world.rank == 0 && passed == NULL))
        return lks__fail(LKS_ERR_DIVERGED, "status %d: %s", st, lks_last_error());
    LKS__TRY(check_sum(comm));
    lks_comm_close(comm);
    lks_comm_close(other);
    return LKS_OK;
}

/* A program that a rank has started, with the rank's variables. */
static lks_status started_by_a_rank(void)
{
    lks_comm *comm;
    lks_comm_options o = {"shm", 1};
    const lks_status st = lks_comm_open(&world, &o, &comm);
    return st == LKS_ERR_TIMEOUT ? LKS_OK : lks__fail(LKS_ERR_DIVERGED, "it joined: status %d", st);
}

/* Between its groups, rank 0 runs such a program, and forks a child that does the same. Neither may
 * join the second group. */
static lks_status starts_a_program(void)
{
    lks_comm *comm;
    LKS__TRY(open_group(&comm));
    lks_comm_close(comm);
    for (int executes = 0; executes < 2 && world.rank == 0; executes++) {
        int status = 0;
        const pid_t pid = fork();
        if (pid == 0 && executes)
            execl("/proc/self/exe", "child", engine, "--rank", "started by a rank", (char *)NULL);
        if (pid == 0)
            _exit(executes ? 127 : started_by_a_rank() != LKS_OK);
        if (waitpid(pid, &status, 0) != pid || status != 0)
            return lks__fail(LKS_ERR_DIVERGED, "child %d ended with wait status %d", executes,
                             status);
    }
    return one_after_another();
}

static lks_status memory_returned(void)
{
    lks_comm *comm;
    lks_ddp *ddp;
    float *value = calloc(2 * (size_t)N, sizeof *value);
    lks_param p = {"p", value, value + N, N};
    LKS__TRY(open_group(&comm));
    const uint64_t before = lks__sys_proc_bytes("/proc/self/status", "RssShmem");
    for (int i = 0; i < 8; i++) {
        LKS__TRY(lks_ddp_open(comm, &p, 1, NULL, &ddp));
        LKS__TRY(step(ddp));
        if (i % 4 == 1) { /* closed with reductions in flight */
            LKS__TRY(lks_ddp_begin(ddp, lks_ddp_first(ddp)));
            LKS__TRY(lks_ddp_accumulate(ddp, 1));
        }
        lks_ddp_close(ddp);
    }
    const uint64_t after = lks__sys_proc_bytes("/proc/self/status", "RssShmem");
    LKS__TRY(check_sum(comm));
    lks_comm_close(comm);
    free(value);
    return after < before + 2 * (uint64_t)N
               ? LKS_OK
               : lks__fail(LKS_ERR_NOMEM, "%" PRIu64 " bytes are %" PRIu64 " now", before, after);
}

/* Each file may have 4 KB: memory and files are refused by an error, not by SIGXFSZ. */
static lks_status limited_files(void)
{
    lks_comm *comm;
    lks_ddp *ddp;
    char dir[128];
    float *value = calloc(2 * (size_t)N, sizeof *value);
    lks_param p = {"p", value, value + N, N};
    lks_tensor t = {"t", LKS_FLOAT32, 1, {N}, value};
    LKS__TRY(open_group(&comm));
    LKS__TRY(check_sum(comm)); /* with its memory for sums */
    struct rlimit any;
    getrlimit(RLIMIT_FSIZE, &any);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, any.rlim_max});
    snprintf(dir, sizeof dir, "%s/lks-limited-%d", P_tmpdir, (int)getpid());
    lks_status refused = lks_ddp_open(comm, &p, 1, NULL, &ddp);
    lks_status unsaved = lks_checkpoint_save(comm, dir, 1, &t, 1, 0);
    lks_status after = check_sum(comm);
    rmdir(dir);
    lks_comm_close(comm);
    free(value);
    setrlimit(RLIMIT_FSIZE, &any); /* ./check --coverage writes counts at the end */
    LKS__TRY(after);
    return refused == LKS_ERR_NOMEM && unsaved == LKS_ERR_IO
               ? LKS_OK
               : lks__fail(LKS_ERR_DIVERGED, "status %d and %d", refused, unsaved);
}

/* The file of shared memory may grow by this rank's first part of the memory for sums, and not by
 * the next: then the first is returned. */
static lks_status refused_sum(void)
{
    enum { PART = 256 << 10 };
    lks_comm *comm;
    struct stat before, after;
    struct rlimit any;
    LKS__TRY(open_group(&comm));
    LKS__TRY(lks_comm_barrier(comm)); /* the others have opened it, too */
    const int fd = lks__segment_fd(lks__shm_segment(comm->host));
    fstat(fd, &before);
    getrlimit(RLIMIT_FSIZE, &any);
    const size_t most = (size_t)before.st_size + PART * (size_t)world.local_world_size + PART / 2;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, any.rlim_max});
    const lks_status refused = check_sum(comm);
    setrlimit(RLIMIT_FSIZE, &any);
    LKS__TRY(lks_comm_barrier(comm)); /* the others have returned their parts */
    fstat(fd, &after);
    const long kept = (long)(after.st_blocks - before.st_blocks) * 512;
    LKS__TRY(check_sum(comm));
    lks_comm_close(comm);
    if (strcmp(engine, "shm") == 0) /* it needs no memory */
        return refused;
    return refused == LKS_ERR_NOMEM && kept < PART
               ? LKS_OK
               : lks__fail(LKS_ERR_DIVERGED, "status %d, %ld bytes were kept", refused, kept);
}

/* The program closes descriptors that it doesn't know, and opens files of its own. */
static lks_status closed_descriptors(void)
{
    lks_comm *comm;
    lks_ddp *ddp;
    struct stat info = {0};
    float *value = calloc(2 * (size_t)N, sizeof *value);
    lks_param p = {"p", value, value + N, N};
    LKS__TRY(open_group(&comm));
    const int fd = lks__segment_fd(lks__shm_segment(comm->host));
    FILE *own = tmpfile();
    if (own == NULL || dup2(fileno(own), fd) != fd)
        return lks__fail(LKS_ERR_IO, "can't open a file");
    lks_status st = lks_ddp_open(comm, &p, 1, NULL, &ddp);
    char said[256];
    snprintf(said, sizeof said, "%s", lks_last_error());
    lks_comm_close(comm);
    const bool whole = fstat(fd, &info) == 0 && info.st_size == 0;
    fclose(own);
    free(value);
    return st == LKS_ERR_IO && whole && strstr(said, "closed its descriptor") != NULL
               ? LKS_OK
               : lks__fail(LKS_ERR_DIVERGED, "status %d (%s), %lld bytes", st, said,
                           (long long)info.st_size);
}

/* A rank may have `n` more descriptors, too few for another group, and is told so at once. Both
 * ranks open that group in children, and the other rank's child is killed then. */
static lks_status few_descriptors(int rank, rlim_t n)
{
    lks_comm *a, *b;
    int code = 0;
    LKS__TRY(open_group(&a));
    setenv("TORCHELASTIC_RUN_ID", lks_test_text("%d", (int)getppid()),
           1); /* the children's differ */
    const pid_t child = fork();
    if (child == 0) {
        const int lowest = dup(0);
        close(lowest);
        const struct rlimit few = {(rlim_t)lowest + n, 99};
        if (world.rank == rank)
            setrlimit(RLIMIT_NOFILE, &few);
        const lks_status st = open_group(&b);
        _exit(st != LKS_ERR_IO || strstr(lks_last_error(), "raise `ulimit -n`") == NULL);
    }
    if (world.rank == rank)
        waitpid(child, &code, 0);
    lks_status st = code == 0 ? lks_comm_barrier(a) : lks__fail(LKS_ERR_DIVERGED, "code %d", code);
    if (world.rank != rank) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    lks_comm_close(a);
    return st;
}

static lks_status few_descriptors_0(void)
{
    return few_descriptors(0, 2); /* to listen and for the memory, but not to accept */
}

static lks_status few_descriptors_1(void)
{
    return few_descriptors(1, 1); /* to connect, but not to receive */
}

static lks_status no_descriptors_1(void)
{
    return few_descriptors(1, 0);
}

static const struct row {
    const char *name;
    lks_status (*run)(void);
    bool one_host; /* only on one host */
} rows[] = {
    {"one after another", one_after_another, false},
    {"at the same time", at_the_same_time, false},
    {"forked child", forked_child, false},
    {"without a launcher", without_launcher, false},
    {"another thread", another_thread, false},
    {"memory returned", memory_returned, false},
    {"limited files", limited_files, false},
    {"refused sum", refused_sum, false},
    {"closed descriptors", closed_descriptors, false},
    {"few descriptors on rank 0", few_descriptors_0, true},
    {"few descriptors on rank 1", few_descriptors_1, true},
    {"no descriptors on rank 1", no_descriptors_1, true},
    {"starts a program", starts_a_program, true},
    {"started by a rank", started_by_a_rank, false}, /* by the row above it */
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* `ENGINE --rank NAME` */
static int be_rank(const char *name)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        lks_status st = lks_world_from_env(&world);
        LKS__THEN(st, rows[i].run());
        if (st != LKS_OK)
            fprintf(stderr, "%s, rank %d: %s\n", name, world.rank, lks_last_error());
        return st != LKS_OK;
    }
    return 2;
}

TEST(test_rows)
{
    const char *hosts[] = {"2", "21", "22"};
    const bool one_host = strcmp(engine, "shm") == 0;
    const bool gloo = strcmp(engine, "gloo") == 0;
    for (int i = 0; i < N_ROWS - 1; i++)
        for (int h = one_host ? 0 : 1; h < (one_host ? 1 : 3); h++) {
            if (rows[i].one_host && !one_host)
                continue;
            const char *const args[] = {"/proc/self/exe", engine, "--rank", rows[i].name, NULL};
            int code = hosts_run(engine, hosts[h], args);
            if (code == 0 && gloo)
                code = hosts_run_at_master(hosts[h], args);
            if (code != 0)
                fail_msg("%s over %s, hosts %s: exit code %d", rows[i].name, engine, hosts[h],
                         code);
        }
}

/* Ranks whose launcher is killed: each says so, and works no longer. */
static void orphan(int launcher, int rank, int fd)
{
    static const char *const names[][4] = {{"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                            "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}};
    lks_comm *comm;
    alarm(20);
    for (int i = 0; i < 4; i++)
        setenv(names[launcher][i], lks_test_text("%d", i < 2 ? rank : 2), 1);
    setenv("TORCHELASTIC_RUN_ID", lks_test_text("%d", (int)getppid()), 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    lks_status st = lks_comm_init(&comm);
    if (st == LKS_OK && launcher == 1) /* the same in a part */
        st = lks_comm_split(comm, 0, rank, &comm);
    dprintf(fd, "%s", st == LKS_OK ? "." : lks_last_error());
    while (st == LKS_OK)
        st = lks_comm_barrier(comm);
    dprintf(fd, "\n%d %s", (int)st, lks_last_error());
    _exit(1);
}

TEST(test_orphans)
{
    for (int launcher = 0; launcher < 2 && strcmp(engine, "shm") == 0; launcher++) {
        char said[2048] = "";
        int fds[2];
        size_t n = 0;
        assert_int_equal(pipe(fds), 0);
        const pid_t pid = fork();
        for (int rank = 0; pid == 0 && rank < 2; rank++)
            if (fork() == 0)
                orphan(launcher, rank, fds[1]);
        while (pid == 0)
            pause();
        close(fds[1]);
        for (ssize_t got = 1; got > 0 && n < sizeof said - 1; n += (size_t)got) {
            if (strcmp(said, "..") == 0)
                kill(pid, SIGKILL);
            got = read(fds[0], said + n, n < 2 ? 1 : sizeof said - 1 - n);
            assert_return_code(got, 0);
        }
        close(fds[0]);
        waitpid(pid, NULL, 0);
        const char *first = strstr(said, "was killed");
        if (first == NULL || strstr(first + 1, "was killed") == NULL)
            fail_msg("launcher %d: %s", launcher, said);
    }
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
