#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "launch/ranks/supervisor.h"

/* Seconds. */
static const double TERM_GRACE_S = 1.0; /* from SIGTERM to SIGKILL after a failure */
static const double STUCK_S = 5.0;      /* from SIGKILL to a message about a rank that still runs */
static const double SWEEP_S = 2.0;      /* time for remaining processes to end */
static const double DRAIN_S = 0.05;

/* --- beginning and end -------------------------------------------------------------------- */

enum { OWN_POLLS = 3 };

lks_status lks__supervisor_begin(struct lks__supervisor *sup, struct lks__attempt *a,
                                 struct lks__nodes *nodes)
{
    double now = lks__sys_now();
    *sup = (struct lks__supervisor){
        .attempt = a, .nodes = nodes, .look_from = now, .looked_at = now, .first_rank = -1};
    /* The end of an earlier attempt may have hurried. */
    if (a->job->consoles != NULL)
        lks__consoles_unhurry(a->job->consoles);
    sup->polls = calloc((size_t)lks__output_polls(a->nproc) + OWN_POLLS, sizeof *sup->polls);
    return sup->polls != NULL ? LKS_OK : lks__no_memory("for %d ranks", a->nproc);
}

/* --- ends --------------------------------------------------------------------------------- */

static void end_ranks(struct lks__supervisor *sup, int spared)
{
    sup->failed = true;
    lks__signal_all(sup->attempt, SIGTERM, spared);
    sup->kill_at = lks__sys_now() + TERM_GRACE_S;
    lks_status st;
    int rank;
    char why[LKS__LAUNCH_MESSAGE];
    lks__segment_failure(sup->attempt->segment, &st, &rank, why, sizeof why);
    lks__nodes_down(sup->nodes, st, why);
}

/* Keep the failure that the group has recorded already. Returns its status. */
static lks_status keep_first(struct lks__supervisor *sup)
{
    lks_status st;
    lks__segment_failure(sup->attempt->segment, &st, &sup->first_rank, sup->first_text,
                         sizeof sup->first_text);
    sup->first_by_rank = true;
    return st;
}

/* Record that a rank has ended, for the ranks that wait for it. Returns the rank that gave up by
 * itself earlier, and is about to exit with a code for the cause; -1: none. */
static int record_failure(struct lks__supervisor *sup, int rank)
{
    char text[LKS__LAUNCH_MESSAGE];
    lks__describe_end(sup->attempt, rank, text);
    sup->first_by_rank = false;
    /* After a signal to stop, the end of a rank is no failure for the others. */
    const lks_status st = sup->user_signal != 0 ? LKS_ERR_STOPPED : LKS_ERR_PEER;
    if (lks__segment_abort(sup->attempt->segment, st, rank, text))
        return -1;
    return keep_first(sup) == LKS_ERR_PEER ? sup->first_rank : -1;
}

/* A rank that ended with code 0 never joins: tell the ranks on other nodes that wait for it. */
static void tell_absence(const struct lks__supervisor *sup, int rank)
{
    char text[LKS__LAUNCH_MESSAGE], end[LKS__LAUNCH_MESSAGE];
    lks__describe_end(sup->attempt, rank, end);
    snprintf(text, sizeof text,
             "%.700s while other ranks still waited for it. All ranks must make the same "
             "calls: find out why rank %d ended so early",
             end, sup->attempt->first_global + rank);
    lks__nodes_never_joins(sup->nodes, text);
}

static void record_end(struct lks__supervisor *sup, const siginfo_t *info)
{
    struct lks__attempt *a = sup->attempt;
    for (int r = 0; r < a->n_started; r++) {
        struct lks__rank_process *p = &a->ranks[r];
        if (!p->running || p->pid != info->si_pid)
            continue;
        p->running = false;
        p->by_signal = info->si_code != CLD_EXITED;
        p->code = info->si_status;
        p->order = a->n_ended;
        p->late = sup->failed;
        a->n_running--;
        if (lks__segment_rank_ended(a->segment, r, p->pid) && !lks__rank_failed(p) &&
            !sup->failed && sup->user_signal == 0)
            tell_absence(sup, r);
    }
    if (info->si_pid == a->guard)
        a->guard = -1;
}

/* The signal on which a rank ended in an orderly way, or 0. A rank that exits with 128 + SIGUSRn
 * treated the signal that we passed on as a request to stop. Ranks may also have agreed to stop on
 * a signal that one of them received from elsewhere. */
