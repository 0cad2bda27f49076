#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/attempt.h"

/* Receive the groups through the socket. The socket ends when the launcher ends. */
static _Noreturn void be_guard(int fd, int max_groups, pid_t *groups)
{
    sigset_t all;
    sigfillset(&all);
    /* Signals to the launcher's group must not end the guard. */
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "lockstep-guard");
    if (chdir("/") != 0)
        _exit(1);
    /* Close the standard streams: a reader of the launcher's output waits for the launcher's end,
     * not for ours. */
    dup2(fd, 0);
    syscall(SYS_close_range, 1u, ~0u, 0u);
    int n = 0;
    pid_t group;
    for (;;) {
        ssize_t got = read(0, &group, sizeof group);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != (ssize_t)sizeof group)
            break;
        if (n < max_groups)
            groups[n++] = group;
    }
    for (int i = 0; i < n; i++)
        kill(-groups[i], SIGKILL);
    _exit(0);
}

void lks__guard_start(struct lks__attempt *a)
{
    int fds[2];
    pid_t *groups = calloc((size_t)a->nproc, sizeof *groups);
    if (groups == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        free(groups); /* continue without a guard rather than fail */
        return;
    }
    a->guard = fork();
    if (a->guard == 0) {
        close(fds[1]);
        be_guard(fds[0], a->nproc, groups);
    }
    free(groups);
    close(fds[0]);
    if (a->guard < 0)
        close(fds[1]);
    else
        a->guard_fd = fds[1];
}

void lks__guard_add(const struct lks__attempt *a, pid_t group)
{
    /* If the guard was killed, writing to its socket must not kill us. */
    if (a->guard_fd >= 0)
        (void)send(a->guard_fd, &group, sizeof group, MSG_NOSIGNAL);
}

void lks__guard_stop(struct lks__attempt *a)
{
    if (a->guard > 0) {
        kill(a->guard, SIGKILL); /* before the socket closes, or it would kill the ranks */
        while (waitpid(a->guard, NULL, 0) < 0 && errno == EINTR)
            ;
        a->guard = -1;
    }
    if (a->guard_fd >= 0)
        close(a->guard_fd);
    a->guard_fd = -1;
}
