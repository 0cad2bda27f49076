/* A launch: one job, with attempts under one supervisor each, until an attempt succeeds or no
 * restart is left. */
#include "launch/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "launch/ranks/supervisor.h"

static const double SHUTDOWN_S = 30.0; /* torchrun's; enough to write a checkpoint */

/* --- one attempt -------------------------------------------------------------------------- */

/* The rest of the sentence: the likely reason why `program` can't be executed. */
static const char *why_not_executable(const char *program, int err)
{
    struct stat info;
    const bool path = strchr(program, '/') != NULL, found = stat(program, &info) == 0;
    const bool folder = found && S_ISDIR(info.st_mode), file = found && !folder;
    const char *dot = strrchr(program, '.');
    if (err != ENOENT && dot != NULL && strcmp(dot, ".c") == 0)
        return "; it is a source file: compile it, and run the result";
    if (!path && err == ENOENT)
        return folder ? " in PATH; here it is a folder"
               : file ? " in PATH; write ./ before its name to run the file in this folder"
                      : "";
    if (folder)
        return "; it is a folder";
    if (path && file && err == EACCES)
        return "; the file is not executable (chmod +x)";
    return path && file && err == ENOENT ? "; its first line (#!) names a program that is missing"
                                         : "";
}

/* The program can't be executed: the same for every rank, so print it once. */
static int say_not_executable(const struct lks__job *job, int err)
{
    const char *program = job->options->argv[0];
    const bool several = job->options->max_nodes > 1;
    lks__say_here(job, "can't execute \"%s\"%s%s: %s%s", lks__shown(program, 512),
                  several ? " on host " : "", several ? job->host : "", strerror(err),
                  why_not_executable(program, err));
    return err == ENOENT ? 127 : 126;
}

/* Tell the other nodes that this one can't start its ranks, for the reason `st`, or can't execute
 * the program: they end, too. Returns `st`, with its message. */
static lks_status tell_nodes(const struct lks__attempt *a, struct lks__nodes *nodes, lks_status st,
                             int *exit_code_p)
{
    const struct lks__job *job = a->job;
    char why[LKS__LAUNCH_MESSAGE], tail[2 * LKS__TAIL_BYTES] = "";
    const char *program = job->options->argv[0];
    struct lks__verdict v = {.culprit = 0, .exit_code = st == LKS_OK ? *exit_code_p : 1};
    /* An elastic job may restart without this node, but not without the first one. */
    const bool needed = job->options->min_nodes == job->options->max_nodes || a->group_rank == 0;
    const struct lks__nodes_report report = {.lasting = needed, .leaves = !needed, .table = ""};
    bool again;
    snprintf(why, sizeof why, "%s", lks_last_error());
    if (st != LKS_OK)
        snprintf(v.text, sizeof v.text, "host %s can't start its ranks: %.1900s", job->host, why);
    else
        snprintf(v.text, sizeof v.text, "host %s can't execute \"%s\"", job->host,
                 lks__shown(program, 512));
    if (lks__nodes_settle(nodes, &report, &v, tail, &again) == LKS_OK && !again)
        *exit_code_p = v.exit_code;
    return st == LKS_OK ? LKS_OK : lks__fail(st, "%s", why);
}

/* Length of `text` without the reason at its end, if the last lines say it too. */
static int without_reason(const char *text, const char *tail)
{
    const char *end = text;
    while ((end = strstr(end, ": ")) != NULL && strstr(tail, end + 2) == NULL)
        end += 2;
    return (int)(end != NULL ? (size_t)(end - text) : strlen(text));
}

/* Print the last message: the rank that failed, and its last lines. */
static void tell(const struct lks__job *job, const struct lks__verdict *v, const char *tail)
{
    void (*say)(const struct lks__job *, const char *, ...) __attribute__((format(printf, 2, 3))) =
        v->alone ? lks__say_here : lks__say;
    if (tail[0] != '\0')
        say(job, "%.*s; its last lines on stderr:\n%.*s", without_reason(v->text, tail), v->text,
            (int)strlen(tail) - 1, tail);
    else
        say(job, "%s", v->text);
}

/* Start all ranks; *exit_code_p is set, and *started_p false, if the program can't be executed. */
static lks_status start_all(struct lks__attempt *a, bool *started_p, int *exit_code_p)
{
    *started_p = false;
    lks__guard_start(a);
    for (int r = 0; r < a->nproc; r++) {
        int exec_errno = 0;
        LKS__TRY(lks__start_rank(a, r, &exec_errno));
        if (exec_errno == 0)
            continue;
        *exit_code_p = say_not_executable(a->job, exec_errno);
        return LKS_OK;
    }
    *started_p = true;
    return LKS_OK;
}

