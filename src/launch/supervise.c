#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/hosts.h"
#include "launch/nodes.h"
#include "launch/process.h"

/* Seconds. */
static const double TERM_GRACE_S = 1.0; /* from SIGTERM to SIGKILL after a failure */
static const double SAME_CAUSE_S = 0.3; /* a terminal that closes may send one signal twice */
static const double SWEEP_S = 2.0;      /* for remaining processes to end */
static const double DRAIN_S = 0.05;

/* --- ends --------------------------------------------------------------------------------- */

static void end_ranks(struct lks__launch *l, int spared)
{
    l->failed = true;
    lks__signal_all(l, SIGTERM, spared);
    l->kill_at = lks__sys_now() + TERM_GRACE_S;
    lks__nodes_down(l);
}

/* A rank has failed: inform the ranks that wait for it, record the failure, end them. */
static void stop_all(struct lks__launch *l, int rank)
{
    char text[LKS__LAUNCH_MESSAGE];
    int leaving = -1;
    lks__describe_end(l, rank, text);
    l->first_by_rank = !lks__segment_abort(l->segment, LKS_ERR_PEER, rank, text);
    if (l->first_by_rank) {
        lks_status st;
        lks__segment_failure(l->segment, &st, &l->first_rank, l->first_text, sizeof l->first_text);
        /* A rank that gave up by itself is about to exit, with the code that gives the cause. */
        if (st == LKS_ERR_PEER)
            leaving = l->first_rank;
    }
    end_ranks(l, leaving);
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
        p->late = l->failed;
        l->n_running--;
    }
    if (info->si_pid == l->guard) {
        l->guard = -1;
        lks__guard_stop(l);
    }
}

/* A rank has died while all were stopping: the others must not wait for it. */
static void give_up(struct lks__launch *l, int rank)
{
    char text[LKS__LAUNCH_MESSAGE];
    lks__describe_end(l, rank, text);
    lks__segment_abort(l->segment, LKS_ERR_PEER, rank, text);
}

/* The signal on which a rank ended in an orderly way, or 0. A rank that exits with 128 + SIGUSRn
 * treated the signal that we passed on as a request to stop. Ranks may also have agreed to stop on
 * a signal that one of them got from elsewhere. */
static int orderly(const struct lks__launch *l, const struct lks__rank_process *p)
{
    const int signals[] = {l->passed_on, lks__segment_asked_stop(l->segment), l->user_signal};
    for (int i = 0; i < 3; i++)
        if (signals[i] != 0 && !p->by_signal && p->code == 128 + signals[i])
            return signals[i];
    return 0;
}

/* From now on the ranks have their time to end; 0: no signal asked them to. */
static void ask_orderly(struct lks__launch *l, int sig)
{
    if (sig == 0)
        return;
    l->user_signal = sig;
    l->user_signal_at = lks__sys_now();
    l->kill_at = l->user_signal_at + l->options->shutdown_timeout_s;
}

/* Collect ended ranks. Of several failures seen at once, one by a signal is the cause, and an exit
 * code a consequence. */
static void reap(struct lks__launch *l)
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
        if (p->running || p->order != l->n_ended || !lks__rank_failed(p))
            continue;
        if (first < 0 || (p->by_signal && !l->ranks[first].by_signal))
            first = r;
    }
    l->n_ended++;
    if (first >= 0 && !l->failed && l->user_signal == 0)
        ask_orderly(l, orderly(l, &l->ranks[first]));
    if (first >= 0 && !l->failed && l->user_signal == 0)
        stop_all(l, first);
    else if (first >= 0 && !l->failed && orderly(l, &l->ranks[first]) == 0)
        give_up(l, first);
}

void lks__end_with_others(struct lks__launch *l)
{
    reap(l); /* ranks that have ended by now did so by themselves */
    if (l->segment == NULL || l->n_running == 0 || l->failed)
        return;
    l->failed = l->ended_by_others = true;
    if (!lks__segment_abort(l->segment, LKS_ERR_PEER, -1, "ranks on another node have ended")) {
        lks_status st;
        lks__segment_failure(l->segment, &st, &l->first_rank, l->first_text, sizeof l->first_text);
        l->first_by_rank = true;
        /* Otherwise they have ended because of ours; a rank that lost a peer only noticed their
         * end. */
        l->ended_by_others = l->first_rank < 0 || st == LKS_ERR_PEER;
    }
    lks__signal_all(l, SIGTERM, -1);
    l->kill_at = lks__sys_now() + TERM_GRACE_S;
}

/* --- signals ------------------------------------------------------------------------------ */

static void kill_all(struct lks__launch *l)
{
    lks__signal_all(l, SIGKILL, -1);
    l->killed = true;
    l->kill_at = 0;
}

static void suspend(struct lks__launch *l)
{
    double before = lks__sys_now();
    lks__signal_all(l, SIGTSTP, -1);
    raise(SIGSTOP); /* to this thread: returns when we are continued */
    lks__signal_all(l, SIGCONT, -1);
    if (l->kill_at > 0)
        l->kill_at += lks__sys_now() - before;
}

void lks__pass_on(struct lks__launch *l, int sig)
{
    if (l->segment != NULL && l->n_running == 0) /* all ranks have ended, and only output is left */
        lks__hurry_most(l);
    if (l->segment == NULL || l->n_running == 0 || l->user_signal != 0 || l->failed)
        return;
    const char *name = sigabbrev_np(sig);
    lks__say(l,
             "passing signal %d (SIG%s) on to the ranks; they have %g s from their last "
             "heartbeat, a second signal kills",
             sig, name != NULL ? name : "?", l->options->shutdown_timeout_s);
    ask_orderly(l, sig);
    lks__deliver(l, sig);
}

