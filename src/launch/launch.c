#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/process.h"

/* Seconds. */
static const double TERM_GRACE_S = 1.0;  /* from SIGTERM to SIGKILL after a failure */
static const double STOP_GRACE_S = 30.0; /* ... after the user's signal: a checkpoint is written */
static const double SAME_CAUSE_S = 0.3;  /* a terminal that closes may send one signal twice */
static const double SWEEP_S = 2.0;       /* for what is left behind to die */

enum { MAX_MESSAGE = 2048 };

/* What the launcher is about. */
struct state {
    bool failed;     /* a rank has failed; the others are being ended */
    bool killed;     /* SIGKILL has been sent */
    int user_signal; /* 0, or the first one that the user sent */
    double user_signal_at;
    double kill_at;        /* when to send SIGKILL; 0: not */
    bool first_by_rank;    /* the group's failure was known before we wrote one */
    int first_rank;        /* ... and whom it blamed, -1 for nobody */
    char first_text[1100]; /* ... and what it said */
};

/* "rank 1 (pid 12) was killed by signal 9 (SIGKILL) at step 3, phase backward" */
static void describe_end(const struct lks__launch *l, int rank, char *text, size_t bytes)
{
    const struct lks__rank_process *p = &l->ranks[rank];
    lks__rank_status s;
    lks__segment_status(l->segment, rank, &s);
    char how[64], where[128] = "";
    if (p->by_signal) {
        const char *name = sigabbrev_np(p->code);
        snprintf(how, sizeof how, "was killed by signal %d (SIG%s)", p->code,
                 name != NULL ? name : "?");
    } else {
        snprintf(how, sizeof how, "exited with code %d", p->code);
    }
    if (s.state != LKS__RANK_ABSENT && s.phase[0] != '\0')
        snprintf(where, sizeof where, " at step %llu, phase %s", (unsigned long long)s.step,
                 s.phase);
    snprintf(text, bytes, "rank %d (pid %d) %s%s", rank, (int)p->pid, how, where);
}

/* "the loss is not finite" of "rank 1 failed at step 3, phase backward: the loss is not finite" */
static const char *why_of(const char *failure)
{
    const char *colon = strstr(failure, ": ");
    return colon == NULL ? failure : colon + 2;
}

static bool failed(const struct lks__rank_process *p)
{
    return p->by_signal || p->code != 0;
}

/* --- ends --------------------------------------------------------------------------------- */

/* A rank has failed: tell the ranks that wait for it, keep what they have told us, end them. */
static void stop_all(struct lks__launch *l, struct state *s, int rank)
{
    char text[MAX_MESSAGE];
    int leaving = -1;
    describe_end(l, rank, text, sizeof text);
    s->first_by_rank = !lks__segment_abort(l->segment, LKS_ERR_PEER, rank, text);
    if (s->first_by_rank) {
        lks_status st;
        lks__segment_failure(l->segment, &st, &s->first_rank, s->first_text, sizeof s->first_text);
        /* One that gave up by itself is about to exit, with the code that tells why. */
        if (st == LKS_ERR_PEER)
            leaving = s->first_rank;
    }
    s->failed = true;
    lks__signal_all(l, SIGTERM, leaving);
    s->kill_at = lks__sys_now() + TERM_GRACE_S;
}

static void record_end(struct lks__launch *l, const siginfo_t *info)
{
    for (int r = 0; r < l->n_started; r++) {
        struct lks__rank_process *p = &l->ranks[r];
        if (!p->running || p->pid != info->si_pid)
            continue;
        p->running = false;
        p->by_signal = info->si_code != CLD_EXITED;
        p->code = info->si_status;
        p->order = l->n_ended;
        l->n_running--;
    }
    if (info->si_pid == l->guard) {
        l->guard = -1;
        lks__guard_stop(l);
    }
}

/* Collect whoever has ended. Of several failures seen at once, one by a signal is the cause and an
 * exit code a consequence. */
static void reap(struct lks__launch *l, struct state *s)
{
    siginfo_t info;
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
            break;
        record_end(l, &info);
    }
    int first = -1;
    for (int r = 0; r < l->n_started; r++) {
        const struct lks__rank_process *p = &l->ranks[r];
        if (p->running || p->order != l->n_ended || !failed(p))
            continue;
        if (first < 0 || (p->by_signal && !l->ranks[first].by_signal))
            first = r;
    }
    l->n_ended++;
    if (first >= 0 && !s->failed && s->user_signal == 0)
        stop_all(l, s, first);
}