/* True if a rank on this host met a lasting failure. The message then says what to do. */
static bool is_lasting(const struct lks__supervisor *sup, struct lks__verdict *v)
{
    const lks__launch_options *o = sup->attempt->job->options;
    const bool usage = o->trains && v->exit_code == o->usage_code;
    if (v->culprit < 0 || v->elsewhere || (!usage && !lks__segment_lasting(sup->attempt->segment)))
        return false;
    if (usage && o->max_restarts == 0)
        return true;
    lks__append(v->text, sizeof v->text, "", "; %sput that right, then start it again%s",
                o->max_restarts > 0 ? "not restarted, as it would fail again: " : "",
                o->trains ? ", with --init_from=resume if it has saved a checkpoint" : "");
    return true;
}

/* Judge how the attempt ended, here and on other nodes. *again_p: the ranks may be restarted. */
static lks_status judge(struct lks__supervisor *sup, int *exit_code_p, bool *again_p)
{
    struct lks__attempt *a = sup->attempt;
    const struct lks__job *job = a->job;
    struct lks__verdict v;
    char table[LKS__SHM_REPORT], tail[2 * LKS__TAIL_BYTES] = "";
    lks__verdict(sup, &v);
    const bool lasting = is_lasting(sup, &v);
    lks__files_errors(a, &v);
    lks__segment_report(a->segment, table);
    if (v.culprit >= 0) {
        if (!v.elsewhere)
            lks__output_tail(job->output, v.culprit, tail);
        *again_p = a->number < job->options->max_restarts && !lasting && !sup->signalled;
    }
    if (sup->nodes == NULL) {
        lks__show(job, table);
    } else {
        struct lks__nodes_report report;
        lks__verdict_report(sup, &v, &report);
        report.table = table;
        report.lasting = lasting;
        LKS__TRY(lks__nodes_settle(sup->nodes, &report, &v, tail, again_p));
    }
    *exit_code_p = v.exit_code;
    if (v.text[0] != '\0')
        tell(job, &v, tail);
    if (*again_p)
        lks__say(job, "restart %d of %d", a->number + 1, job->options->max_restarts);
    return LKS_OK;
}

static lks_status start_and_watch(struct lks__attempt *a, struct lks__nodes *nodes,
                                  int *exit_code_p, bool *again_p)
{
    struct lks__supervisor sup = {0};
    bool started = false;
    lks_status st = lks__attempt_open(a);
    LKS__THEN(st, lks__supervisor_begin(&sup, a, nodes));
    LKS__THEN(st, start_all(a, &started, exit_code_p));
    if (started) {
        lks__supervise(&sup);
        st = judge(&sup, exit_code_p, again_p);
    } else {
        if (sup.polls != NULL)
            lks__end_all(&sup);
        if (nodes != NULL)
            st = tell_nodes(a, nodes, st, exit_code_p);
    }
    free(sup.polls);
    return st;
}

/* Find this node's part in the attempt. *over_p: the job has ended without it. */
static lks_status find_part(struct lks__attempt *a, struct lks__nodes *nodes, bool *over_p,
                            int *exit_code_p)
{
    struct lks__job *job = a->job;
    struct lks__nodes_part part;
    *over_p = false;
    if (nodes == NULL) {
        a->nproc = a->world_size = a->role_size = job->options->nproc;
        a->n_groups = 1;
        a->master_port = job->options->endpoint_port != 0 ? job->options->endpoint_port
                                                          : lks__free_port(job->master_addr);
        return LKS_OK;
    }
    LKS__TRY(lks__nodes_gather(nodes, a->number, &part, over_p, exit_code_p));
    if (*over_p)
        return LKS_OK;
    a->number = part.attempt;
    a->nproc = part.nproc;
    a->first_global = part.first_global;
    a->world_size = part.world_size;
    a->first_in_role = part.first_in_role;
    a->role_size = part.role_size;
    a->group_rank = part.group_rank;
    a->n_groups = part.n_groups;
    a->master_port = part.master_port;
    snprintf(job->id, sizeof job->id, "%s", part.job_id);
    return LKS_OK;
}