static int orderly(const struct lks__supervisor *sup, const struct lks__rank_process *p)
{
    const int signals[] = {sup->passed_on, lks__segment_asked_stop(sup->attempt->segment),
                           sup->user_signal};
    for (int i = 0; i < 3; i++)
        if (signals[i] != 0 && !p->by_signal && p->code == 128 + signals[i])
            return signals[i];
    return 0;
}

/* Start the ranks' time to end. `sig` 0: no signal asked them to. */
static void ask_orderly(struct lks__supervisor *sup, int sig)
{
    if (sig == 0)
        return;
    sup->user_signal = sig;
    sup->user_signal_at = lks__sys_now();
    sup->kill_at = sup->user_signal_at + sup->attempt->job->options->shutdown_timeout_s;
}

/* Collect ended ranks. */
static void reap(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    siginfo_t info;
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
            break;
        record_end(sup, &info);
    }
    const int first = lks__first_failed(a, a->n_ended);
    a->n_ended++;
    if (first >= 0 && !sup->failed && sup->user_signal == 0)
        ask_orderly(sup, orderly(sup, &a->ranks[first]));
    if (first >= 0 && !sup->failed && sup->user_signal == 0) {
        end_ranks(sup, record_failure(sup, first));
    } else if (first >= 0 && !sup->failed && !sup->gave_up && orderly(sup, &a->ranks[first]) == 0) {
        sup->gave_up = true; /* it died while all were stopping: the others must not wait for it */
        record_failure(sup, first);
    }
}

/* Ranks of another node have failed: end ours, if any run. */
static void end_with_others(struct lks__supervisor *sup, const struct lks__nodes_event *event)
{
    const char *text = event->why[0] != '\0' ? event->why : "ranks on another node have ended";
    struct lks__attempt *a = sup->attempt;
    char table[LKS__SHM_REPORT];
    reap(sup); /* ranks that have ended before this point did so by themselves */
    /* If only output is left, the other nodes wait for our verdict. */
    if (a->n_running == 0)
        lks__hurry(a->job);
    if (a->n_running == 0 || sup->failed)
        return;
    if (sup->user_signal == 0)
        ask_orderly(sup, lks__segment_asked_stop(a->segment));
    if (sup->user_signal != 0) { /* our ranks stop, too: one may still save, and gets time for it */
        if (!event->orderly)
            lks__segment_abort(a->segment, LKS_ERR_PEER, -1, text);
        return;
    }
    sup->failed = sup->ended_by_others = true;
    /* The table is shown if ranks of another node found that one of our ranks makes no progress. */
    lks__segment_table(a->segment, a->nproc, a->first_global, table, sizeof table);
    int spared = -1;
    if (!lks__segment_abort_report(a->segment, event->status, -1, text, table)) {
        /* If a rank of ours gave up, the others have ended because of it: it usually exits within
         * the grace, and its own code counts. One that has left with code 0 isn't named by us. */
        const lks_status st = keep_first(sup);
        const bool is_lost = st == LKS_ERR_PEER && sup->first_rank >= 0;
        sup->ended_by_others =
            sup->first_rank < 0 || (is_lost && !a->ranks[sup->first_rank].running);
        spared = is_lost ? sup->first_rank : -1;
    }
    lks__signal_all(a, SIGTERM, spared);
    sup->kill_at = lks__sys_now() + TERM_GRACE_S;
}

/* --- signals ------------------------------------------------------------------------------ */

static void kill_all(struct lks__supervisor *sup)
{
    lks__signal_all(sup->attempt, SIGKILL, -1);
    if (sup->user_signal != 0)
        /* From now on the other nodes have some seconds. */
        lks__nodes_down(sup->nodes, LKS_ERR_PEER, "");
    if (!sup->killed)
        sup->stuck_at = lks__sys_now() + STUCK_S;
    sup->killed = true;
    sup->kill_at = 0;
}

/* A killed rank hasn't ended: explain why this command waits. */
static void name_stuck(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    int r = 0;
    while (!a->ranks[r].running)
        r++;
    lks__say_here(a->job,
                  "rank %d (pid %d, host %s) was killed %g s ago, and hasn't ended: the kernel "
                  "still works for it, usually because a disk or a network file system doesn't "
                  "answer. This command ends after it",
                  a->first_global + r, (int)a->ranks[r].pid, a->job->host, STUCK_S);
    sup->stuck_at = 0;
}

static void suspend(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    double before = lks__sys_now();
    lks__signal_all(a, SIGTSTP, -1);
    raise(SIGSTOP); /* to this thread: returns when we are continued */
    lks__signal_all(a, SIGCONT, -1);
    if (sup->kill_at > 0)
        sup->kill_at += lks__sys_now() - before;
}