/* --- signals ------------------------------------------------------------------------------ */

static void kill_all(struct lks__launch *l, struct state *s)
{
    lks__signal_all(l, SIGKILL, -1);
    s->killed = true;
    s->kill_at = 0;
}

static void suspend(struct lks__launch *l, struct state *s)
{
    double before = lks__sys_now();
    lks__signal_all(l, SIGTSTP, -1);
    kill(getpid(), SIGSTOP); /* returns when we are continued */
    lks__signal_all(l, SIGCONT, -1);
    if (s->kill_at > 0)
        s->kill_at += lks__sys_now() - before;
}

static void on_signal(struct lks__launch *l, struct state *s, int sig)
{
    double now = lks__sys_now();
    if (sig == SIGCHLD) {
        reap(l, s);
    } else if (sig == SIGTSTP) {
        suspend(l, s);
    } else if (s->user_signal == 0 && !s->failed) {
        fprintf(stderr,
                "%s: passing signal %d (SIG%s) on to the ranks; they have %g s, a second "
                "signal kills\n",
                l->options->self, sig, sigabbrev_np(sig), STOP_GRACE_S);
        s->user_signal = sig;
        s->user_signal_at = now;
        s->kill_at = now + STOP_GRACE_S;
        lks__signal_all(l, sig, -1);
    } else if (s->failed || now - s->user_signal_at > SAME_CAUSE_S) {
        kill_all(l, s);
    }
}

static void supervise(struct lks__launch *l, struct state *s, int signals)
{
    reap(l, s); /* some may have ended before the descriptor was there */
    while (l->n_running > 0) {
        int wait_ms = -1;
        if (s->kill_at > 0) {
            double left = s->kill_at - lks__sys_now();
            wait_ms = left > 0 ? (int)(left * 1e3) + 1 : 0;
        }
        struct pollfd p = {.fd = signals, .events = POLLIN};
        if (poll(&p, 1, wait_ms) > 0) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
                on_signal(l, s, (int)info.ssi_signo);
        }
        if (s->kill_at > 0 && lks__sys_now() >= s->kill_at)
            kill_all(l, s);
    }
}

/* --- the end ------------------------------------------------------------------------------ */

/* What ranks have started and left goes, too: first asked, then killed. */
static void sweep(struct lks__launch *l, bool ask_first)
{
    double start = lks__sys_now(), kill_from = start + (ask_first ? TERM_GRACE_S : 0);
    bool asked = false;
    for (;;) {
        siginfo_t info;
        info.si_pid = 0;
        while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
            record_end(l, &info);
            info.si_pid = 0;
        }
        double now = lks__sys_now();
        int sig = now >= kill_from ? SIGKILL : asked ? 0 : SIGTERM;
        asked = true;
        if (lks__signal_all(l, sig, -1) == 0 || now - start > SWEEP_S)
            return;
        usleep(5000);
    }
}

static int exit_code_of(const struct lks__rank_process *p)
{
    return p->by_signal ? 128 + p->code : p->code;
}

/* The first rank that failed by itself: whom the group blames, if it ended badly, else the first
 * that we saw. -1: nobody. */
static int find_culprit(const struct lks__launch *l, const struct state *s)
{
    int first = -1;
    for (int r = 0; r < l->n_started; r++) {
        const struct lks__rank_process *p = &l->ranks[r];
        if (!failed(p))
            continue;
        if (first < 0 || p->order < l->ranks[first].order ||
            (p->order == l->ranks[first].order && p->by_signal && !l->ranks[first].by_signal))
            first = r;
    }
    if (s->first_by_rank && s->first_rank >= 0 && s->first_rank < l->n_started &&
        failed(&l->ranks[s->first_rank]))
        return s->first_rank;
    return first;
}

static int after_user_signal(const struct lks__launch *l, const struct state *s)
{
    char text[MAX_MESSAGE];
    int code = 0;
    for (int r = 0; r < l->n_started; r++) {
        const struct lks__rank_process *p = &l->ranks[r];
        if (code == 0)
            code = exit_code_of(p);
        if (!p->by_signal || p->code == s->user_signal || s->killed)
            continue;
        describe_end(l, r, text, sizeof text);
        fprintf(stderr, "%s: %s\n", l->options->self, text);
    }
    if (s->killed)
        fprintf(stderr, "%s: the ranks were killed\n", l->options->self);
    return code;
}