/* *number_p: in, the attempt's number; out, the number that the nodes agreed on. */
static lks_status attempt(struct lks__job *job, struct lks__nodes *nodes, int *number_p,
                          int *exit_code_p, bool *again_p)
{
    struct lks__attempt a = {.job = job, .number = *number_p};
    bool over;
    LKS__TRY(find_part(&a, nodes, &over, exit_code_p));
    *number_p = a.number;
    if (over)
        return LKS_OK;
    const lks_status st = start_and_watch(&a, nodes, exit_code_p, again_p);
    lks__attempt_close(&a);
    return st;
}

/* --- the launch --------------------------------------------------------------------------- */

#define BIT(sig) (UINT64_C(1) << (sig))

static const uint64_t passed_on =
    BIT(SIGTERM) | BIT(SIGINT) | BIT(SIGHUP) | BIT(SIGQUIT) | BIT(SIGUSR1) | BIT(SIGUSR2);

/* The watched signals that were not ignored when we started. Ignored signals stay ignored (under
 * nohup, or in a background job of a shell without job control). */
static void signal_mask(const lks__launch_options *o, sigset_t *mask)
{
    const uint64_t watched =
        BIT(SIGCHLD) | BIT(SIGTSTP) | (o->signals != 0 ? o->signals : passed_on);
    sigemptyset(mask);
    for (int sig = 1; sig < 64; sig++)
        if ((watched & BIT(sig)) != 0 && (sig == SIGCHLD || !lks__signal_is_ignored(sig)))
            sigaddset(mask, sig);
}

/* All processes of the job have ended; only its output is left. After a success wait for its
 * reader, as any program does, until a signal arrives; otherwise wait only briefly. */
static void close_consoles(struct lks__job *job, int exit_code)
{
    sigset_t stops;
    sigprocmask(SIG_SETMASK, NULL, &stops);
    sigdelset(&stops, SIGCHLD);
    sigdelset(&stops, SIGTSTP);
    sigdelset(&stops, SIGUSR1);
    sigdelset(&stops, SIGUSR2);
    signalfd(job->signals, &stops, 0);
    if (job->consoles != NULL && exit_code != 0)
        lks__hurry(job);
    lks__consoles_close(job->consoles, job->signals);
    job->consoles = NULL;
}

/* In the launcher's own process. */
static lks_status launch(struct lks__job *job, sigset_t *mask, int *exit_code_p)
{
    struct lks__nodes *nodes = NULL;
    sigaddset(mask, LKS__FRONT_GONE);
    job->signals = signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signals < 0)
        return lks__fail(LKS_ERR_IO, "can't watch for signals: %s", lks__sys_reason(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    lks_status st = lks__consoles_open(&job->consoles);
    LKS__THEN(st, lks__job_open(job));
    if (st == LKS_OK && job->options->max_nodes > 1)
        st = lks__nodes_open(job, &nodes);
    bool again = true;
    for (int number = 0; st == LKS_OK && again; number++) {
        again = false; /* with several nodes, they decide the number of the attempt */
        st = attempt(job, nodes, &number, exit_code_p, &again);
    }
    lks__nodes_close(nodes);
    lks__store_stop(job->store);
    close_consoles(job, st == LKS_OK ? *exit_code_p : 1);
    lks__sys_close(job->signals);
    return st;
}

lks_status lks__launch(const lks__launch_options *given, int *exit_code_p)
{
    lks__launch_options options = *given;
    struct lks__job job = {.options = &options};
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
    sigaction(SIGCHLD, &child, &job.old_child); /* if it is ignored, children can't be waited for */
    /* Our reader may close the pipe: get an error, and inform the ranks. */
    sigaction(SIGPIPE, &ignored, &job.old_pipe);
    sigprocmask(SIG_BLOCK, &mask, &job.old_mask);
    lks__early_subtract(&job.old_mask);
    sigorset(&now, &mask, &job.old_mask);
    /* Deliver the early signals that aren't watched. */
    sigprocmask(SIG_SETMASK, &now, NULL);
    lks_status st = lks__front_fork(options.self, &mask, &job.old_mask);
    LKS__THEN(st, launch(&job, &mask, exit_code_p));
    lks__late_add(&mask, &job.old_mask);
    sigprocmask(SIG_SETMASK, &job.old_mask, NULL);
    sigaction(SIGPIPE, &job.old_pipe, NULL);
    sigaction(SIGCHLD, &job.old_child, NULL);
    return st;
}
