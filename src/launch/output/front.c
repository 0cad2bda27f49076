/* A launch is two processes, so that no process is left if either of them is killed. The process
 * that the user started stays in front: it has the process id that others know, receives the
 * terminal's signals, passes them on, and ends as the launcher ends. The launcher is its child and
 * does the rest.
 *
 * Both are subreapers: a process whose parent has ended becomes a child of the launcher, or, if the
 * launcher has ended, of the front. If the front is killed, the launcher gets LKS__FRONT_GONE and
 * ends all processes that the ranks have started, in any session. If the launcher is killed, the
 * front does that. The launcher has a separate process group: a signal to the front's group doesn't
 * reach it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "launch/job.h"

/* Seconds. */
static const double SWEEP_S = 5.0; /* for processes of a killed launcher to end */

struct front {
    const char *self;
    const sigset_t *mask, *old_mask;
    pid_t launcher;
    bool suspending; /* the launcher was suspended, for example by Ctrl-Z, and we stop with it */
    bool ended;
    siginfo_t end;
    /* Children from before the launch: a program may have started them before it called exec.
     * NULL: unknown. */
    char *earlier;
};

/* Our children, "12 34 ", to be freed; NULL if the kernel doesn't list them, or without memory. */
static char *children(void)
{
    char path[64], *text = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
    FILE *f = fopen(path, "re");
    if (f != NULL && getline(&text, &room, f) < 0) {
        free(text);
        text = feof(f) ? strdup("") : NULL;
    }
    if (f != NULL)
        fclose(f);
    return text;
}

/* Read the number at *at, and move *at past it. Returns 0 at the end. */
static pid_t next(char **at)
{
    return (pid_t)strtol(*at, at, 10);
}

static bool is_earlier(const struct front *f, pid_t pid)
{
    pid_t earlier;
    for (char *at = f->earlier; (earlier = next(&at)) != 0;)
        if (earlier == pid)
            return true;
    return false;
}

static void reap(struct front *f)
{
    siginfo_t info;
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG) != 0 || info.si_pid == 0)
            return;
        if (info.si_pid != f->launcher)
            continue;
        if (info.si_code != CLD_STOPPED) {
            f->ended = true;
            f->end = info;
        } else if (f->suspending) {
            f->suspending = false;
            raise(SIGSTOP); /* returns when we are continued */
            kill(f->launcher, SIGCONT);
        }
    }
}

static void sweep(struct front *f)
{
    for (double until = lks__sys_now() + SWEEP_S; f->earlier != NULL && lks__sys_now() < until;) {
        char *pids = children();
        int n_ours = 0;
        pid_t pid;
        for (char *at = pids; at != NULL && (pid = next(&at)) != 0;)
            if (!is_earlier(f, pid) && ++n_ours > 0)
                kill(pid, SIGKILL);
        free(pids);
        if (n_ours == 0)
            return;
        usleep(2000);
        reap(f);
    }
}

static _Noreturn void end_alike(struct front *f)
{
    int code = f->end.si_status;
    if (f->end.si_code != CLD_EXITED) {
        sweep(f);
        /* The user's signal arrived before any rank was started. */
        if (sigismember(f->mask, code)) {
            signal(code, SIG_DFL);
            sigprocmask(SIG_SETMASK, f->old_mask, NULL);
            raise(code);
        }
        /* The following message may not have a reader. */
        sigprocmask(SIG_SETMASK, f->old_mask, NULL);
        fprintf(stderr,
                "%s: the launching process %d was killed by signal %d (SIG%s); its ranks were "
                "ended\n",
                f->self, (int)f->launcher, code, lks__signal_name(code));
        code += 128;
    }
    _exit(code);
}

static _Noreturn void stay_in_front(struct front *f)
{
    int signals = signalfd(-1, f->mask, SFD_CLOEXEC | SFD_NONBLOCK);
    while (!f->ended) {
        struct signalfd_siginfo info;
        struct pollfd p = {.fd = signals, .events = POLLIN};
        poll(&p, 1, signals >= 0 ? -1 : 100);
        while (signals >= 0 && read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            int sig = (int)info.ssi_signo;
            if (sig == SIGCHLD)
                continue;
            f->suspending |= sig == SIGTSTP;
            kill(f->launcher, sig);
        }
        reap(f);
    }
    end_alike(f);
}

bool lks__front_is_gone(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, LKS__FRONT_GONE) == 1;
}

lks_status lks__front_fork(const char *self, const sigset_t *mask, const sigset_t *old_mask)
{
    struct front f = {.self = self, .mask = mask, .old_mask = old_mask};
    pid_t front = getpid();
    sigset_t gone;
    f.earlier = children();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL); /* so that buffered text is written only once */
    f.launcher = fork();
    if (f.launcher > 0) {
        setpgid(f.launcher, f.launcher); /* in both processes, because either may run first */
        stay_in_front(&f);
    }
    const int reason = errno;
    free(f.earlier);
    if (f.launcher < 0)
        return lks__fail(LKS_ERR_NOMEM, "can't start the launching process: %s",
                         lks__sys_start_reason(reason));
    setpgid(0, 0);
    sigemptyset(&gone);
    sigaddset(&gone, LKS__FRONT_GONE);
    sigprocmask(SIG_BLOCK, &gone, NULL);
    prctl(PR_SET_PDEATHSIG, LKS__FRONT_GONE);
    if (getppid() != front) /* it died before prctl() */
        _exit(1);
    signal(SIGTTOU, SIG_IGN); /* allow writing from the background of its terminal */
    return LKS_OK;
}
