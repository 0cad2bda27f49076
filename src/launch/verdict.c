/* Judges an attempt's end. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "launch/ranks/supervisor.h"

/* The part of a failure after its rank: "the loss is not finite" of "rank 1 failed at step 3, phase
 * backward: the loss is not finite". Other sentences are returned whole. */
static const char *why_of(const char *failure)
{
    int rank, used = 0;
    const char *colon = strstr(failure, ": ");
    if (colon == NULL || sscanf(failure, "rank %d failed%n", &rank, &used) != 1 || used == 0)
        return failure;
    return colon + 2;
}

static int exit_code_of(const struct lks__rank_process *p)
{
    return p->by_signal ? 128 + p->code : p->code;
}

int lks__first_failed(const struct lks__attempt *a, int order)
{
    int first = -1;
    for (int r = 0; r < a->n_started; r++) {
        const struct lks__rank_process *p = &a->ranks[r];
        if (p->running || p->order < order || !lks__rank_failed(p))
            continue;
        if (first < 0 || p->order < a->ranks[first].order ||
            (p->order == a->ranks[first].order && p->by_signal && !a->ranks[first].by_signal))
            first = r;
    }
    return first;
}

/* The first rank that failed by itself: the rank that the group's failure names, if it ended badly,
 * else the first rank that we saw end. -1: none. */
static int find_culprit(const struct lks__supervisor *sup)
{
    const struct lks__attempt *a = sup->attempt;
    if (sup->first_by_rank && sup->first_rank >= 0 && sup->first_rank < a->n_started &&
        lks__rank_failed(&a->ranks[sup->first_rank]))
        return sup->first_rank;
    return lks__first_failed(a, 0);
}

/* The rank that failed instead of stopping, for example while saving, or -1. */
static int failed_instead(const struct lks__supervisor *sup)
{
    const struct lks__attempt *a = sup->attempt;
    for (int r = 0; r < a->n_started; r++)
        if (a->ranks[r].by_signal)
            return -1; /* the others failed because of it */
    return sup->first_by_rank && sup->first_rank < a->n_started ? sup->first_rank : -1;
}

static void after_user_signal(const struct lks__supervisor *sup, struct lks__verdict *v)
{
    const struct lks__attempt *a = sup->attempt;
    const int orderly = 128 + sup->user_signal, failed = failed_instead(sup);
    int code = 0, from = -1;
    for (int r = 0; r < a->n_started; r++) {
        const struct lks__rank_process *p = &a->ranks[r];
        /* a rank that died of the signal itself, before it could handle it, made others fail */
        if (code == 0 || (p->by_signal && p->code == sup->user_signal)) {
            code = exit_code_of(p);
            from = r;
        }
        if (!p->by_signal || p->code == sup->user_signal || sup->killed)
            continue;
        lks__describe_end(a, r, v->text);
        lks__say(a->job, "%s", v->text);
    }
    v->text[0] = '\0';
    v->exit_code = sup->killed && code != orderly ? 128 + SIGKILL : code;
    if (sup->killed)
        snprintf(v->text, sizeof v->text, "%s",
                 sup->late_text[0] != '\0' ? sup->late_text : "the ranks were killed");
    else if (failed >= 0)
        snprintf(v->text, sizeof v->text, "%s", sup->first_text);
    else if (code != 0 && code != orderly && !a->ranks[from].by_signal)
        lks__describe_end(a, from, v->text);
}

/* A rank that ended with code 0 while others still waited for it, or -1. It is the cause, although
 * only the others' exit codes show a failure. */
static int left_early(const struct lks__supervisor *sup)
{
    const struct lks__attempt *a = sup->attempt;
    const int r = sup->first_by_rank ? sup->first_rank : -1;
    return r >= 0 && r < a->n_started && !a->ranks[r].running && !lks__rank_failed(&a->ranks[r])
               ? r
               : -1;
}

/* True if our ranks ended because of another host's ranks, so that their failure doesn't name a
 * rank of ours. */
static bool follows_others(const struct lks__attempt *a, bool *still_p)
{
    lks_status st = LKS_OK;
    int rank = -1;
    if (lks__segment_aborted(a->segment))
        lks__segment_failure(a->segment, &st, &rank, NULL, 0);
    *still_p = st == LKS_ERR_TIMEOUT;
    return rank < 0 && (st == LKS_ERR_TIMEOUT || st == LKS_ERR_PEER);
}

/* Write the sentence about the rank v->culprit. `hung`: other ranks gave it up, and we ended it.
 * `early`: a rank that left while others waited for it; -1: none. If it has reported a failure
 * itself, that explains its end. */
