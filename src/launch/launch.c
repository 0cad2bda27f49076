#include "launch/launch.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/early.h"
#include "base/sys.h"
#include "launch/nodes.h"
#include "launch/process.h"

/* Seconds. */
static const double SHUTDOWN_S = 30.0; /* torchrun's; enough to write a checkpoint */
static const double READER_S = 5.0;    /* for a reader who doesn't read, when ranks must end */
static const double INSIST_S = 0.2;    /* ... if the user sends another signal */

enum { MESSAGE_BYTES = 16 << 10 };

void lks__show(const struct lks__launch *l, const char *text)
{
    if (l->output != NULL)
        lks__output_drain(l->output, false);
    if (l->consoles != NULL && *text != '\0')
        lks__consoles_say(l->consoles, text);
}

void lks__say(const struct lks__launch *l, const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    va_list ap;
    if (l->options->quiet)
        return;
    int n = snprintf(text, sizeof text, "%s: ", l->options->self);
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n - 1, fmt, ap);
    va_end(ap);
    strcat(text, "\n");
    lks__show(l, text);
}

void lks__hurry(const struct lks__launch *l)
{
    double third = l->options->shutdown_timeout_s / 3;
    lks__consoles_hurry(l->consoles, third < READER_S ? third : READER_S);
}

void lks__hurry_most(const struct lks__launch *l)
{
    lks__consoles_hurry(l->consoles, INSIST_S);
}

/* --- one attempt -------------------------------------------------------------------------- */

/* The program can't be executed: the same for every rank, so print it once. */
static int say_not_executable(const struct lks__launch *l, int err)
{
    char shown[512];
    const char *program = l->options->argv[0];
    lks__say(l, "can't execute \"%s\": %s",
             lks__escape(shown, sizeof shown, program, strlen(program)), strerror(err));
    return err == ENOENT ? 127 : 126;
}

/* Print the last message: which rank failed, and its last lines. */
static void tell(const struct lks__launch *l, const struct lks__verdict *v, const char *tail)
{
    if (tail[0] != '\0')
        lks__say(l, "%s; its last lines on stderr:\n%.*s", v->text, (int)strlen(tail) - 1, tail);
    else
        lks__say(l, "%s", v->text);
}

/* Start all ranks and watch them until they end; *again_p: they may be restarted. */
static lks_status start_and_watch(struct lks__launch *l, int *exit_code_p, bool *again_p)
{
    lks__guard_start(l);
    for (int r = 0; r < l->nproc; r++) {
        int exec_errno = 0;
        lks_status st = lks__start_rank(l, r, &exec_errno);
        if (st == LKS_OK && exec_errno == 0)
            continue;
        if (st == LKS_OK)
            *exit_code_p = say_not_executable(l, exec_errno);
        lks__end_all(l);
        return st;
    }
    struct lks__verdict v;
    char table[LKS__SHM_REPORT], tail[2 * LKS__TAIL_BYTES] = "";
    lks__supervise(l);
    lks__verdict(l, &v);
    lks__files_errors(l, &v);
    lks__segment_report(l->segment, table);
    if (v.culprit >= 0) {
        lks__output_tail(l->output, v.culprit, tail);
        *again_p = l->attempt < l->options->max_restarts;
    }
    if (l->nodes == NULL)
        lks__show(l, table);
    else
        LKS__TRY(lks__nodes_settle(l, &v, table, tail, again_p));
    *exit_code_p = v.exit_code;
    if (v.text[0] != '\0')
        tell(l, &v, tail);
    if (*again_p)
        lks__say(l, "restart %d of %d", l->attempt + 1, l->options->max_restarts);
    return LKS_OK;
}