/* Say who failed and how; the launch's exit code. */
static int conclude(const struct lks__launch *l, const struct state *s)
{
    if (s->user_signal != 0)
        return after_user_signal(l, s);
    int culprit = find_culprit(l, s);
    if (culprit < 0)
        return 0;
    const struct lks__rank_process *p = &l->ranks[culprit];
    char text[MAX_MESSAGE];
    int first = -1;
    for (int r = 0; r < l->n_started; r++)
        if (failed(&l->ranks[r]) && (first < 0 || l->ranks[r].order < l->ranks[first].order))
            first = r;
    char report[LKS__SHM_REPORT];
    lks__segment_report(l->segment, report);
    fputs(report, stderr);
    describe_end(l, culprit, text, sizeof text);
    /* A rank that still ran when the others gave it up was ended by us: what they said counts. */
    bool hung = s->first_by_rank && p->by_signal && p->order > l->ranks[first].order;
    if (hung)
        fprintf(stderr, "%s: rank %d (pid %d) was ended: %s\n", l->options->self, culprit,
                (int)p->pid, s->first_text);
    else if (s->first_by_rank && !p->by_signal)
        fprintf(stderr, "%s: %s: %s\n", l->options->self, text, why_of(s->first_text));
    else
        fprintf(stderr, "%s: %s\n", l->options->self, text);
    return exit_code_of(hung ? &l->ranks[first] : p);
}

/* --- the launch --------------------------------------------------------------------------- */

/* The program can't be executed: the same for every rank, so said once. */
static int say_not_executable(const struct lks__launch *l, int err)
{
    char shown[512];
    const char *program = l->options->argv[0];
    fprintf(stderr, "%s: can't execute \"%s\": %s\n", l->options->self,
            lks__escape(shown, sizeof shown, program, strlen(program)), strerror(err));
    return err == ENOENT ? 127 : 126;
}

static lks_status start_and_watch(struct lks__launch *l, int signals, int *exit_code_p)
{
    struct state s = {.first_rank = -1};
    lks__guard_start(l);
    for (int r = 0; r < l->options->nproc; r++) {
        int exec_errno = 0;
        lks_status st = lks__start_rank(l, r, &exec_errno);
        if (st == LKS_OK && exec_errno == 0)
            continue;
        if (st == LKS_OK)
            *exit_code_p = say_not_executable(l, exec_errno);
        sweep(l, false);
        return st;
    }
    supervise(l, &s, signals);
    sweep(l, !s.killed);
    *exit_code_p = conclude(l, &s);
    return LKS_OK;
}

static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP};

lks_status lks__launch(const lks__launch_options *options, int *exit_code_p)
{
    if (options->argv == NULL || options->argv[0] == NULL)
        return lks__fail(LKS_ERR_ARG, "there is no program to start");
    struct lks__launch l = {.options = options, .guard = -1, .guard_fd = -1};
    LKS__TRY(lks__segment_create(options->nproc, &l.segment)); /* checks nproc */
    lks_status st = LKS_OK;
    sigset_t mask;
    int signals = -1;
    l.master_port = lks__free_port();
    l.ranks = calloc((size_t)options->nproc, sizeof *l.ranks);
    if (l.ranks == NULL) {
        lks__segment_close(l.segment);
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", options->nproc);
    }
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++)
        sigaddset(&mask, watched[i]);
    signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) {
        st = lks__fail(LKS_ERR_IO, "can't watch for signals: %s", strerror(errno));
        goto out;
    }
    struct sigaction old_child, child = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &child, &old_child); /* where it was ignored, nobody could be waited for */
    sigprocmask(SIG_BLOCK, &mask, &l.old_mask);
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    st = start_and_watch(&l, signals, exit_code_p);

    lks__guard_stop(&l);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    sigprocmask(SIG_SETMASK, &l.old_mask, NULL);
    sigaction(SIGCHLD, &old_child, NULL);
    close(signals);
out:
    free(l.ranks);
    lks__segment_close(l.segment);
    return st;
}
