/* lockstep bench comm: launches each available backend, and measures its collectives by size
 * and the link. bench_reduce.c measures the reduction of gradients. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../progress.h"
#include "../tool.h"
#include "base/system/sys.h"
#include "bench.h"
#include "comm/backend.h"
#include "comm/shm/segment/segment.h"
#include "comm/world.h"

enum {
    MAX_TIMES = 1000,
    MAX_WARM_UP = 3,
    SMALL = 50, /* repetitions of the smallest operation per repetition of the largest */
};

static const size_t sizes[] = {4, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};

enum { N_SIZES = sizeof sizes / sizeof sizes[0], BIGGEST = 64 << 20 };

struct buffers {
    float *buf, *all; /* bytes: [BIGGEST], [W * BIGGEST / W] */
    double times[MAX_TIMES];
};

typedef lks_status operation(struct bench_group *b, struct buffers *m, size_t bytes);

static lks_status op_barrier(struct bench_group *b, struct buffers *m, size_t bytes)
{
    return lks_comm_barrier(b->comm);
}

static lks_status op_broadcast(struct bench_group *b, struct buffers *m, size_t bytes)
{
    return lks_comm_broadcast(b->comm, m->buf, bytes, LKS_UINT8, 0);
}

/* `bytes` is the size of the result, to which every rank contributes an equal part. */
static lks_status op_all_gather(struct bench_group *b, struct buffers *m, size_t bytes)
{
    return lks_comm_all_gather(b->comm, m->buf, m->all, bytes / (size_t)b->W, LKS_UINT8);
}

static lks_status op_all_reduce(struct bench_group *b, struct buffers *m, size_t bytes)
{
    return lks_comm_all_reduce(b->comm, m->buf, bytes / sizeof(float), LKS_FLOAT32, LKS_SUM);
}

lks_status bench_slowest(struct bench_group *b, double *times, int n, double *seconds_p)
{
    *seconds_p = bench_median(times, n);
    return lks_comm_all_reduce(b->comm, seconds_p, 1, LKS_FLOAT64, LKS_MAX);
}

static int times_for(const struct bench_group *b, size_t bytes)
{
    size_t fit = (size_t)BIGGEST / (bytes + 1);
    int n = b->iters * (fit > SMALL ? SMALL : fit < 1 ? 1 : (int)fit);
    return n < MAX_TIMES ? n : MAX_TIMES;
}

/* Seconds of an operation that all ranks begin together. */
static lks_status time_once(struct bench_group *b, struct buffers *m, operation *op, size_t bytes,
                            double *seconds_p)
{
    LKS__TRY(lks_comm_barrier(b->comm));
    const double started = lks__sys_now();
    LKS__TRY(op(b, m, bytes));
    *seconds_p = lks__sys_now() - started;
    return LKS_OK;
}

/* The median on the slowest rank. */
static lks_status time_operation(struct bench_group *b, struct buffers *m, operation *op,
                                 size_t bytes, double *seconds_p)
{
    int n = times_for(b, bytes);
    for (int i = -b->warm_up; i < n; i++)
        LKS__TRY(time_once(b, m, op, bytes, &m->times[i < 0 ? 0 : i]));
    return bench_slowest(b, m->times, n, seconds_p);
}

static const char *size_text(size_t bytes, char text[32])
{
    if (bytes >= 1 << 20)
        snprintf(text, 32, "%zu MiB", bytes >> 20);
    else if (bytes >= 1 << 10)
        snprintf(text, 32, "%zu KiB", bytes >> 10);
    else
        snprintf(text, 32, "%zu B", bytes);
    return text;
}

static lks_status collectives(struct bench_group *b, struct buffers *m)
{
    static const struct {
        const char *name;
        operation *op;
    } ops[] = {
        {"broadcast", op_broadcast}, {"all-gather", op_all_gather}, {"all-reduce", op_all_reduce}};
    const int n_ops = (int)(sizeof ops / sizeof ops[0]);
    double seconds;
    LKS__TRY(time_operation(b, m, op_barrier, 0, &seconds));
    progress_hide();
    if (b->rank == 0) {
        printf("  barrier %.2f us\n  %10s", seconds * 1e6, "");
        for (int o = 0; o < n_ops; o++)
            printf("  %24s", ops[o].name);
        printf("\n");
    }
    for (int i = 0; i < N_SIZES; i++) {
        char text[32];
        progress_text("%s", size_text(sizes[i], text));
        if (b->rank == 0)
            printf("  %10s", text);
        for (int o = 0; o < n_ops; o++) {
            LKS__TRY(time_operation(b, m, ops[o].op, sizes[i], &seconds));
            if (b->rank == 0)
                printf("  %10.2f us %6.2f GB/s", seconds * 1e6, (double)sizes[i] / seconds * 1e-9);
        }
        progress_hide();
        if (b->rank == 0)
            printf("\n");
    }
    return LKS_OK;
}