static lks_status attempt(struct lks__launch *l, int *exit_code_p, bool *again_p)
{
    l->n_started = l->n_running = l->n_ended = 0;
    l->failed = l->killed = l->ended_by_others = l->first_by_rank = false;
    l->stood_still = false;
    l->look_from = l->looked_at = lks__sys_now();
    l->first_rank = -1;
    l->user_signal = l->passed_on = 0;
    l->held_back = false;
    l->kill_at = 0;
    l->guard = l->guard_fd = -1;
    l->oom_kills = lks__oom_kills();
    if (l->nodes != NULL) {
        bool over;
        LKS__TRY(lks__nodes_gather(l, &over, exit_code_p));
        if (over)
            return LKS_OK;
    } else {
        l->master_port = l->options->endpoint_port != 0 ? l->options->endpoint_port
                                                        : lks__free_port(l->master_addr);
    }
    int nproc = l->nproc;
    LKS__TRY(lks__segment_create(nproc, &l->segment));
    l->ranks = calloc((size_t)nproc, sizeof *l->ranks);
    l->polls = calloc((size_t)lks__output_polls(nproc) + 3, sizeof *l->polls);
    lks_status st = LKS_OK;
    if (l->ranks == NULL || l->polls == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", nproc);
    if (st == LKS_OK)
        st = lks__files_attempt(l);
    if (st == LKS_OK)
        st = start_and_watch(l, exit_code_p, again_p);
    lks__guard_stop(l);
    lks__files_close(l);
    free(l->ranks);
    free(l->polls);
    lks__segment_close(l->segment);
    l->segment = NULL;
    return st;
}

/* --- the launch --------------------------------------------------------------------------- */

static lks_status open_job(struct lks__launch *l)
{
    const lks__launch_options *o = l->options;
    char name[sizeof l->host] = "localhost";
    gethostname(name, sizeof name - 1);
    lks__escape(l->host, sizeof l->host, name, strlen(name));
    LKS__TRY(lks__token_new(l->job));
    l->nproc = l->world_size = o->nproc;
    l->n_groups = 1;
    snprintf(l->master_addr, sizeof l->master_addr, "%s",
             o->endpoint_host != NULL ? o->endpoint_host : "127.0.0.1");
    l->given_id = o->run_id != NULL ? o->run_id : "none";
    bool several = o->max_nodes > 1;
    snprintf(l->run_id, sizeof l->run_id, "%s",
             o->run_id != NULL || several ? l->given_id : l->job);
    LKS__TRY(lks__files_open(l));
    if (several) {
        snprintf(l->token, sizeof l->token, "%s", o->token);
        snprintf(l->store_host, sizeof l->store_host, "%s", l->master_addr);
        l->store_port = o->endpoint_port;
        return lks__nodes_open(l);
    }
    LKS__TRY(lks__token_new(l->token));
    snprintf(l->local_address, sizeof l->local_address, "%s",
             o->local_addr != NULL ? o->local_addr : "127.0.0.1");
    snprintf(l->store_host, sizeof l->store_host, "127.0.0.1");
    LKS__TRY(lks__store_serve(l->store_host, 0, l->token, &l->store));
    l->store_port = lks__store_port(l->store);
    return LKS_OK;
}

static const int always_watched[] = {SIGCHLD, SIGTSTP};
static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/* Of these signals, the ones that were not ignored when we started: ignored ones stay ignored
 * (under nohup, or in a background job of a shell without job control). */
static void signal_mask(const lks__launch_options *o, sigset_t *mask)
{
    sigemptyset(mask);
    for (size_t i = 0; i < sizeof always_watched / sizeof always_watched[0]; i++)
        sigaddset(mask, always_watched[i]);
    for (size_t i = 0; o->signals == 0 && i < sizeof passed_on / sizeof passed_on[0]; i++)
        sigaddset(mask, passed_on[i]);
    for (int sig = 1; sig < 64; sig++)
        if (o->signals >> sig & 1)
            sigaddset(mask, sig);
    for (int sig = 1; sig < 64; sig++)
        if (sig != SIGCHLD && lks__signal_is_ignored(sig))
            sigdelset(mask, sig);
}

/* All processes of the job have ended; only its output is left. After a success wait for its
 * reader, as any program does, until a signal comes; otherwise only briefly. */
static void close_consoles(struct lks__launch *l, int exit_code)
{
    static const int others[] = {SIGCHLD, SIGTSTP, SIGUSR1, SIGUSR2};
    sigset_t stops;
    sigprocmask(SIG_SETMASK, NULL, &stops);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        sigdelset(&stops, others[i]);
    signalfd(l->signals, &stops, 0);
    if (l->consoles != NULL && exit_code != 0)
        lks__hurry(l);
    lks__consoles_close(l->consoles, l->signals);
    l->consoles = NULL;
}

/* In the launcher's own process. */
static lks_status launch(struct lks__launch *l, sigset_t *mask, int *exit_code_p)
{
    sigaddset(mask, LKS__FRONT_GONE);
    l->signals = signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signals < 0)
        return lks__fail(LKS_ERR_IO, "can't watch for signals: %s", strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    lks_status st = lks__consoles_open(&l->consoles);
    if (st == LKS_OK)
        st = open_job(l);
    for (bool again = true; st == LKS_OK && again; l->attempt++) {
        again = false; /* with other nodes, they decide on the attempt */
        st = attempt(l, exit_code_p, &again);
    }
    lks__nodes_close(l);
    lks__store_stop(l->store);
    close_consoles(l, st == LKS_OK ? *exit_code_p : 1);
    lks__sys_close(l->signals);
    return st;
}

lks_status lks__launch(const lks__launch_options *given, int *exit_code_p)
{
    lks__launch_options options = *given;
    struct lks__launch l = {.options = &options};
    if (options.argv == NULL || options.argv[0] == NULL)
        return lks__fail(LKS_ERR_ARG, "there is no program to start");
    if (options.nproc < 1 || options.nproc > LKS__SEGMENT_MAX_RANKS)
        return lks__fail(LKS_ERR_ARG, "%d ranks: 1 to %d are possible on a host", options.nproc,
                         LKS__SEGMENT_MAX_RANKS);
    if (options.shutdown_timeout_s == 0)
        options.shutdown_timeout_s = SHUTDOWN_S;
    sigset_t mask, now;
    struct sigaction child = {.sa_handler = SIG_DFL}, ignored = {.sa_handler = SIG_IGN};
    signal_mask(&options, &mask);
    sigaction(SIGCHLD, &child, &l.old_child); /* if it is ignored, children can't be waited for */
    /* Our reader may go away, and our ranks are informed. */
    sigaction(SIGPIPE, &ignored, &l.old_pipe);
    sigprocmask(SIG_BLOCK, &mask, &l.old_mask);
    lks__early_subtract(&l.old_mask);
    sigorset(&now, &mask, &l.old_mask);
    /* Signals that came early and aren't watched are delivered now. */
    sigprocmask(SIG_SETMASK, &now, NULL);
    lks_status st = lks__front_fork(options.self, &mask, &l.old_mask);
    if (st == LKS_OK)
        st = launch(&l, &mask, exit_code_p);
    sigprocmask(SIG_SETMASK, &l.old_mask, NULL);
    sigaction(SIGPIPE, &l.old_pipe, NULL);
    sigaction(SIGCHLD, &l.old_child, NULL);
    return st;
}