/* The user, here or on another node, wants the ranks to stop. */
static void pass_on(struct lks__supervisor *sup, int sig)
{
    struct lks__attempt *a = sup->attempt;
    if (a->n_running == 0) /* all ranks have ended, and only output is left */
        lks__hurry_most(a->job);
    if (a->n_running == 0 || sup->user_signal != 0 || sup->failed)
        return;
    lks__say(a->job,
             "passing signal %d (SIG%s) on to the ranks; ranks without a heartbeat for %g s are "
             "killed. A second signal kills all ranks at once (during a save, a third one)",
             sig, lks__signal_name(sig), a->job->options->shutdown_timeout_s);
    ask_orderly(sup, sig);
    lks__deliver(a, sig);
}

/* The user wants the ranks to end at once. While a checkpoint is being written, that takes a third
 * signal. */
static void insist(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    if (!sup->failed && !sup->held_back && lks__segment_saving(a->segment, true)) {
        sup->held_back = true;
        sup->user_signal_at = lks__sys_now();
        lks__say(a->job,
                 "a checkpoint is being saved, the ranks end after it; a third signal kills");
    } else {
        lks__hurry_most(a->job);
        kill_all(sup);
    }
}

/* True if ranks run, and all have been without a heartbeat for the shutdown timeout, since the
 * signal or the last heartbeat. Waiting for another rank doesn't count as a heartbeat. */
static bool out_of_time(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    double now = lks__sys_now(), last = 0;
    for (int r = 0; r < a->n_started; r++) {
        lks__rank_status s;
        if (!a->ranks[r].running)
            continue;
        lks__segment_status(a->segment, r, &s);
        if (s.state != LKS__RANK_ABSENT && now - s.beat_age_s > last)
            last = now - s.beat_age_s;
    }
    double until = last + a->job->options->shutdown_timeout_s;
    if (sup->user_signal != 0 && !sup->failed && until > sup->kill_at)
        sup->kill_at = until;
    return a->n_running > 0 && now >= sup->kill_at;
}

/* True if a rank without a heartbeat is itself the cause, false if it waits for others. */
static bool stands_still(const struct lks__rank_process *p, const lks__rank_status *s)
{
    const char state = lks__sys_process_state(p->pid);
    return s->state != LKS__RANK_JOINED || !(s->waiting || s->among_devices) || state == 'T' ||
           state == 't' || state == 'D';
}

/* Ranks are killed because they haven't ended in time: name the first rank that is a cause. */
static void name_late(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    sup->all_wait = true;
    for (int r = 0; r < a->n_started && sup->all_wait; r++) {
        lks__rank_status s;
        char where[96] = "";
        if (!a->ranks[r].running)
            continue;
        lks__segment_status(a->segment, r, &s);
        sup->all_wait = !stands_still(&a->ranks[r], &s);
        if (s.state != LKS__RANK_ABSENT && s.phase[0] != '\0')
            snprintf(where, sizeof where, " at step %llu, phase %s", (unsigned long long)s.step,
                     s.phase);
        if (!sup->all_wait)
            snprintf(sup->late_text, sizeof sup->late_text,
                     "rank %d (pid %d, host %s) hasn't ended within %g s of %s%s; the ranks were "
                     "killed",
                     a->first_global + r, (int)a->ranks[r].pid, a->job->host,
                     a->job->options->shutdown_timeout_s,
                     s.state != LKS__RANK_ABSENT ? "its last heartbeat" : "the signal", where);
    }
}

/* The process in front has been killed: end all processes that we started, and ourselves. */
static _Noreturn void front_is_gone(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    lks__hurry_most(a->job);
    if (a->n_started > 0)
        lks__end_all(sup);
    _exit(128 + SIGKILL);
}

static void on_signal(struct lks__supervisor *sup, int sig)
{
    double now = lks__sys_now();
    if (sig == SIGCHLD) {
        reap(sup);
    } else if (sig == LKS__FRONT_GONE) {
        front_is_gone(sup);
    } else if (sig == SIGTSTP) {
        suspend(sup);
    } else if (sig == SIGUSR1 || sig == SIGUSR2) {
        sup->passed_on = sig;
        lks__deliver(sup->attempt, sig); /* it isn't meant to end the program */
    } else if (sup->user_signal == 0 && !sup->failed) {
        sup->signalled = true;
        pass_on(sup, sig);
        lks__nodes_signal(sup->nodes, sig);
    } else if (sig == sup->user_signal && !sup->signalled) {
        /* Another node received the request earlier, and has passed it on to us. */
        sup->signalled = true;
        sup->user_signal_at = now;
    } else if (sup->failed || now - sup->user_signal_at > LKS__SAME_CAUSE_S) {
        if (sup->failed && !sup->signalled) /* the other nodes must not restart the ranks, either */
            lks__nodes_signal(sup->nodes, sig);
        sup->signalled = true;
        insist(sup);
    }
}