static lks_status measure_collectives(struct bench_group *b, lks__session *s)
{
    struct buffers m = {.buf = calloc(1, BIGGEST), .all = calloc(1, BIGGEST)};
    lks_status st = LKS_OK;
    if (m.buf == NULL || m.all == NULL)
        st = lks__no_memory("for buffers of %d MB", 2 * (BIGGEST >> 20));
    st = lks__session_agree(s, st);
    LKS__THEN(st, collectives(b, &m));
    free(m.buf);
    free(m.all);
    return st;
}

/* --- a group ---------------------------------------------------------------------------------- */

static lks_status find_hosts(struct bench_group *b)
{
    int *leaders = calloc((size_t)b->W, sizeof *leaders), mine = lks_comm_leader(b->comm);
    LKS__MEMORY(leaders, "for %d ranks", b->W);
    lks_status st = lks_comm_all_gather(b->comm, &mine, leaders, sizeof mine, LKS_UINT8);
    for (int r = 0; r < b->W && st == LKS_OK; r++) {
        b->n_hosts += leaders[r] == r;
        if (leaders[r] == r && b->other == 0)
            b->other = r;
    }
    free(leaders);
    return st;
}

static lks_status report_link(struct bench_group *b, struct bench_link *link)
{
    if (b->n_hosts == 1)
        return LKS_OK;
    LKS__TRY(bench_link(b->comm, b->other, b->pretended, link));
    if (b->rank != 0)
        return LKS_OK;
    if (link->rate > 0)
        printf("  the link: %.2f GB/s each way, both ways at once, by a plain TCP connection; "
               "%.0f us there and back\n",
               link->rate * 1e-9, link->round_s * 1e6);
    else
        printf("  the link: not measured, as the second host can't reach a free port of the "
               "first\n");
    return LKS_OK;
}

static lks_status measure(struct bench_group *b, lks__session *s, lks__trainer *t)
{
    struct bench_link link = {0};
    LKS__TRY(find_hosts(b));
    progress_hide();
    if (b->rank == 0)
        printf("%s, %d rank%s%s\n", lks_comm_backend(b->comm), b->W, b->W == 1 ? "" : "s",
               b->n_hosts == 1 ? ""
               : b->pretended  ? ", each as if on its own host"
                               : " on several hosts");
    LKS__TRY(report_link(b, &link));
    LKS__TRY(measure_collectives(b, s));
    progress_text("the reduction of gradients");
    LKS__TRY(bench_reduction(b, &link));
    progress_text("steps of the model");
    return t != NULL ? bench_verdict(b, t) : LKS_OK;
}

/* Engines connect several hosts: on one host, let each rank act as a host. */
static void act_as_hosts(const lks_world *world)
{
    lks__env_put("LOCAL_RANK", 0);
    lks__env_put("LOCAL_WORLD_SIZE", 1);
    lks__env_put("GROUP_RANK", world->rank);
    lks__env_put("GROUP_WORLD_SIZE", world->world_size);
    unsetenv(LKS__SEGMENT_ENV);
}

static lks_status bench_backend(lks__settings *s, const struct lks_comm_ops *ops,
                                const lks_world *world)
{
    struct bench_group b = {.iters = (int)s->iters,
                            .warm_up = s->iters < MAX_WARM_UP ? (int)s->iters : MAX_WARM_UP};
    lks__trainer t;
    lks__session alone, *ses = &alone;
    bool model = bench_has_model(s);
    snprintf(s->backend, sizeof s->backend, "%s", ops->name);
    b.pretended = ops->engine != NULL && world->world_size == world->local_world_size;
    if (b.pretended)
        act_as_hosts(world);
    if (model) {
        LKS__TRY(bench_open_trainer(s, 1, &t));
        ses = &t.ses;
    } else {
        LKS__TRY(lks__session_open(ops->name, s->timeout, 1, LKS__BIND_NONE, ses));
    }
    b.comm = ses->comm;
    b.rank = ses->world.rank;
    b.W = ses->world.world_size;
    const lks_status st = measure(&b, ses, model ? &t : NULL);
    fflush(stdout);
    lks__session_fail(ses, st);
    if (model)
        lks__trainer_close(&t);
    else
        lks__session_close(ses);
    return st;
}