static void describe_failure(const struct lks__supervisor *sup, bool hung, int early,
                             struct lks__verdict *v)
{
    const struct lks__attempt *a = sup->attempt;
    const struct lks__rank_process *p = &a->ranks[v->culprit];
    const char *why = why_of(sup->first_text);
    const bool explained = early >= 0 && !p->by_signal && why != sup->first_text;
    char text[LKS__LAUNCH_MESSAGE];
    struct rlimit cpu;
    lks__describe_end(a, explained ? early : v->culprit, text);
    if (v->elsewhere)
        snprintf(v->text, sizeof v->text, "%s", sup->first_text);
    else if (hung)
        snprintf(v->text, sizeof v->text, "rank %d (pid %d, host %s) was ended by %s: %s",
                 a->first_global + v->culprit, (int)p->pid, a->job->host, a->job->options->self,
                 sup->first_text);
    else if (p->by_signal && p->code == SIGKILL && lks__oom_kills() > a->oom_kills)
        snprintf(v->text, sizeof v->text,
                 "%.1200s; meanwhile the kernel has killed processes for lack of memory", text);
    else if (p->by_signal && p->code == SIGKILL && getrlimit(RLIMIT_CPU, &cpu) == 0 &&
             cpu.rlim_max != RLIM_INFINITY)
        snprintf(v->text, sizeof v->text,
                 "%.1200s; the limit on its CPU time (ulimit -t) is %llu seconds", text,
                 (unsigned long long)cpu.rlim_max);
    else if (early >= 0 && !p->by_signal && !explained)
        snprintf(v->text, sizeof v->text,
                 "rank %d (pid %d, host %s) exited with code 0 while other ranks still waited for "
                 "it, so rank %d failed: %s. All ranks must make the same calls: find out why rank "
                 "%d ended so early",
                 a->first_global + early, (int)a->ranks[early].pid, a->job->host,
                 a->first_global + v->culprit, why, a->first_global + early);
    else if (sup->first_by_rank && !p->by_signal)
        snprintf(v->text, sizeof v->text, "%.900s: %s", text, why);
    else
        snprintf(v->text, sizeof v->text, "%s", text);
}

void lks__verdict(const struct lks__supervisor *sup, struct lks__verdict *v)
{
    const struct lks__attempt *a = sup->attempt;
    *v = (struct lks__verdict){.culprit = -1};
    if (sup->user_signal != 0) {
        after_user_signal(sup, v);
        return;
    }
    v->culprit = find_culprit(sup);
    if (v->culprit < 0 && sup->stood_still) { /* asked to end, all exited with code 0 */
        v->culprit = sup->first_rank;
        v->exit_code = 1;
        snprintf(v->text, sizeof v->text, "%s", sup->first_text);
    }
    if (v->exit_code != 0 || v->culprit < 0)
        return;
    const struct lks__rank_process *p = &a->ranks[v->culprit];
    int first = -1;
    for (int r = 0; r < a->n_started; r++)
        if (lks__rank_failed(&a->ranks[r]) &&
            (first < 0 || a->ranks[r].order < a->ranks[first].order))
            first = r;
    /* If the other ranks gave up a rank, and we ended it, their report counts. */
    const bool hung = sup->first_by_rank && p->by_signal && p->late;
    const int early = left_early(sup);
    bool still;
    v->elsewhere = sup->first_by_rank && (!p->by_signal || p->late) && follows_others(a, &still);
    describe_failure(sup, hung, early, v);
    /* If only our own signals ended ranks, no exit code is meaningful. */
    const bool no_code = sup->stood_still || (hung && a->ranks[first].by_signal);
    v->exit_code = no_code ? 1 : exit_code_of(hung ? &a->ranks[first] : p);
    if (early >= 0 && !p->by_signal && !v->elsewhere) /* its last lines tell more */
        v->culprit = early;
}

/* If our first rank exited with code 0 before our ranks were ended, 1 + its number, by which other
 * hosts name this one; else 0. A rank that has left the group may still wait for the others. */
static int first_left(const struct lks__attempt *a)
{
    const struct lks__rank_process *p = &a->ranks[0];
    lks__rank_status s;
    lks__segment_status(a->segment, 0, &s);
    const bool ended = p->late && s.state != LKS__RANK_LEFT;
    return p->running || ended || lks__rank_failed(p) ? 0 : a->first_global + 1;
}

void lks__verdict_report(const struct lks__supervisor *sup, const struct lks__verdict *v,
                         struct lks__nodes_report *r)
{
    const struct lks__attempt *a = sup->attempt;
    *r = (struct lks__nodes_report){.user_signal = sup->user_signal,
                                    .ended_by_others = sup->ended_by_others,
                                    .by_signal = v->culprit >= 0 && a->ranks[v->culprit].by_signal,
                                    .left = first_left(a),
                                    .table = "",
                                    .timeout_s = lks__segment_timeout_s(a->segment)};
    r->killed = sup->killed && sup->user_signal != 0;
    r->follows = follows_others(a, &r->still) || (r->killed && sup->all_wait);
}