static void take_signals(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    const int sig = lks__lifeline_signal(a->job);
    if (a->job->cut && sig != 0) { /* the process that could stop us in an orderly way has ended */
        sup->user_signal = sup->user_signal != 0 ? sup->user_signal : sig;
        kill_all(sup);
    } else if (sig != 0) {
        on_signal(sup, sig);
    }
    for (int next; (next = lks__job_next_signal(a->job)) != 0;)
        on_signal(sup, next);
}

static void take_events(struct lks__supervisor *sup)
{
    struct lks__nodes_event event;
    while (lks__nodes_next(sup->nodes, sup->user_signal != 0, &event)) {
        if (event.signal != 0)
            pass_on(sup, event.signal);
        take_signals(sup); /* the user's signal may be what has ended another node */
        if (event.end_ours)
            end_with_others(sup, &event);
    }
}

static double sooner(double a, double b) /* 0: never */
{
    return b > 0 && (a <= 0 || b < a) ? b : a;
}

/* Wait for events, at most until `until` (0: no limit), and pass on output meanwhile. */
static void wait_and_serve(struct lks__supervisor *sup, double until)
{
    struct lks__attempt *a = sup->attempt;
    int wait_ms = -1;
    if (sup->failed || sup->user_signal != 0)
        lks__hurry(a->job);
    until = sooner(until, lks__output_next(a->job->output));
    until = sooner(until, lks__nodes_due(sup->nodes));
    if (until > 0) {
        double left = until - lks__sys_now();
        wait_ms = left > 0 ? (int)(left * 1e3) + 1 : 0;
    }
    sup->polls[0] = (struct pollfd){.fd = a->job->signals, .events = POLLIN};
    sup->polls[1] = (struct pollfd){.fd = lks__nodes_fd(sup->nodes), .events = POLLIN};
    sup->polls[2] = (struct pollfd){.fd = lks__lifeline_fd(a->job), .events = POLLIN};
    int n = lks__output_fill(a->job->output, sup->polls + OWN_POLLS);
    if (poll(sup->polls, (nfds_t)n + OWN_POLLS, wait_ms) < 0)
        return;
    lks__output_step(a->job->output, sup->polls + OWN_POLLS, n);
    take_events(sup);
    take_signals(sup);
}

/* --- the end ------------------------------------------------------------------------------ */

/* End the processes that ranks have started and left: first ask, then kill. */
static void sweep(struct lks__supervisor *sup, bool ask_first)
{
    struct lks__attempt *a = sup->attempt;
    double start = lks__sys_now(), kill_from = start + (ask_first ? TERM_GRACE_S : 0);
    bool asked = false;
    for (;;) {
        reap(sup);
        double now = lks__sys_now();
        int sig = now >= kill_from ? SIGKILL : asked ? 0 : SIGTERM;
        asked = true;
        if (lks__signal_all(a, sig, -1) == 0 || now - start > SWEEP_S)
            break;
        wait_and_serve(sup, now + 0.005);
    }
    while (!lks__output_drain(a->job->output, true))
        wait_and_serve(sup, lks__sys_now() + DRAIN_S);
}

void lks__supervise(struct lks__supervisor *sup)
{
    struct lks__attempt *a = sup->attempt;
    reap(sup); /* some may have ended before the descriptor existed */
    for (int sig = 1; a->job->early >> sig != 0; sig++)
        if (a->job->early >> sig & 1)
            on_signal(sup, sig);
    a->job->early = 0;
    while (a->n_running > 0) {
        wait_and_serve(sup, sooner(sooner(sup->kill_at > 0 ? sup->kill_at : lks__still_next(sup),
                                          sup->stuck_at),
                                   lks__deliver_next(a)));
        lks__deliver_due(a);
        if (lks__still_look(sup))
            end_ranks(sup, -1);
        if (sup->kill_at > 0 && lks__sys_now() >= sup->kill_at && out_of_time(sup)) {
            if (!sup->failed)
                name_late(sup);
            kill_all(sup);
        }
        if (sup->stuck_at > 0 && lks__sys_now() >= sup->stuck_at && a->n_running > 0)
            name_stuck(sup);
    }
    sweep(sup, !sup->killed);
}

void lks__end_all(struct lks__supervisor *sup)
{
    sup->failed = true;
    sweep(sup, false);
}