/* The user wants an end at once. While a checkpoint is being written, that takes a third signal. */
static void insist(struct lks__launch *l)
{
    if (!l->failed && !l->held_back && lks__segment_saving(l->segment, true)) {
        l->held_back = true;
        l->user_signal_at = lks__sys_now();
        lks__say(l, "a checkpoint is being saved, the ranks end after it; a third signal kills");
    } else {
        lks__hurry_most(l);
        kill_all(l);
    }
}

/* Have all running ranks been without a heartbeat for their time, since the signal or the last
 * heartbeat? Waiting for another rank is none. */
static bool out_of_time(struct lks__launch *l)
{
    double now = lks__sys_now(), last = 0;
    for (int r = 0; r < l->n_started; r++) {
        lks__rank_status s;
        if (!l->ranks[r].running)
            continue;
        lks__segment_status(l->segment, r, &s);
        if (s.state != LKS__RANK_ABSENT && now - s.beat_age_s > last)
            last = now - s.beat_age_s;
    }
    double until = last + l->options->shutdown_timeout_s;
    if (l->user_signal != 0 && !l->failed && until > l->kill_at)
        l->kill_at = until;
    return now >= l->kill_at;
}

static void on_signal(struct lks__launch *l, int sig)
{
    double now = lks__sys_now();
    if (sig == SIGCHLD) {
        reap(l);
    } else if (sig == LKS__FRONT_GONE) {
        lks__front_is_gone(l);
    } else if (sig == SIGTSTP) {
        suspend(l);
    } else if (sig == SIGUSR1 || sig == SIGUSR2) {
        l->passed_on = sig;
        lks__deliver(l, sig); /* it isn't meant to end the program */
    } else if (l->user_signal == 0 && !l->failed) {
        lks__pass_on(l, sig);
        lks__nodes_signal(l, sig);
    } else if (l->failed || now - l->user_signal_at > SAME_CAUSE_S) {
        insist(l);
    }
}

int lks__lifeline_fd(const struct lks__launch *l)
{
    return l->options->lifeline && !l->cut ? STDIN_FILENO : -1;
}

int lks__lifeline_signal(struct lks__launch *l)
{
    int sig = lks__lifeline_fd(l) >= 0 ? lks__lifeline_look() : 0;
    l->cut |= sig < 0;
    return sig < 0 ? SIGHUP : sig;
}

static double sooner(double a, double b) /* 0: never */
{
    return b > 0 && (a <= 0 || b < a) ? b : a;
}

/* Wait for events, at most until `until` (0: no limit), and pass output on meanwhile. */
static void wait_and_serve(struct lks__launch *l, double until)
{
    int wait_ms = -1;
    if (l->failed || l->user_signal != 0)
        lks__hurry(l);
    until = sooner(until, lks__output_next(l->output));
    if (until > 0) {
        double left = until - lks__sys_now();
        wait_ms = left > 0 ? (int)(left * 1e3) + 1 : 0;
    }
    l->polls[0] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    l->polls[1] = (struct pollfd){.fd = lks__nodes_fd(l), .events = POLLIN};
    l->polls[2] = (struct pollfd){.fd = lks__lifeline_fd(l), .events = POLLIN};
    int n = lks__output_fill(l->output, l->polls + 3);
    if (poll(l->polls, (nfds_t)n + 3, wait_ms) < 0)
        return;
    lks__output_step(l->output, l->polls + 3, n);
    lks__nodes_step(l);
    int sig = lks__lifeline_signal(l);
    if (l->cut && sig != 0) { /* the process that could stop us orderly is gone */
        l->user_signal = l->user_signal != 0 ? l->user_signal : sig;
        kill_all(l);
    } else if (sig != 0) {
        on_signal(l, sig);
    }
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(l, (int)info.ssi_signo);
}

/* --- the end ------------------------------------------------------------------------------ */

/* End the processes that ranks have started and left: first ask, then kill. */
static void sweep(struct lks__launch *l, bool ask_first)
{
    double start = lks__sys_now(), kill_from = start + (ask_first ? TERM_GRACE_S : 0);
    bool asked = false;
    for (;;) {
        reap(l);
        double now = lks__sys_now();
        int sig = now >= kill_from ? SIGKILL : asked ? 0 : SIGTERM;
        asked = true;
        if (lks__signal_all(l, sig, -1) == 0 || now - start > SWEEP_S)
            break;
        wait_and_serve(l, now + 0.005);
    }
    while (!lks__output_drain(l->output, true))
        wait_and_serve(l, lks__sys_now() + DRAIN_S);
}

void lks__supervise(struct lks__launch *l)
{
    reap(l); /* some may have ended before the descriptor existed */
    for (int sig = 1; l->early >> sig != 0; sig++)
        if (l->early >> sig & 1)
            on_signal(l, sig);
    l->early = 0;
    while (l->n_running > 0) {
        wait_and_serve(
            l, sooner(l->kill_at > 0 ? l->kill_at : lks__still_next(l), lks__deliver_next(l)));
        lks__deliver_due(l);
        if (lks__still_look(l))
            end_ranks(l, -1);
        if (l->kill_at > 0 && lks__sys_now() >= l->kill_at && out_of_time(l))
            kill_all(l);
    }
    sweep(l, !l->killed);
}

void lks__end_all(struct lks__launch *l)
{
    l->failed = true;
    sweep(l, false);
}

_Noreturn void lks__front_is_gone(struct lks__launch *l)
{
    lks__hurry_most(l);
    if (l->n_started > 0)
        lks__end_all(l);
    _exit(128 + SIGKILL);
}
