#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsonw.h"
#include "base/text/utf8.h"
#include "launch/ranks/supervisor.h"

static bool files_wanted(const lks__launch_options *o)
{
    bool wanted = o->log_dir != NULL;
    for (int r = 0; r < o->nproc; r++)
        wanted |=
            (o->tee != NULL && o->tee[r] != 0) || (o->redirect != NULL && o->redirect[r] != 0);
    return wanted;
}

lks_status lks__files_open(struct lks__job *job)
{
    const lks__launch_options *o = job->options;
    char id[144], node[72] = "", shown[LKS__SYS_PATH]; /* parts of a file's name */
    if (!files_wanted(o))
        return LKS_OK;
    const char *parent = o->log_dir;
    if (parent == NULL)
        parent = getenv("TMPDIR") != NULL && *getenv("TMPDIR") != '\0' ? getenv("TMPDIR") : "/tmp";
    LKS__TRY(lks__sys_make_dirs(parent));
    if (o->max_nodes > 1 && o->node_rank >= 0)
        snprintf(node, sizeof node, "_node%d", o->node_rank);
    else if (o->max_nodes > 1)
        snprintf(node, sizeof node, "_%s", job->host);
    snprintf(id, sizeof id, "%.63s%s", job->run_id, node);
    for (char *c = id; *c != '\0'; c++) /* the id may be any text, and becomes a file's name */
        if (strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_", *c) == NULL)
            *c = '_';
    int n = snprintf(job->log_dir, sizeof job->log_dir, "%s/%s_XXXXXX", parent, id);
    errno = ENAMETOOLONG;
    if ((size_t)n >= sizeof job->log_dir || mkdtemp(job->log_dir) == NULL) {
        job->log_dir[0] = '\0';
        return lks__sys_fail("can't make a folder for log files in", parent);
    }
    if (o->log_dir == NULL)
        lks__say(job, "log files are in %s",
                 lks__escape(shown, sizeof shown, job->log_dir, strlen(job->log_dir)));
    return LKS_OK;
}

static struct lks__output_plan plan_for(const struct lks__attempt *a, int rank)
{
    const lks__launch_options *o = a->job->options;
    struct lks__output_plan p = {.console = LKS__STD_BOTH};
    unsigned redirect = o->redirect != NULL ? o->redirect[rank] : 0;
    unsigned tee = o->tee != NULL ? o->tee[rank] : 0;
    if (o->log_dir != NULL && o->tee == NULL && o->redirect == NULL)
        tee = LKS__STD_BOTH;
    p.file = redirect | tee;
    p.console &= ~(redirect & ~tee);
    if (o->shown != NULL && !o->shown[rank])
        p.console = 0;
    unsigned direct = a->world_size == 1 ? LKS__STD_BOTH : o->one_writer ? LKS__STD_OUT : 0;
    p.inherit = direct & p.console & ~p.file;
    return p;
}

static lks_status make_folders(struct lks__attempt *a)
{
    int nproc = a->nproc;
    a->folders = calloc((size_t)nproc, sizeof(char *));
    LKS__MEMORY(a->folders, "for %d ranks", nproc);
    for (int r = 0; r < nproc; r++) {
        if (asprintf(&a->folders[r], "%s/attempt_%d/%d", a->job->log_dir, a->number, r) < 0) {
            a->folders[r] = NULL;
            return lks__no_memory("for %d ranks", nproc);
        }
        LKS__TRY(lks__sys_make_dirs(a->folders[r]));
    }
    return LKS_OK;
}

lks_status lks__files_attempt(struct lks__attempt *a)
{
    int nproc = a->nproc;
    struct lks__output_plan *plans = calloc((size_t)nproc, sizeof *plans);
    LKS__MEMORY(plans, "for %d ranks", nproc);
    lks_status st = a->job->log_dir[0] != '\0' ? make_folders(a) : LKS_OK;
    for (int r = 0; r < nproc; r++)
        plans[r] = plan_for(a, r);
    const char *host = a->world_size > 1 && !a->job->options->one_writer ? a->job->host : NULL;
    LKS__THEN(st, lks__output_open(plans, nproc, a->first_global, host, a->folders,
                                   a->job->consoles, &a->job->output));
    free(plans);
    return st;
}

void lks__files_close(struct lks__attempt *a)
{
    lks__output_close(a->job->output);
    a->job->output = NULL;
    for (int r = 0; a->folders != NULL && r < a->nproc; r++)
        free(a->folders[r]);
    free(a->folders);
    a->folders = NULL;
}

/* Write it in torchrun's format, so that torchrun's readers understand it: "message" within
 * "message". */
static void write_error(const struct lks__attempt *a, int rank, const char *message)
{
    char path[LKS__SYS_PATH], text[16 << 10], tail[2 * LKS__TAIL_BYTES];
    size_t len = 0;
    lks__jsonw w;
    const struct lks__rank_process *p = &a->ranks[rank];
    lks__rank_status s;
    snprintf(path, sizeof path, "%s/error.json", a->folders[rank]);
    if (access(path, F_OK) == 0) /* the program's own file has more detail */
        return;
    lks__segment_status(a->segment, rank, &s);
    lks__output_tail(a->job->output, rank, tail);
    lks__utf8_make(tail);
    lks__jsonw_open(&w, text, sizeof text);
    lks__jsonw_object(&w, NULL);
    lks__jsonw_object(&w, "message");
    lks__jsonw_str(&w, "message", message);
    lks__jsonw_int(&w, "errorCode", p->by_signal ? -p->code : p->code);
    lks__jsonw_object(&w, "extraInfo");
    lks__jsonw_str(&w, "host", a->job->host);
    lks__jsonw_int(&w, "rank", a->first_global + rank);
    lks__jsonw_int(&w, "local_rank", rank);
    lks__jsonw_int(&w, "pid", p->pid);
    lks__jsonw_int(&w, p->by_signal ? "signal" : "exit_code", p->code);
    if (s.phase[0] != '\0') {
        lks__jsonw_u64(&w, "step", s.step);
        lks__jsonw_str(&w, "phase", s.phase);
    }
    lks__jsonw_str(&w, "stderr", tail);
    lks__jsonw_int(&w, "timestamp", (int64_t)time(NULL));
    lks__jsonw_end(&w);
    lks__jsonw_end(&w);
    lks__jsonw_end(&w);
    if (lks__jsonw_close(&w, &len) != LKS_OK || lks__sys_write_file(path, text, len) != LKS_OK)
        lks__say(a->job, "error.json of rank %d wasn't written: %s", a->first_global + rank,
                 lks_last_error());
}

/* True if we ended the rank because another rank had failed: not a failure of its own. */
static bool was_ended(const struct lks__attempt *a, int rank, const struct lks__verdict *v)
{
    const struct lks__rank_process *p = &a->ranks[rank];
    return v->culprit >= 0 && p->by_signal && (p->code == SIGTERM || p->code == SIGKILL) &&
           p->order > a->ranks[v->culprit].order;
}

void lks__files_errors(const struct lks__attempt *a, const struct lks__verdict *v)
{
    char text[LKS__LAUNCH_MESSAGE];
    for (int r = 0; a->folders != NULL && r < a->n_started; r++) {
        if (!lks__rank_failed(&a->ranks[r]) || (r != v->culprit && was_ended(a, r, v)))
            continue;
        lks__describe_end(a, r, text);
        write_error(a, r, r == v->culprit ? v->text : text);
    }
}