lks_status bench_comm(lks__settings *s)
{
    bool all = strcmp(s->backend, "auto") == 0;
    lks_world world;
    LKS__TRY(lks_world_from_env(&world));
    for (int i = 0; lks__backend_at(i) != NULL; i++) {
        const struct lks_comm_ops *ops = lks__backend_at(i);
        char why[512] = "";
        if (!all && strcmp(s->backend, ops->name) != 0)
            continue;
        if (lks__backend_probe(ops, &world, !all, why, sizeof why))
            return bench_backend(s, ops, &world);
        if (!all)
            return lks__fail(LKS_ERR_SUPPORT, "%s: %s", ops->name, why);
        if (world.rank == 0)
            printf("%s: %s\n", ops->name, why);
    }
    return lks__fail(LKS_ERR_SUPPORT, "no backend can be used");
}

/* --- a launch for each backend ---------------------------------------------------------------- */

/* Run the launcher that an engine needs, and wait for it. Returns the exit code. */
static int spawn(const char *launcher, char **words, const char *backend)
{
    int status;
    /* Allow more ranks than cores. Don't bind a rank to one core: it has two threads. */
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        execvp(launcher, words);
        dprintf(STDOUT_FILENO, "%s: %s can't be started: %s\n", backend, launcher, strerror(errno));
        _exit(TOOL_OK);
    }
    if (pid < 0)
        return tool_fail("bench", lks__fail(LKS_ERR_NOMEM, "can't start %s: %s", launcher,
                                            lks__sys_reason(errno)));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return TOOL_FAILED;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : TOOL_SIGNAL + WTERMSIG(status);
    if (code != TOOL_OK && geteuid() == 0 && getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") == NULL)
        fprintf(stderr,
                "lockstep bench: %s: if %s is Open MPI's, it refuses root: "
                "OMPI_ALLOW_RUN_AS_ROOT=1 and "
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 allow it\n",
                backend, launcher);
    return code;
}

static int launch_backend(const struct lks_comm_ops *ops, const lks__settings *s, int argc,
                          char **argv)
{
    const char *launcher = ops->engine != NULL ? ops->engine->launcher : NULL;
    char backend[64], ranks[16], self[4096], **words = calloc((size_t)argc + 10, sizeof *words);
    int n = 0;
    if (words == NULL)
        return tool_fail("bench", lks__no_memory("for %d arguments", argc));
    if (launcher != NULL) {
        const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
        self[length > 0 ? length : 0] = '\0';
        snprintf(ranks, sizeof ranks, "%d", (int)s->nproc_per_node);
        memcpy(words, (const char *[]){launcher, "-n", ranks, self}, 4 * sizeof *words);
        n = 4;
    }
    memcpy(words + n, argv, (size_t)argc * sizeof *words);
    snprintf(backend, sizeof backend, "--backend=%s", ops->name);
    words[n + argc] = backend;
    const int code = launcher != NULL ? spawn(launcher, words, ops->name)
                                      : tool_launch("bench", s, argc + 1, words);
    free(words);
    return code;
}

/* True for a signal that was for all launches: one that is passed on, or SIGKILL, for ranks that
 * didn't stop on it. Another one, such as SIGSEGV, is a rank's own. */
static bool was_stopped(int code)
{
    const int signo = code - TOOL_SIGNAL;
    return signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT ||
           signo == SIGKILL;
}

/* Run the backends of lockstep's own launcher first. */
int bench_comm_launch(const lks__settings *s, int argc, char **argv)
{
    bool all = strcmp(s->backend, "auto") == 0;
    int code = TOOL_OK;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; lks__backend_at(i) != NULL; i++) {
            const struct lks_comm_ops *ops = lks__backend_at(i);
            bool foreign = ops->engine != NULL && ops->engine->launcher != NULL;
            if (foreign != (pass == 1) || (!all && strcmp(s->backend, ops->name) != 0))
                continue;
            int one = launch_backend(ops, s, argc, argv);
            if (was_stopped(one))
                return one;
            code = one != TOOL_OK ? one : code;
        }
    return code;
}
