#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/store/address.h"
#include "launch/attempt.h"

extern char **environ;

/* torch.distributed's default. */
enum { DEFAULT_PORT = 29500 };

int lks__free_port(const char *host)
{
    int port, fd;
    if (lks__address_listen(host, 0, &fd, &port) != LKS_OK)
        return DEFAULT_PORT;
    lks__sys_close(fd);
    return port;
}

enum { MAX_VARS = 28 };

/* Entries "NAME=value", each allocated; `full` after an entry for which there was no memory. */
struct vars {
    int n;
    bool full;
    char *text[MAX_VARS];
};

static void set(struct vars *v, const char *name, const char *value)
{
    if (asprintf(&v->text[v->n], "%s=%s", name, value) >= 0)
        v->n++;
    else
        v->full = true;
}

static void set_int(struct vars *v, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set(v, name, text);
}

static void free_vars(struct vars *v)
{
    while (v->n > 0)
        free(v->text[--v->n]);
}

/* The variables that torchrun sets for its workers (torch/distributed/elastic, local agent), for
 * one host, and the shared segment. */
static void rank_vars(const struct lks__attempt *a, int rank, struct vars *v)
{
    const int nproc = a->nproc;
    char segment[LKS__SEGMENT_ENV_BYTES], text[LKS__SYS_PATH];
    lks__segment_env(a->segment, segment);
    set_int(v, "RANK", a->first_global + rank);
    set_int(v, "LOCAL_RANK", rank);
    set_int(v, "WORLD_SIZE", a->world_size);
    set_int(v, "LOCAL_WORLD_SIZE", nproc);
    set_int(v, "GROUP_RANK", a->group_rank);
    set_int(v, "GROUP_WORLD_SIZE", a->n_groups);
    set_int(v, "ROLE_RANK", a->first_in_role + rank);
    set_int(v, "ROLE_WORLD_SIZE", a->role_size);
    set(v, "ROLE_NAME", a->job->role);
    set(v, "MASTER_ADDR", a->job->master_addr);
    set_int(v, "MASTER_PORT", a->master_port);
    set_int(v, "TORCHELASTIC_RESTART_COUNT", a->number);
    set_int(v, "TORCHELASTIC_MAX_RESTARTS", a->job->options->max_restarts);
    set(v, "TORCHELASTIC_RUN_ID", a->job->run_id);
    set(v, LKS__SEGMENT_ENV, segment);
    set(v, "LOCKSTEP_JOB", a->job->id);
    lks__address_text(text, a->job->store_host, a->job->store_port);
    set(v, LKS__STORE_ENV, text);
    set(v, "LOCKSTEP_LOCAL_ADDR", a->job->local_address);
    set(v, LKS__TOKEN_ENV, a->job->token);
    if (a->folders != NULL) {
        snprintf(text, sizeof text, "%s/error.json", a->folders[rank]);
        set(v, "TORCHELASTIC_ERROR_FILE", text);
    }
    if (nproc > 1 && getenv("OMP_NUM_THREADS") == NULL)
        set(v, "OMP_NUM_THREADS", "1");
}

/* Variables of an outer torchrun, which would make a PyTorch rank look for another store. */
static const char *const dropped[] = {"TORCHELASTIC_USE_AGENT_STORE=", "TORCHELASTIC_ERROR_FILE="};

static bool replaced(const struct vars *v, const char *entry)
{
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++)
        if (strncmp(entry, dropped[i], strlen(dropped[i])) == 0)
            return true;
    for (int i = 0; i < v->n; i++) {
        size_t name = strcspn(v->text[i], "=") + 1;
        if (strncmp(entry, v->text[i], name) == 0)
            return true;
    }
    return false;
}

/* Our environment with `v` added or replaced. Free the array; its strings are borrowed. */
static char **make_environment(const struct vars *v)
{
    size_t n = 0, kept = 0;
    if (v->full)
        return NULL;
    while (environ[n] != NULL)
        n++;
    char **env = malloc((n + (size_t)v->n + 1) * sizeof *env);
    if (env == NULL)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!replaced(v, environ[i]))
            env[kept++] = environ[i];
    for (int i = 0; i < v->n; i++)
        env[kept++] = v->text[i];
    env[kept] = NULL;
    return env;
}

/* In the child, between fork and exec: only system calls. Ends in the program, or with an errno in
 * `report`. */
static _Noreturn void become_rank(const struct lks__attempt *a, char **env, pid_t launcher,
                                  const int ends[2], int report)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* it died before prctl() */
        _exit(1);
    lks__guard_add(a, getpid()); /* before we have children for the guard to end */
    /* The rank's group is in the background of the terminal: writing must not stop the rank (stty
     * tostop), and reading would stop it forever. */
    signal(SIGTTOU, SIG_IGN);
    if (isatty(STDIN_FILENO) || a->job->options->lifeline) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null >= 0)
            dup2(null, STDIN_FILENO);
    }
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            dup2(ends[i], i + 1);
    sigaction(SIGPIPE, &a->job->old_pipe, NULL);
    sigaction(SIGCHLD, &a->job->old_child, NULL);
    fcntl(lks__segment_fd(a->segment), F_SETFD, 0);
    pthread_sigmask(SIG_SETMASK, &a->job->old_mask, NULL);
    const lks__launch_options *o = a->job->options;
    execvpe(o->file != NULL ? o->file : o->argv[0], o->argv, env);
    int err = errno;
    ssize_t n = write(report, &err, sizeof err);
    _exit(n == (ssize_t)sizeof err ? 127 : 1);
}

lks_status lks__start_rank(struct lks__attempt *a, int rank, int *exec_errno_p)
{
    struct vars vars = {0};
    rank_vars(a, rank, &vars);
    char **env = make_environment(&vars);
    if (env == NULL)
        free_vars(&vars);
    LKS__MEMORY(env, "for the environment of rank %d", rank);
    int report[2], ends[2];
    lks__output_ends(a->job->output, rank, ends);
    if (pipe2(report, O_CLOEXEC) != 0) {
        free(env);
        free_vars(&vars);
        return lks__fail(LKS_ERR_IO, "can't make a pipe to start rank %d: %s", rank,
                         lks__sys_reason(errno));
    }
    pid_t launcher = getpid(), pid = fork();
    if (pid == 0)
        become_rank(a, env, launcher, ends, report[1]);
    int err = errno;
    free(env);
    free_vars(&vars);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return lks__fail(LKS_ERR_NOMEM, "can't start rank %d of %d: %s", a->first_global + rank,
                         a->world_size, lks__sys_start_reason(err));
    }
    setpgid(pid, pid); /* in both processes, because either may run first */
    /* The pipe ends without data if exec has succeeded. */
    ssize_t n;
    do
        n = read(report[0], &err, sizeof err);
    while (n < 0 && errno == EINTR);
    close(report[0]);
    *exec_errno_p = n == (ssize_t)sizeof err ? err : 0;
    if (*exec_errno_p != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return LKS_OK;
    }
    lks__output_started(a->job->output, rank);
    a->ranks[rank] =
        (struct lks__rank_process){.pid = pid, .running = true, .started_at = lks__sys_now()};
    a->n_started++;
    a->n_running++;
    return LKS_OK;
}
